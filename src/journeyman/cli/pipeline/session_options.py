"""What every pipeline command shares: its options, and the Spark session they ask for.

@click.command()
@click.argument("logs", nargs=-1, required=True)
@session_options
def replay(logs, options: SessionOptions):
    with pipeline_session(options) as spark:
        ...

Ctrl-C while Spark works: its jobs are cancelled, then the command, or the statement, ends.

    SIGINT --> a thread cancels all jobs, again and again --> the main thread's call fails
           --> KeyboardInterrupt, once it is safe            (a second SIGINT: at once)

pyspark's own handler cancels from the middle of whatever call it interrupts, over the connection
which that call is using: that leaves the job running and a trace on stderr. So the signal only
wakes a thread here, which has a connection of its own. It asks more than once because a job may
begin between two of the calls of one command.
"""

from __future__ import annotations

import functools
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from journeyman.cli.errors import debug_asked, warn
from journeyman.cli.output import counted
from journeyman.cli.pipeline.log_paths import TINY_BYTES, is_small
from journeyman.errors import UsageError

if TYPE_CHECKING:
    from journeyman.spark.session import SparkSession

_AGAIN_S = 0.2


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
class SessionOptions:
    """What was asked of the session. ``output`` is where the answer goes; None means stdout."""

    master: str | None = None
    remote: str | None = None
    conf: dict[str, str] = field(default_factory=dict)
    output: str | None = None
    explain: bool = False
    quiet: bool = False
    salvage: bool = False


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


_OPTIONS = (
    click.option("--master", metavar="URL", help="Where Spark runs. [default: local[*]]"),
    click.option("--remote", metavar="URL", help="A Spark Connect server, sc://HOST:PORT."),
    click.option("--conf", metavar="NAME=VALUE", multiple=True, help="A Spark setting."),
    click.option("--output", "-o", metavar="PATH", help="Where the answer goes."),
    click.option("--explain", is_flag=True, help="Print the plan and do not run it."),
    click.option(
        "--salvage", is_flag=True, help="Also accept what merely looks like a record inside damage."
    ),
    click.option("--quiet", "-q", is_flag=True, help="No progress and no remarks."),
)


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
    spark = build_session(
        options.master,
        options.conf,
        remote=options.remote,
        small=is_small(logs),
        tiny=is_small(logs, TINY_BYTES),
        progress=not options.quiet and sys.stderr.isatty(),
        log_level="warn" if _is_debugging() else "fatal",
    )
    from journeyman.spark.source import begin_command

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
    from journeyman.spark.source import measure_damage

    damage = measure_damage(spark)
    if damage.places:
        where = damage.file if damage.files == 1 else counted(damage.files, "file")
        warn(
            f"{where}: {counted(damage.damaged_bytes, 'byte')} in "
            f"{counted(damage.places, 'place')} damaged and passed over, "
            f"at least {counted(damage.records, 'record')} lost; `journeyman verify` says which"
        )


def _is_debugging() -> bool:
    context = click.get_current_context(silent=True)
    asked = context is not None and bool(context.find_root().params.get("debug"))
    return asked or debug_asked(())
