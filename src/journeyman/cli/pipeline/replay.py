"""``journeyman pipeline replay``: the final state of logs, or their state at an earlier moment.

    on a terminal     the first rows of each table, and how many there are
    into a pipe       all rows as JSON, one a line, with the name of the table in ``table``
    --output DIR      all rows as files, one directory a table

The logs are read once, whatever tables there are. What is damaged is passed over, as a server does
that starts on such a log: a line on stderr says how much it is, and the exit code is 0.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import click

from journeyman.cli.output import Output
from journeyman.cli.pipeline import shared

if TYPE_CHECKING:
    from collections.abc import Callable

    from journeyman.spark.session import DataFrame, SparkSession

_SHOWN_ROWS: Final = 20

# The columns of a table for people; the other formats have all columns.
_COLUMNS_FOR_PEOPLE: Final[dict[str, tuple[str, ...]]] = {
    "ztick.jobs": ("identifier", "status", "execution_ns"),
    "ztick.rules": ("identifier", "pattern", "runner", "runner_args"),
    "workq.jobs": (
        *("key", "name", "state", "attempts", "fails", "priority"),
        *("payload_size", "result_size", "payload", "result"),
    ),
    "workq.orphans": ("key", "records"),
    "kestrel.items": (
        *("queue", "item_id", "add_time_ms", "expire_time_ms"),
        *("error_count", "data_size", "contested", "data"),
    ),
    "kestrel.readers": ("queue", "reader", "opened_head", "opened_done", "tail_id", "damaged"),
}
_PAYLOADS: Final = ("payload", "result", "data")


@dataclass(frozen=True, slots=True)
class _Asked:
    as_of: str | None
    payloads: bool
    limit: int | None


@click.command()
@click.argument("logs", nargs=-1, required=True)
@click.option(
    "--as-of",
    metavar="TIME|FILE:OFFSET",
    help="The state at TIME, or before OFFSET of FILE.",
)
@click.option("--payloads", is_flag=True, help="Include payloads, results and data.")
@click.option(
    "--limit",
    type=click.IntRange(0),
    help=f"At most N rows per table. [default: {_SHOWN_ROWS} on a terminal, else all]",
)
@shared.pipeline_dialect_option
@shared.session_options
@shared.answer_options
def replay(
    logs: tuple[str, ...],
    as_of: str | None,
    payloads: bool,
    limit: int | None,
    dialect: str | None,
    options: shared.SessionOptions,
    answer: shared.Answer,
) -> None:
    """The final state of jobs, rules, work jobs, queue items and readers in LOGS.

    Logs of several dialects, and of several servers, may be given together.
    """
    asked = _Asked(as_of, payloads, limit)
    found = shared.logs_by_dialect(logs, dialect)
    several = len(found) > 1
    for each in found:
        _check_as_of(each, as_of)
    answer.check(options, *(name for each in found for name in _names(each, several=several)))
    with shared.pipeline_session(options, logs) as spark:
        for each, paths in found.items():
            _replay(spark, each, paths, asked, options, answer, several=several)


def _check_as_of(dialect: str, as_of: str | None) -> None:
    from journeyman.spark.source.options import SourceOptions

    SourceOptions.parse(dialect, {"path": "/", **({} if as_of is None else {"asOf": as_of})})


def _replay(
    spark: SparkSession,
    dialect: str,
    paths: list[str],
    wanted: _Asked,
    options: shared.SessionOptions,
    answer: shared.Answer,
    *,
    several: bool,
) -> None:
    from journeyman.spark import replay
    from journeyman.spark.data_sources import forget_reads

    read = partial(replay.packets, spark, dialect, paths, asOf=wanted.as_of)
    straight = _goes_straight_to_files(wanted, answer) and options.output is not None
    if options.explain:
        if straight:
            places = _places(dialect, options, several=several)
            frames = {"*": replay.writing_states(read(), dialect, places)}
        else:
            frames = replay.tables_of(read(), dialect, payloads=wanted.payloads)
        answer.give({f"{dialect}.{name}": frame for name, frame in frames.items()}, options)
        return
    if straight:
        _write_files(spark, read, dialect, options, answer, several=several)
        return
    held = read().persist()
    try:
        if not replay.count_damages(held):
            forget_reads(spark, dialect)
        frames = replay.tables_of(held, dialect, payloads=wanted.payloads)
        named = {f"{dialect}.{name}": frame for name, frame in frames.items()}
        if options.output is not None:
            names = _names(dialect, several=several)
            limited = (_limited(frame, wanted.limit) for frame in frames.values())
            answer.give(dict(zip(names, limited, strict=True)), options)
        else:
            _print(named, wanted, answer)
    finally:
        held.unpersist()


def _goes_straight_to_files(wanted: _Asked, answer: shared.Answer) -> bool:
    """Return whether the tasks that merge can write what is asked for."""
    return wanted.limit is None and not wanted.payloads and answer.format_ in (None, "parquet")


def _names(dialect: str, *, several: bool) -> list[str]:
    """The names of the directories of a dialect's tables; ``several``: others are beside them."""
    from journeyman.spark.replay import STATE_TABLES

    prefix = f"{dialect}." if several else ""
    return [f"{prefix}{name}" for name in STATE_TABLES[dialect]]


