"""``journeyman storage follow`` and ``rebuild``: the store as the index of the work queue's log.

The server starts ``follow`` by itself where ``storage.engine`` is set; by hand it is for a log that
no server with a store has open, such as a copy.
"""

from __future__ import annotations

import signal
from types import FrameType

import click

from journeyman.cli.output import counted, progress, quiet_option
from journeyman.cli.storage.checking import existing_backend
from journeyman.clock import SystemClock
from journeyman.config import Settings
from journeyman.disk import disk_of
from journeyman.errors import UsageError
from journeyman.servers.index.child import POLL_S
from journeyman.servers.index.follower import Follower
from journeyman.storage import Storage
from journeyman.storage.checking import be_alone
from journeyman.storage.checking import rebuild as rebuild_store
from journeyman.storage.facade import shown_place


@click.command()
@click.option("--once", is_flag=True, help="Stop at the end of the log.")
@click.pass_context
def follow(ctx: click.Context, once: bool) -> None:
    """Keep the store the index of the work queue's log (workq.cmdlog_path), until stopped.

    `journeyman serve` does this by itself where storage.engine is set.
    """
    settings: Settings = ctx.meta["journeyman.settings"]
    log = settings.workq.cmdlog_path
    if not disk_of(log).is_dir(log):
        raise UsageError(f"there is no command log at {log}: see workq.cmdlog_path")
    with Storage.from_settings(settings.storage) as storage:
        be_alone(storage.backend)
        follower = Follower.of_settings(settings, storage, lambda text: click.echo(text, err=True))
        stopped = _stopping()
        while not stopped:
            if not follower.step():
                if once:
                    break
                SystemClock().sleep(POLL_S)
        click.echo(f"the store is at {follower.position}")


@click.command()
@quiet_option
@click.pass_context
def rebuild(ctx: click.Context, quiet: bool) -> None:
    """Rebuild the store: its indexes from the records, its records from the work queue's log.

    Archived jobs, which the log no longer has, are kept. Stop the server first.
    """
    settings: Settings = ctx.meta["journeyman.settings"]
    backend = existing_backend(settings.storage)
    try:
        be_alone(backend)
        about = backend.entries_about() // 6
        with progress("rebuilding", about, quiet=quiet, worth=100_000) as advance:
            done = rebuild_store(backend, advance)
        unread = f"; {done.unreadable} cannot be read and are in no index" * bool(done.unreadable)
        click.echo(f"{counted(done.jobs, 'job')} indexed again{unread}")
        log = settings.workq.cmdlog_path
        if disk_of(log).is_dir(log):
            storage = Storage(backend, shown_place(settings.storage))
            jobs = Follower.of_settings(settings, storage, _unsaid).rebuild("")
            click.echo(f"{counted(jobs, 'job')} of {log} indexed, at {storage.position()}")
    finally:
        backend.close()


def _unsaid(text: str) -> None:
    """The command has its own words."""


def _stopping() -> list[int]:
    """Empty until SIGTERM or SIGINT has come."""
    signals: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        signals.append(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, note)
    return signals
