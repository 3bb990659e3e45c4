"""``manage.py journeyman_worker``: `journeyman worker` inside of a Django project."""

from __future__ import annotations

from argparse import REMAINDER, ArgumentParser
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import close_old_connections
from django.utils.module_loading import autodiscover_modules

from journeyman.cli.errors import exit_code_for
from journeyman.cli.worker import worker_of
from journeyman.errors import UsageError
from journeyman.tasks.worker.program import load_app


class Command(BaseCommand):  # type: ignore[misc]
    """See the module."""

    help = "Run the jobs of settings.JOURNEYMAN['APP']; takes the options of `journeyman worker`."
    requires_system_checks: ClassVar[list[str]] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("arguments", nargs=REMAINDER, help="Options of `journeyman worker`.")

    def run_from_argv(self, argv: list[str]) -> None:
        """Everything after the name of the command is for the worker, also what begins with -."""
        super().run_from_argv([*argv[:2], "--", *argv[2:]])

    def handle(self, *_args: Any, arguments: list[str], **_options: Any) -> None:
        where = getattr(settings, "JOURNEYMAN", {}).get("APP")
        if not where:
            raise CommandError('set JOURNEYMAN = {"APP": "module:app"} in the settings')
        autodiscover_modules("tasks")
        try:
            app = load_app(where)
            if getattr(settings, "TASKS", None):
                from journeyman.integrations.django.task_backend import add_carriers

                add_carriers()
        except UsageError as error:
            raise CommandError(str(error)) from None
        app.within(fresh_connections)
        given = [word for word in arguments if word != "--"]
        name = "manage.py journeyman_worker"
        code = exit_code_for(
            lambda: worker_of(app, name).main(given, prog_name=name, standalone_mode=False),
            debug=False,
        )
        if code:
            raise SystemExit(code)


@contextmanager
def fresh_connections() -> Iterator[None]:
    """Database connections that are broken or too old are closed before and after a job."""
    close_old_connections()
    try:
        yield
    finally:
        close_old_connections()
