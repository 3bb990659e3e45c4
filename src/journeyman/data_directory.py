"""The data directory: one place for everything that the services keep, and what is where in it.

    journeyman-data/            data.directory, or serve --data DIR
        schedule.log            the schedule's log, with schedule.log.lock and so on beside it
        schedule.log.runs/      a line for each run
        quarantine/             damaged bytes of schedule.log, if there were any
        workq/                  the command log of the work queue
        kestrel/                the journals of the fan-out queues
        ledger/                 what these logs cannot hold: timetables, limits, pauses, times
        namespaces.secret       makes ids of namespaces unforeseeable, if tokens have some
        series/                 figures over time, counted from the logs
        cache/                  what can be made again: reports of the console
        store/                  the store, for those who ask for one

A setting that names a path of its own wins over the place here. `verify`, `dump` and the pipeline
find the logs of a data directory by these names.
"""

from __future__ import annotations

import os
from typing import Final

DEFAULT_DIRECTORY: Final = "journeyman-data"
SCHEDULE_LOG: Final = "schedule.log"
WORKQ_DIRECTORY: Final = "workq"
KESTREL_DIRECTORY: Final = "kestrel"
LEDGER_DIRECTORY: Final = "ledger"
STORE_DIRECTORY: Final = "store"
CACHE_DIRECTORY: Final = "cache"
NAMESPACE_SECRET: Final = "namespaces.secret"

# The settings that name a place, and where it is unless they do.
PLACES: Final = {
    "database.logfile_path": SCHEDULE_LOG,
    "workq.cmdlog_path": WORKQ_DIRECTORY,
    "kestrel.queue_path": KESTREL_DIRECTORY,
    "ledger.path": LEDGER_DIRECTORY,
}


def default_place(name: str) -> str:
    """The path that the setting of this name has when nothing is said."""
    return os.path.join(DEFAULT_DIRECTORY, PLACES[name])