def _places(dialect: str, options: shared.SessionOptions, *, several: bool) -> dict[str, str]:
    from journeyman.spark.replay import STATE_TABLES

    names = _names(dialect, several=several)
    places = [f"{options.output}/{name}" for name in names]
    return dict(zip(STATE_TABLES[dialect], places, strict=True))


def _write_files(
    spark: SparkSession,
    read: Callable[..., DataFrame],
    dialect: str,
    options: shared.SessionOptions,
    answer: shared.Answer,
    *,
    several: bool,
) -> None:
    from journeyman.spark.data_sources import forget_reads
    from journeyman.spark.replay import write_states
    from journeyman.spark.source.options import DAMAGE_KIND

    places = _places(dialect, options, several=several)
    counts = write_states(read(), dialect, places, overwrite=answer.force)
    if DAMAGE_KIND not in counts:
        forget_reads(spark, dialect)


def _print(named: dict[str, DataFrame], wanted: _Asked, answer: shared.Answer) -> None:
    format_ = answer.format_ or ("table" if sys.stdout.isatty() else "json")
    for number, (name, frame) in enumerate(named.items()):
        if format_ == "table":
            _print_table(name, frame, wanted, first=number == 0)
        else:
            _print_all(name, _limited(frame, wanted.limit), format_)


def _print_table(name: str, frame: DataFrame, wanted: _Asked, *, first: bool) -> None:
    from journeyman.spark.answers import answer_lines, first_rows

    limit = wanted.limit if wanted.limit is not None else _SHOWN_ROWS
    rows, count = first_rows(frame, _columns_to_show(name, frame, wanted), limit)
    with Output() as output:
        output.line(f"{'' if first else chr(10)}# {name}: {count:,}{_cut(count, limit)}")
        if count and limit:
            for line in answer_lines(rows, "table"):
                output.line(line)


def _cut(rows: int, limit: int) -> str:
    return f", the first {limit:,}" if 0 < limit < rows else ""


def _columns_to_show(name: str, frame: DataFrame, wanted: _Asked) -> list[str]:
    """The columns for people; those of the path (host=...) stand at the end of the table."""
    from journeyman.spark.replay import table_schema

    own = [each for each in _COLUMNS_FOR_PEOPLE[name] if wanted.payloads or each not in _PAYLOADS]
    known = set(table_schema(name).names)
    return own + [column for column in frame.columns if column not in known]


def _print_all(name: str, frame: DataFrame, format_: str) -> None:
    from journeyman.spark.answers import answer_lines, with_table_name

    with Output() as output:
        for line in answer_lines(with_table_name(frame, name), format_):
            output.line(line)


def _limited(frame: DataFrame, limit: int | None) -> DataFrame:
    return frame if limit is None else frame.limit(limit)
