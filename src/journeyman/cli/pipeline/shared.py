"""The shared part of pipeline commands: which logs are read, the Spark session, and the answer.

    @click.command()
    @click.argument("logs", nargs=-1, required=True)
    @session_options
    @answer_options
    def history(logs, options: SessionOptions, answer: Answer):
        with pipeline_session(options, logs) as spark:
            answer.give(frame, options)                     # one table
            answer.give({"jobs": a, "rules": b}, options)   # several: each named, each a directory

**Logs** are found by ``spark.discovery``. With --dialect the source takes the paths as they are,
with all it knows of globs and ``host=*`` directories. Paths, local or not (s3://...), and lakes are
checked before Java starts. With a Spark Connect server and --dialect they are not: its machines may
see other files.

**Ctrl-C** while Spark works: its jobs are cancelled, then the command, or the statement, ends.

    SIGINT --> a thread cancels all jobs, again and again --> the main thread's call fails
           --> KeyboardInterrupt, once it is safe            (a second SIGINT: at once)

pyspark's own handler cancels from the middle of whatever call it interrupts, over the connection
which that call is using: that leaves the job running and a trace on stderr. So the signal only
wakes a thread here, which has a connection of its own. It asks more than once because a job may
begin between two of the calls of one command.

**The answer.** ``--explain`` prints the plan of each table and runs nothing. Without ``--output`` a
table goes to stdout; with it, Spark writes a directory of files (with several tables, one directory
in it for each). Commands that change logs answer with one line per log (``tell``).
"""

from __future__ import annotations

import functools
import os
import posixpath
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from journeyman.cli.errors import debug_asked, sentence, warn
from journeyman.cli.output import Output, counted, json_line
from journeyman.disk import ReadingDisk
from journeyman.errors import JourneymanError, UsageError
from journeyman.logs.catalog import ZTICK

if TYPE_CHECKING:
    from journeyman.spark.maintenance import MaintenanceResult
    from journeyman.spark.session import DataFrame, SparkSession


SMALL_BYTES = 64 * 1024 * 1024
TINY_BYTES = 8 * 1024 * 1024
_AGAIN_S = 0.2
pipeline_dialect_option = click.option(
    "--dialect",
    type=click.Choice(["ztick", "workq", "kestrel"]),
    help="Dialect of the logs, instead of detecting it.",
)
runs_option = click.option(
    "--runs", metavar="DIR", help="ztick: where the runs were recorded, if not beside the log."
)
lake_option = click.option(
    "--lake", metavar="DIR|URI", help="Read this lake instead of logs; see `pipeline ingest`."
)


def logs_or_lake(
    paths: Sequence[str], dialect: str | None, lake: str | None, *, ledger: bool = False
) -> dict[str, list[str]]:
    """The paths to read, by dialect; none if a lake is to be read. Raises UsageError."""
    if bool(paths) == (lake is not None):
        raise UsageError("give LOGS, or a lake with --lake: one of the two")
    if lake is None:
        return logs_by_dialect(paths, dialect, ledger=ledger)
    from journeyman.spark.lakes.storage import open_lake

    open_lake(lake)
    return {}


def logs_by_dialect(
    paths: Sequence[str],
    dialect: str | None = None,
    *,
    ledger: bool = False,
    unreadable: list[str] | None = None,
) -> dict[str, list[str]]:
    """The paths to read, by dialect. Raises UsageError when there is no log at one of them.

    A ledger says more about the logs beside it; only ``ledger`` wants it for itself. What cannot
    be looked at goes to ``unreadable``, if that is given and anything else was found.
    """
    if dialect is not None:
        if not _is_remote():
            from journeyman.spark.files import find_source_logs
            from journeyman.spark.source.options import SourceOptions

            find_source_logs(SourceOptions(dialect, tuple(paths)))
        return {dialect: list(paths)}
    from journeyman.spark import discovery

    errors: list[OSError] | None = None if unreadable is None else []
    found = discovery.logs_by_dialect(paths, ledger=ledger, warn=warn, errors=errors)
    if unreadable is not None:
        unreadable += [f"left out: {sentence(error)}" for error in errors or ()]
    return found


def input_bytes(paths: Iterable[str]) -> int:
    """How much is to be read, as far as it is small; 0 if that is not known."""
    total = 0
    for path in paths:
        for size in _sizes(path):
            total += size
            if total > SMALL_BYTES:
                return total
    return total


def local_only(*paths: str) -> None:
    """Raises UsageError for a path at which no log can be written or changed."""
    from journeyman.spark.files import absolute, refuse_uri

    for path in paths:
        refuse_uri(absolute(path))


def check_free(output: str, *, force: bool) -> None:
    """Raises UsageError if there is something at --output, unless it may be replaced."""
    if force or _is_remote():  # the machines of a Spark Connect server may see other files
        return
    from journeyman.spark import tables

    tables.check_free(output)


