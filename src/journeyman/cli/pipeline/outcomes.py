"""The answer of commands that change logs: one line a log, JSON or words, and the exit code.

Exit code 0: every log was treated, or had nothing to gain; 1: at least one was left as it was for
a reason that its line tells.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from journeyman.cli.output import Output, json_line
from journeyman.cli.pipeline.session_options import SessionOptions
from journeyman.cli.wording import counted
from journeyman.errors import UsageError

if TYPE_CHECKING:
    from journeyman.spark.maintenance import MaintenanceResult


def tell(outcomes: Iterable[MaintenanceResult], *, json: bool) -> None:
    """Print what became of each log; ends the command with 1 if one could not be treated."""
    failed = False
    with Output() as output:
        for outcome in outcomes:
            failed = failed or outcome.error is not None
            output.line(json_line(outcome.as_dict()) if json else _words(outcome))
    if failed:
        click.get_current_context().exit(1)


def refuse_output(options: SessionOptions) -> None:
    if options.output is not None:
        raise UsageError("the logs are changed where they are: leave --output out")


def _words(outcome: MaintenanceResult) -> str:
    if outcome.error is not None:
        return f"{outcome.log}: left as it was: {outcome.error}"
    if not outcome.changed:
        return f"{outcome.log}: {counted(outcome.records_before, 'record')}, nothing to gain"
    return (
        f"{outcome.log}: {counted(outcome.records_before, 'record')} read, "
        f"{outcome.records_after} kept; {outcome.bytes_before} bytes read, "
        f"{outcome.bytes_after} kept"
    )
