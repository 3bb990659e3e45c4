"""``journeyman pipeline prepare``: once for a machine or an image, so that Spark starts faster.

It writes an archive of the classes that Spark loads: see journeyman.spark.session.java.
Everything works without it, only slower.
"""

from __future__ import annotations

import click

from journeyman.cli.output import Output
from journeyman.errors import JourneymanError, UsageError


@click.command()
def prepare() -> None:
    """Make later commands of the pipeline start in half the time.

    Writes an archive of the classes that Spark loads, about 190 MB in the cache directory. It takes
    about a minute, once per Java and Spark; without it commands are only slower.
    """
    from journeyman.spark.session.java import SWITCH, archive_path, build_archive, prepare_launch

    java = prepare_launch(on_this_machine=True)
    expected = archive_path(java)
    if expected is None:
        raise UsageError(f"no archive is wanted or can be kept: unset {SWITCH}, set XDG_CACHE_HOME")
    was_there = expected.exists()
    archive = build_archive(java)
    if archive is None:
        raise JourneymanError(
            f"{expected} could not be built: Java {java.version} took no archive; "
            "commands work without it, only slower"
        )
    size_mb = archive.stat().st_size // 1_000_000
    with Output() as output:
        output.line(f"{archive}: {size_mb} MB, {'there already' if was_there else 'built'}")