def check_runs(logs: Mapping[str, Sequence[str]], runs: str | None) -> None:
    """Raises UsageError if --runs does not name the runs of one log."""
    if runs is None:
        return
    if ZTICK not in logs:
        raise UsageError("--runs is for the log of a schedule: give one")
    from journeyman.spark.history.ztick_attempts import run_directories
    from journeyman.spark.source.options import SourceOptions

    if not _is_remote():
        run_directories(SourceOptions(ZTICK, tuple(logs[ZTICK])), [runs])


def _is_remote() -> bool:
    """True if a Spark Connect server was asked for, by option or by the environment."""
    context = click.get_current_context(silent=True)
    asked = None if context is None else context.params.get("remote")
    return bool(asked or os.environ.get("SPARK_REMOTE"))


def _sizes(path: str) -> Iterator[int]:
    """The sizes of a file, or of all files below a directory."""
    from journeyman.spark.files import disk_at

    disk = disk_at(path)
    if disk.exists(path):
        yield from _sizes_on(disk, path)


def _sizes_on(disk: ReadingDisk, path: str) -> Iterator[int]:
    if not disk.is_dir(path):
        yield disk.size(path)
        return
    for name in disk.list_dir(path):
        with suppress(FileNotFoundError):  # removed since
            yield from _sizes_on(disk, posixpath.join(path, name))


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """Options of the Spark session. The answer goes to ``output``; None means stdout."""

    master: str | None = None
    remote: str | None = None
    conf: dict[str, str] = field(default_factory=dict)
    output: str | None = None
    explain: bool = False
    quiet: bool = False
    salvage: bool = False


_OPTIONS = (
    click.option("--master", metavar="URL", help="Where Spark runs. [default: local[*]]"),
    click.option("--remote", metavar="URL", help="A Spark Connect server, sc://HOST:PORT."),
    click.option("--conf", metavar="NAME=VALUE", multiple=True, help="A Spark setting."),
    click.option("--output", "-o", metavar="PATH", help="Where the result goes."),
    click.option("--explain", is_flag=True, help="Print the plan without running it."),
    click.option(
        "--salvage",
        is_flag=True,
        help="Also accept bytes inside damage that only look like a record.",
    ),
    click.option("--quiet", "-q", is_flag=True, help="No progress and no remarks."),
)


def session_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the shared options; it gets them as one argument ``options``."""

    @functools.wraps(command)
    def gathered(
        *args: Any,
        master: str | None,
        remote: str | None,
        conf: tuple[str, ...],
        output: str | None,
        explain: bool,
        quiet: bool,
        salvage: bool,
        **others: Any,
    ) -> Any:
        options = SessionOptions(master, remote, _settings(conf), output, explain, quiet, salvage)
        return command(*args, options=options, **others)

    for option in reversed(_OPTIONS):
        gathered = option(gathered)
    return gathered


def _settings(pairs: tuple[str, ...]) -> dict[str, str]:
    settings = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not (name and equals):
            raise click.BadParameter(f"{pair!r}: write NAME=VALUE", param_hint="--conf")
        settings[name.strip()] = value
    return settings


@contextmanager
def pipeline_session(
    options: SessionOptions, logs: Sequence[str] = (), *, changes_logs: bool = False
) -> Iterator[SparkSession]:
    """The Spark session of a command; it ends with the command, unless it was there before.

    ``logs`` are the paths that will be read: if they are small, Spark starts quicker. When all is
    done a warning says how much of what was read is damaged; a command that ``changes_logs`` leaves
    damaged ones alone and says so itself.
    """
    if changes_logs and options.salvage:
        raise UsageError("--salvage is for reading: this command changes no damaged log")
    from journeyman.spark.session import active_session, build_session, cancel_all, end_session

    was_there = active_session() is not None
    size = 0 if was_there or _is_remote() else input_bytes(logs)
    spark = build_session(
        options.master,
        options.conf,
        remote=options.remote,
        small=0 < size <= SMALL_BYTES,
        tiny=0 < size <= TINY_BYTES,
        progress=not options.quiet and sys.stderr.isatty(),
        log_level="warn" if _is_debugging() else "fatal",
    )
    from journeyman.spark.data_sources import begin_command

    begin_command(spark, options.salvage)
    try:
        with interruptible(lambda: cancel_all(spark)):
            yield spark
            if not (options.quiet or options.explain or changes_logs):
                warn_of_damage(spark)
    finally:
        if not was_there:
            end_session(spark)


def warn_of_damage(spark: SparkSession) -> None:
    """One line about the damage in the logs that were read, if there is any."""
    from journeyman.spark.data_sources import measure_damage

    damage = measure_damage(spark)
    if damage.places:
        where = damage.file if damage.files == 1 else counted(damage.files, "file")
        warn(
            f"{where}: {counted(damage.damaged_bytes, 'byte')} in "
            f"{counted(damage.places, 'place')} damaged and skipped, "
            f"at least {counted(damage.records, 'record')} lost; `journeyman verify` says which"
        )


def _is_debugging() -> bool:
    context = click.get_current_context(silent=True)
    asked = context is not None and bool(context.find_root().params.get("debug"))
    return asked or debug_asked(())


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
        raise UsageError(
            f"archives are turned off or cannot be stored: unset {SWITCH}, or set XDG_CACHE_HOME"
        )
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


@contextmanager
def interruptible(cancel: Callable[[], object]) -> Iterator[None]:
    """Let Ctrl-C call ``cancel`` and end the block by KeyboardInterrupt."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    asked, ended = threading.Event(), threading.Event()

    def on_signal(*_: object) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()
        threading.Thread(target=_keep_cancelling, args=(cancel, ended), daemon=True).start()

    with _handler(on_signal):
        try:
            yield
        except Exception:
            if asked.is_set():
                raise KeyboardInterrupt from None
            raise
        finally:
            ended.set()
        if asked.is_set():
            raise KeyboardInterrupt


