"""``journeyman storage adopt LOG``: a schedule moves from its log into the store.

    schedule.log  --fold--> jobs and rules  --+
    ledger/       --fold--> timetables, ... --+--> the store, for database.persistence = "storage"

The log is locked meanwhile, read and left as it is. A store that has a schedule is refused: two
schedules cannot be told apart once they are mixed. Where the store has jobs of a work queue, what
it says of them is newer: records of the ledger about jobs and queues are left out then. Jobs and
rules come last, in one commit: cut short before, it is begun again.
"""

from __future__ import annotations

import os

import click

from journeyman.cli.output import counted
from journeyman.cli.storage.checking import be_alone
from journeyman.disk import RealDisk
from journeyman.engines.workq.extensions import FAMILIES
from journeyman.errors import UsageError
from journeyman.folds import ztick
from journeyman.folds.ledger import key_of
from journeyman.formats.keyspace.keys import prefix_range
from journeyman.formats.ledger import TimesMarked
from journeyman.formats.ztick import CODEC, JobSet, RuleSet
from journeyman.logs.catalog import load_order
from journeyman.logs.damage import Damage
from journeyman.logs.ledger.log import peek
from journeyman.logs.ledger.times import ledger_beside
from journeyman.logs.sealing import read_file
from journeyman.logs.segments import ZtickNames
from journeyman.storage import PutEntries, Storage
from journeyman.storage.checking import in_batches
from journeyman.storage.folded import SCHEDULE_PREFIX, folded_ledger, folded_schedule


@click.command("adopt")
@click.argument("log", type=click.Path(exists=True, dir_okay=False), metavar="LOG")
@click.option("--ledger", type=click.Path(), help="Its ledger. [default: ledger/ beside the log]")
@click.pass_context
def adopt(ctx: click.Context, log: str, ledger: str | None) -> None:
    """Copy the schedule of LOG, with its ledger, into a store that has none."""
    disk = RealDisk()
    lock = disk.lock(ZtickNames(log).lock)
    try:
        states, damages = _read(disk, log)
        side = peek(disk, ledger or ledger_beside(os.path.abspath(log))).values()
    finally:
        lock.release()
    with Storage.from_settings(ctx.obj) as storage:
        be_alone(storage.backend)
        with storage.backend.view() as view:
            if next(view.scan(*prefix_range(SCHEDULE_PREFIX), limit=1), None) is not None:
                raise UsageError(f"{storage.path} has a schedule: adopt into a store without one")
        has_work = bool(storage.queue_status_counts())
        whole = [r for r in side if not isinstance(r, TimesMarked)]  # they name places of a log
        kept = [r for r in whole if not has_work or key_of(r)[0] not in FAMILIES]
        left_out = len(whole) - len(kept)
        beside, schedule = folded_ledger(storage), folded_schedule(storage)
        for some in in_batches(kept):
            storage.apply([PutEntries(beside.changes(some))])
        # All at once: a schedule in part would run without the rest of it.
        storage.apply([PutEntries(schedule.changes(list(states.values())))])
    found = ztick.schedule(states)
    click.echo(
        f"{counted(len(found.jobs), 'job')}, {counted(len(found.rules), 'rule')} and "
        f"{counted(len(kept), 'record')} of the ledger adopted"
        + (f"; {counted(damages, 'damage')} of the log left out" if damages else "")
        + (f"; {counted(left_out, 'record')} left out: the store has jobs" if left_out else "")
    )


def _read(disk: RealDisk, log: str) -> tuple[dict[ztick.Key, JobSet | RuleSet], int]:
    """The fold of the log, and how many damages were passed."""
    records, damages = [], 0
    for path in load_order(log):
        if not disk.exists(path):
            continue
        for item in read_file(CODEC, disk.view(path)):
            if isinstance(item, Damage):
                damages += item.kind != "unsealed"  # never acknowledged
            else:
                records.append(item.record)
    return ztick.replay(records), damages
