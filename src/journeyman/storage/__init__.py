"""The store of job records: a facade for queues and jobs, over engines that keep ordered keys.

    facade.py        queues and jobs: what the rest of the program uses; many threads, one commit
    transaction.py   what can be asked of a job; a turn of it -> changed keys
    records.py       a record -> the keys of its indexes
    pages.py         listings by cursor and by number
    checking.py      do the indexes follow from the records? and making them again
    contract.py      what an engine must do: views, turns, scans; its options, paths and lock
    opening.py       engines by name; copying a store
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
    RemoveJob,
    SetStatus,
    Upsert,
)

__all__ = [
    "EngineOptions",
    "Operation",
    "OperationOutcome",
    "Page",
    "QueueCount",
    "RemoveJob",
    "SetStatus",
    "Storage",
    "StorageMode",
    "StoredQueues",
    "Unreadable",
    "Upsert",
]
