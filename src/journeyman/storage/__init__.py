"""The store of job records: a facade for queues and jobs, over engines that keep ordered keys.

    facade.py        queues and jobs: what the rest of the program uses
    operations.py    what can be asked of a job;  drafts.py  a turn of them -> changed keys
    records.py       a record -> the keys of its indexes
    pages.py         listings by cursor and by number;  ranks.py  how a number finds its place
    group_commit.py  many threads, one commit
    contract.py      what an engine must do: views, turns, scans
    directory_lock.py  one work queue, import or rebuild of a store at a time
    opening.py       engines by name;  options.py, paths.py  what is asked of them
    rocksdb.py, sqlite.py, postgres.py, memory.py      the engines

docs/storage.md is the page about it.
"""

from __future__ import annotations

from journeyman.config import StorageMode
from journeyman.storage.contract import EngineOptions
from journeyman.storage.facade import QueueCount, Storage, StoredQueues
from journeyman.storage.pages import Page, Unreadable
from journeyman.storage.transaction import (
    Operation,
    OperationOutcome,
    PutQueue,
    RemoveJob,
    SetStatus,
    Upsert,
)

__all__ = [
    "EngineOptions",
    "Operation",
    "OperationOutcome",
    "Page",
    "PutQueue",
    "QueueCount",
    "RemoveJob",
    "SetStatus",
    "Storage",
    "StorageMode",
    "StoredQueues",
    "Unreadable",
    "Upsert",
]