@contextmanager
def plainly_interruptible() -> Iterator[None]:
    """Let Ctrl-C be what it is in any Python program: KeyboardInterrupt, at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with _handler(signal.default_int_handler):
        yield


@contextmanager
def _handler(handler: Callable[..., object]) -> Iterator[None]:
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _keep_cancelling(cancel: Callable[[], object], ended: threading.Event) -> None:
    cancel()
    while not ended.wait(_AGAIN_S):
        cancel()


@dataclass(frozen=True, slots=True)
class Answer:
    """How the answer is wanted. ``format_`` None: a table on stdout, Parquet in files."""

    format_: str | None = None
    force: bool = False

    def check(self, options: SessionOptions, *tables: str) -> None:
        """Raises UsageError if the answer cannot go where it is to go; ``tables`` are the names of
        several. It is asked before Java starts."""
        if options.explain:
            return
        if options.output is None:
            if self.format_ == "parquet":
                raise UsageError("--format parquet is for files: give --output PATH")
        elif self.format_ == "table":
            raise UsageError("--format table is for the screen: choose parquet, csv or json")
        else:
            for name in tables or ("",):
                check_free(posixpath.join(options.output, name), force=self.force)

    def give(self, tables: DataFrame | Mapping[str, DataFrame], options: SessionOptions) -> None:
        """Print, write or explain the tables."""
        named = dict(tables) if isinstance(tables, Mapping) else {"": tables}
        if options.explain:
            explain(named)
        elif options.output is None:
            self._print(named)
        else:
            self._write(named, options.output)

    def _print(self, named: Mapping[str, DataFrame]) -> None:
        from journeyman.spark.answers import answer_lines

        format_ = self.format_ or "table"
        with Output() as output:
            for number, (name, frame) in enumerate(named.items()):
                if name and format_ != "json":
                    output.line(f"{'' if number == 0 else chr(10)}# {name}")
                for line in answer_lines(frame, format_):
                    output.line(line)

    def _write(self, named: Mapping[str, DataFrame], output: str) -> None:
        from journeyman.spark.answers import write_answer

        format_ = self.format_ or "parquet"
        for name, frame in named.items():
            path = posixpath.join(output, name) if name else output
            write_answer(frame, path, format_, overwrite=self.force)


def explain(tables: Mapping[str, DataFrame]) -> None:
    """Print the plan of each table."""
    from journeyman.spark.answers import plan_of

    with Output() as output:
        for name, frame in tables.items():
            if name:
                output.line(f"# {name}")
            output.line(plan_of(frame))


def answer_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """--format and --force; the command gets them as one argument ``answer``."""

    @functools.wraps(command)
    def gathered(*args: Any, format_: str | None, force: bool, **others: Any) -> Any:
        return command(*args, answer=Answer(format_, force), **others)

    gathered = click.option("--force", is_flag=True, help="Replace the contents of --output.")(
        gathered
    )
    return click.option(
        "--format",
        "format_",
        type=click.Choice(["table", "csv", "json", "parquet"]),
        help="[default: table; parquet with --output]",
    )(gathered)


def tell(outcomes: Iterable[MaintenanceResult], *, json: bool) -> None:
    """Print what became of each log, in JSON or words, one line each.

    Exit code 0: every log was treated, or had nothing to gain; 1: at least one was left as it was
    for a reason that its line gives.
    """
    failed = False
    with Output() as output:
        for outcome in outcomes:
            failed = failed or outcome.error is not None
            output.line(json_line(outcome.as_dict()) if json else _describe(outcome))
    if failed:
        click.get_current_context().exit(1)


def refuse_output(options: SessionOptions) -> None:
    if options.output is not None:
        raise UsageError("the logs are changed where they are: leave --output out")


def _describe(outcome: MaintenanceResult) -> str:
    if outcome.error is not None:
        return f"{outcome.log}: left as it was: {outcome.error}"
    if not outcome.changed:
        return f"{outcome.log}: {counted(outcome.records_before, 'record')}, nothing to gain"
    return (
        f"{outcome.log}: {counted(outcome.records_before, 'record')} read, "
        f"{outcome.records_after} kept; {outcome.bytes_before} bytes read, "
        f"{outcome.bytes_after} kept"
    )
