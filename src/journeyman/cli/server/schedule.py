"""``journeyman timetable``: what runs again and again; ``rules``: what runs which jobs."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import click

from journeyman import client as clients
from journeyman.cli.server.connection import (
    connected,
    server_option,
    server_options,
    show,
    show_one,
)
from journeyman.cli.server.runs import run_row, runs_of
from journeyman.client.ztick.calls import TimetableStatus
from journeyman.errors import JourneymanError, TimetableError, UsageError
from journeyman.protocols.ztick import grammar
from journeyman.timetables import occurrences_of
from journeyman.timetables.run_options import option_text
from journeyman.timetables.timetable import CALENDAR, CATCH_UP, OVERLAP, parse_zoned_time
from journeyman.timetables.zones import zone_of

LAST_RUNS = 10
SHOWN_CHARS = 60  # a longer definition is cut in a list

_FIELDS = (
    ("cron", "EXPRESSION", "Cron expression: minute hour day month weekday, or @daily, ..."),
    ("every", "DURATION", "Interval: 30s, 15m, 1h30m, 2d."),
    ("at", "TIME,...", "These moments."),
    ("tz", "ZONE", "Time zone, an IANA name. [default: UTC]"),
    ("anchor", "TIME", "--every counts from here. [default: 1970-01-01]"),
    ("from", "TIME", "No occurrence before this time."),
    ("until", "TIME", "No occurrence at or after this time."),
    ("calendar", "|".join(CALENDAR), "All days, or Monday to Friday. [default: all]"),
    ("exclude", "DAY,...", "Days without an occurrence: 2026-12-24, or 12-25 of every year."),
    ("jitter", "DURATION", "Spread occurrences by up to this time."),
    ("catch-up", "|".join(CATCH_UP), "What to do about missed occurrences. [default: once]"),
    ("catch-up-limit", "N", "Catch up at most the last N. [default: 100]"),
    ("grace", "DURATION", "How late an occurrence may start before it is missed. [default: 1m]"),
    ("overlap", "|".join(OVERLAP), "What to do while the previous run goes on. [default: skip]"),
    ("retries", "N", "How often to retry a failed run. [default: 0]"),
    ("backoff", "FIRST,FACTOR,LONGEST", "Delays of the retries. [default: 10s,2,1h]"),
    ("expect", "DURATION", "Report an occurrence that has not succeeded by then."),
    ("check-in", "URL", "Ask this URL after every occurrence; {status} is ok or error."),
)
_OPTIONS = (
    ("on-failure", "WORDS", "Report failures: 'mail ops@example.com', 'http POST URL', ..."),
    ("timeout", "DURATION", "Longest run of the program."),
    ("directory", "PATH", "Directory of the program."),
    ("environment", "WORDS", "Its variables: 'A=1 B=2'."),
    ("user", "USER", "User of the program, one of runners.users."),
)


def _field_options(command: Any) -> Any:
    return _add_options(command, _FIELDS)


def _run_options(command: Any) -> Any:
    return _add_options(command, _OPTIONS)


def _add_options(command: Any, options: tuple[tuple[str, str, str], ...]) -> Any:
    for name, metavar, text in reversed(options):
        variable = f"field_{name.replace('-', '_')}"
        command = click.option(f"--{name}", variable, metavar=metavar, help=text)(command)
    return command


def _fields(options: dict[str, str | None], runner: tuple[str, ...]) -> dict[str, Any]:
    fields: dict[str, Any] = {
        name.removeprefix("field_"): value for name, value in options.items() if value is not None
    }
    if runner:
        fields["runner"] = list(runner)
    try:
        return grammar.read_timetable(fields)[0].fields()
    except TimetableError as error:
        raise UsageError(str(error)) from None


@click.group()
def timetable() -> None:
    """Add and manage recurring jobs: every night, every 15 minutes, on the last Friday."""


@timetable.command("add", context_settings={"ignore_unknown_options": True})
@server_option
@_field_options
@_run_options
@click.argument("name")
@click.argument("runner", nargs=-1, type=click.UNPROCESSED, metavar="[RUNNER ARG...]")
def add_timetable(
    server: str | None, name: str, runner: tuple[str, ...], **options: str | None
) -> None:
    """Add or replace a timetable. Without RUNNER the rules decide what runs."""
    fields = _fields(options, runner)
    words = fields.pop("runner", None)
    made = grammar.read_runner(words) if words else None
    assert not isinstance(made, str)
    with connected(clients.Schedule, server) as schedule:
        schedule.set_timetable(name, runner=made, **fields)


@timetable.command("ls")
@server_options
@click.argument("prefix", default="")
def list_timetables(server: str | None, as_json: bool, prefix: str) -> None:
    """List the timetables whose name begins with PREFIX."""
    with connected(clients.Schedule, server) as schedule:
        found = sorted(schedule.timetables(prefix), key=lambda each: each.identifier)
    rows = [_row(each) for each in found]
    if as_json:
        show([row | {"fields": each.fields} for row, each in zip(rows, found, strict=True)], True)
    else:
        columns = ("timetable", "state", "next", "last", "definition")
        show([row | {"definition": _short(row["definition"])} for row in rows], False, columns)


def _short(text: str) -> str:
    return text if len(text) <= SHOWN_CHARS else f"{text[: SHOWN_CHARS - 3]}..."


@timetable.command("show")
@server_options
@click.argument("name")
def show_timetable(server: str | None, as_json: bool, name: str) -> None:
    """Show a timetable, its state and its last runs."""
    with connected(clients.Schedule, server) as schedule:
        found = schedule.timetable(name)
    if found is None:
        raise _unknown(name)
    last: list[dict[str, Any]] = []
    problem = ""
    try:
        last = [run_row(run) for run in runs_of(server, {"prefix": f"{name}@"}, LAST_RUNS)]
    except JourneymanError as error:  # a server may have no HTTP port
        problem = str(error)
    if as_json:
        show_one(_row(found) | {"fields": found.fields, "runs": last}, True)
        return
    show_one(_row(found), False)
    click.echo()
    show(last, False)
    if not last:
        click.echo(f"its runs are not known: {problem}" if problem else "it has not run yet")


def _row(status: TimetableStatus) -> dict[str, Any]:
    row = asdict(status)
    del row["fields"], row["identifier"], row["next_ns"]
    return {
        "timetable": status.identifier,
        **row,
        "definition": " ".join(grammar.words_of(status.fields)),
    }


def _unknown(name: str) -> JourneymanError:
    return JourneymanError(f"no timetable {name!r} on this server")


@timetable.command("pause")
@server_option
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
def pause_timetables(server: str | None, names: tuple[str, ...]) -> None:
    """Run no further occurrences until the timetable is resumed."""
    with connected(clients.Schedule, server) as schedule:
        for name in names:
            schedule.pause_timetable(name)


@timetable.command("resume")
@server_option
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
def resume_timetables(server: str | None, names: tuple[str, ...]) -> None:
    """Continue with the next occurrence; missed ones are not caught up."""
    with connected(clients.Schedule, server) as schedule:
        for name in names:
            schedule.resume_timetable(name)


@timetable.command("rm")
@server_option
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
def remove_timetables(server: str | None, names: tuple[str, ...]) -> None:
    """Remove timetables and their planned occurrences."""
    with connected(clients.Schedule, server) as schedule:
        for name in names:
            if not schedule.remove_timetable(name):
                raise _unknown(name)


@timetable.command("run")
@server_options
@click.argument("name")
def run_timetable(server: str | None, as_json: bool, name: str) -> None:
    """Run a timetable once now and print the id of the job."""
    with connected(clients.Schedule, server) as schedule:
        job = schedule.run_timetable(name)
    if as_json:
        show([{"job": job}], True)
    else:
        click.echo(job)


@timetable.command("next")
@server_options
@click.option(
    "-n",
    "count",
    type=click.IntRange(1, grammar.MAX_FIRINGS),
    default=grammar.DEFAULT_FIRINGS,
    help="How many.",
)
@_field_options
@click.argument("name", required=False)
def next_firings(
    server: str | None, as_json: bool, count: int, name: str | None, **options: str | None
) -> None:
    """Show the next occurrences of a timetable, or of one that is given here by options.

    Warns about those that daylight saving time moves, doubles or drops.
    """
    if name is None:
        fields = _fields(options, ())
        now_s = int(datetime.now(UTC).timestamp())
        firings = occurrences_of(grammar.read_timetable(fields)[0]).firings(now_s, count)
    elif any(value is not None for value in options.values()):
        raise UsageError("give the name of a timetable or options, not both")
    else:
        with connected(clients.Schedule, server) as schedule:
            firings = schedule.next_firings(name, count)
    rows = [{"local": f.local, "utc": f.utc, "warning": f.warning or None} for f in firings]
    show(rows, as_json)


@timetable.command("backfill")
@server_options
@click.option("--preview", is_flag=True, help="Only show what would run.")
@click.argument("name")
@click.argument("begin", metavar="FROM")
@click.argument("until")
def backfill(
    server: str | None, as_json: bool, preview: bool, name: str, begin: str, until: str
) -> None:
    """Run the occurrences from FROM until UNTIL that have not succeeded.

    Times without an offset are in UTC.
    """
    try:
        times = [
            parse_zoned_time(text, zone_of("UTC"), word)
            for text, word in ((begin, "from"), (until, "until"))
        ]
    except TimetableError as error:
        raise UsageError(str(error)) from None
    first, last = (datetime.fromtimestamp(at_s, UTC) for at_s in times)
    with connected(clients.Schedule, server) as schedule:
        found = schedule.backfill(name, first, last, preview=preview)
    rows = [
        {
            "job": job.identifier,
            "status": job.status.word if job.status else None,
            "runs": job.is_run,
        }
        for job in found
    ]
    show(rows, as_json)


@click.group()
def rules() -> None:
    """List, add and remove rules of the schedule."""


@rules.command("ls")
@server_options
def list_rules(server: str | None, as_json: bool) -> None:
    """List the rules."""
    with connected(clients.Schedule, server) as schedule:
        found = schedule.rules()
    show(
        [
            {
                "rule": r.identifier,
                "pattern": r.pattern,
                "runner": " ".join(grammar.runner_words(r.runner)),
                "options": r.options
                if as_json
                else " ".join(f"{name}={option_text(value)}" for name, value in r.options.items()),
            }
            for r in found
        ],
        as_json,
    )


@rules.command("add", context_settings={"ignore_unknown_options": True})
@server_option
@_run_options
@click.argument("rule")
@click.argument("pattern")
@click.argument("runner", nargs=-1, required=True, type=click.UNPROCESSED, metavar="RUNNER ARG...")
def add_rule(
    server: str | None, rule: str, pattern: str, runner: tuple[str, ...], **options: str | None
) -> None:
    """Add or replace a rule: RUNNER runs jobs whose id begins with PATTERN."""
    read = grammar.read_runner(runner)
    if isinstance(read, str):
        raise UsageError(read)
    given = {
        name.removeprefix("field_"): value for name, value in options.items() if value is not None
    }
    try:
        grammar.read_run_options(given, read)
    except TimetableError as error:
        raise UsageError(str(error)) from None
    with connected(clients.Schedule, server) as schedule:
        schedule.set_rule(rule, pattern, read, **given)


@rules.command("rm")
@server_option
@click.argument("names", nargs=-1, required=True, metavar="RULE...")
def remove_rules(server: str | None, names: tuple[str, ...]) -> None:
    """Remove rules."""
    with connected(clients.Schedule, server) as schedule:
        for name in names:
            if not schedule.remove_rule(name):
                raise JourneymanError(f"no rule {name!r} on this server")
