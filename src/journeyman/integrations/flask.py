"""Journeyman in Flask: the URL from its configuration, jobs in its application context.

    app = jm.App()
    journeyman = Journeyman(app)

    def create_app() -> Flask:
        flask = Flask(__name__)
        flask.config["JOURNEYMAN_URL"] = "journeyman://queue.internal"
        journeyman.init_app(flask)
        return flask

    flask --app shop journeyman-worker -c 8      the options of `journeyman worker`

Inside of a job ``current_app`` works, and extensions such as Flask-SQLAlchemy with it.
"""

from __future__ import annotations

from flask import Flask

from journeyman.cli.worker import worker_of
from journeyman.tasks import App


class Journeyman:
    """See the module. With ``flask`` it is initialized at once."""

    def __init__(self, app: App, flask: Flask | None = None) -> None:
        self._app = app
        if flask is not None:
            self.init_app(flask)

    def init_app(self, flask: Flask) -> None:
        url = flask.config.get("JOURNEYMAN_URL")
        if url:
            self._app.use_server(url)
        self._app.within(flask.app_context)
        flask.extensions["journeyman"] = self._app
        flask.cli.add_command(worker_of(self._app, "journeyman-worker"))
