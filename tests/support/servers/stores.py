"""The store of a server that has stopped, looked into."""

from __future__ import annotations

from pathlib import Path

from journeyman.storage import Storage
from journeyman.storage.checking import check


def opened(directory: Path, engine: str = "rocksdb") -> Storage:
    return Storage.open(engine, str(directory / "store"))


def is_whole(directory: Path, engine: str = "rocksdb") -> bool:
    with opened(directory, engine) as storage, storage.backend.view() as view:
        return list(check(view)) == []
