"""``journeyman config --show``: the settings in effect, and where each of them comes from.

The answer is a configuration file: it can be read back with ``-c``. The same command is the way
to check a file before a server is started with it: what ``serve`` would refuse is said in one line,
exit code 2.
"""

from __future__ import annotations

import click

from journeyman.cli.errors import warn
from journeyman.cli.output import Output
from journeyman.cli.settings import load_settings, settings_options


@click.command()
@settings_options
@click.option("--show", is_flag=True, help="Print every setting with its value and its origin.")
def config(path: str | None, settings: tuple[str, ...], show: bool) -> None:
    """Check the configuration, and show what is in effect.

    Without --show nothing is printed when all is well.
    """
    configuration = load_settings(path, settings)
    from journeyman.servers.preflight import check, notes

    access = check(configuration)
    for note in (*configuration.notes, *notes(configuration.settings, access)):
        warn(note)
    if show:
        from journeyman.config import show as written

        with Output() as output:
            for line in written(configuration).splitlines():
                output.line(line)
