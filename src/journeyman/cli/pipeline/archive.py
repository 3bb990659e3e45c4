"""``journeyman pipeline archive``: whole logs to Parquet, verified; then what nothing needs may go.

    OUTPUT/run=20261115T190051Z-logfile-5d41402a/log=.../day=2026-11-15/part-....parquet

A run appears as a whole, once every row of it has been read back and compared with the log. With
``--remove`` segments go afterwards that are of no use to the log itself: of workq those in which
every job is over, of kestrel those that every reader has finished. A ztick log holds its state and
nothing else once it is compacted, so of it nothing goes.
"""

from __future__ import annotations

import click

from journeyman.cli.output import as_json, format_options
from journeyman.cli.pipeline.answers import explain, tell
from journeyman.cli.pipeline.log_paths import logs_by_dialect, pipeline_dialect_option
from journeyman.cli.pipeline.session_options import (
    SessionOptions,
    pipeline_session,
    session_options,
)
from journeyman.errors import UsageError


@click.command()
@click.argument("logs", nargs=-1, required=True)
@click.option("--remove", is_flag=True, help="Then remove segments that the log does not need.")
@pipeline_dialect_option
@format_options
@session_options
def archive(
    logs: tuple[str, ...],
    remove: bool,
    dialect: str | None,
    format_: str,
    json_: bool,
    options: SessionOptions,
) -> None:
    """Write every record of LOGS, payloads included, to Parquet under --output, and verify it."""
    if options.output is None:
        raise UsageError("say where the archive is with --output")
    found = logs_by_dialect(logs, dialect)
    with pipeline_session(options, logs, changes_logs=True) as spark:
        from journeyman.spark.maintenance.archive import archive as archive_logs
        from journeyman.spark.maintenance.archive import archived_rows

        if options.explain:
            for kind, paths in found.items():
                explain({kind: archived_rows(spark, kind, tuple(paths))})
            return
        outcomes = [
            outcome
            for kind, paths in found.items()
            for outcome in archive_logs(spark, kind, paths, options.output, remove=remove)
        ]
        tell(outcomes, json=as_json(format_, json_))
