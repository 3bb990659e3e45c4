"""Records of a log in the store: of each key the last one, as the fold of that log has it.

    <prefix><family>:=<key>      number (8 bytes, big endian) | the record, as its log holds it
    <prefix><family>:#<digest>   the same, of a key that is too long for an engine

    schedule   v1:ztick:job:=backup    v1:ztick:rule:=backup
    ledger     v1:ledger:timetable:=nightly

The number says in which order records were written: loaded in that order, they are the compacted
log. A record that removes its key removes the entry. Nothing is indexed: a server loads all of it
at its start and reads it never again.

Not here: queues and jobs of the work queue, which are found in many ways (records.py).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from threading import Lock
from typing import Any, Final, Generic, TypeVar

from journeyman.errors import FormatError
from journeyman.folds import ledger as ledger_fold
from journeyman.folds import ztick as ztick_fold
from journeyman.formats import ledger as ledger_format
from journeyman.formats import ztick as ztick_format
from journeyman.formats.framing import Codec
from journeyman.formats.keyspace.keys import prefix_range
from journeyman.storage.contract import Changes
from journeyman.storage.facade import Storage

SCHEDULE_PREFIX: Final = b"v1:ztick:"
LEDGER_PREFIX: Final = b"v1:ledger:"

_NUMBER_BYTES: Final = 8
_LONGEST_KEY: Final = 1000  # bytes; an index of PostgreSQL takes 2,700

R = TypeVar("R")
Report = Callable[[bytes, str], None]  # a key, and why its record was skipped


class FoldedRecords(Generic[R]):
    """One log of a store. ``changes`` and ``load`` may be called from any thread."""

    def __init__(
        self,
        storage: Storage,
        prefix: bytes,
        codec: Codec[R],
        key_of: Callable[[R], tuple[str, str]],
        removes: Callable[[R], bool],
    ) -> None:
        self._storage = storage
        self._prefix = prefix
        self._codec = codec
        self._key_of = key_of
        self._removes = removes
        self._lock = Lock()
        self._next = 0  # known once it was loaded

    def load(self, each: Callable[[R], None], report: Report, family: str = "") -> int:
        """Every record in the order of writing, or those of a family; how many there are."""
        prefix = self._prefix + (f"{family}:".encode() if family else b"")
        with self._storage.backend.view() as view:
            entries = sorted(view.scan(*prefix_range(prefix)), key=itemgetter(1))
        for key, value in entries:
            try:
                entry = self._codec.decode(value, _NUMBER_BYTES)
            except FormatError as error:
                report(key, str(error))
                continue
            if entry is None:
                report(key, "it holds no record")
            else:
                each(entry.record)
        if entries:
            with self._lock:
                last = int.from_bytes(entries[-1][1][:_NUMBER_BYTES])
                self._next = max(self._next, last + 1)
        return len(entries)

    def records(self, family: str = "") -> list[R]:
        """All that can be read, or those of a family."""
        found: list[R] = []
        self.load(found.append, lambda *_: None, family)
        return found

    def changes(self, records: Sequence[R]) -> Changes:
        """What these records change, if they are written next."""
        with self._lock:
            first, self._next = self._next, self._next + len(records)
        changed: dict[bytes, bytes | None] = {}
        for number, record in enumerate(records, first):
            value = number.to_bytes(_NUMBER_BYTES) + self._codec.encode(record)
            changed[self._key(record)] = None if self._removes(record) else value
        return changed

    def removal(self, records: Iterable[R]) -> Changes:
        return dict.fromkeys(map(self._key, records))

    def _key(self, record: R) -> bytes:
        family, name = self._key_of(record)
        key = name.encode("utf-8", "surrogateescape")
        if len(key) > _LONGEST_KEY:
            return b"%s%s:#%s" % (self._prefix, family.encode(), hashlib.sha256(key).digest())
        return b"%s%s:=%s" % (self._prefix, family.encode(), key)


def folded_schedule(storage: Storage) -> FoldedRecords[ztick_format.Record]:
    removals = (ztick_format.JobRemoved, ztick_format.RuleRemoved)
    return FoldedRecords(
        storage,
        SCHEDULE_PREFIX,
        ztick_format.CODEC,
        ztick_fold.key_of,
        lambda record: isinstance(record, removals),
    )


def folded_ledger(storage: Storage) -> FoldedRecords[ledger_format.Record]:
    def removes(record: Any) -> bool:
        return ledger_fold.apply(None, record) is None

    return FoldedRecords(storage, LEDGER_PREFIX, ledger_format.CODEC, ledger_fold.key_of, removes)
