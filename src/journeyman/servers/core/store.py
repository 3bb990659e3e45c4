"""The store of a server process: opened once, for all services that keep their state in it.

    start    opened, and this process alone: another server on the same store is an error, or, with
             storage.standby, what this one waits for (servers/standby.py)
    serving  each service writes through the same group commit; what it loads is its own prefix
    stop     closed after all services and the ledger

A store that cannot be opened is a matter of the settings: one line, exit code 2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain

from journeyman import errors
from journeyman.config import Persistence, Settings, WorkqPersistence
from journeyman.folds import ledger as ledger_fold
from journeyman.formats.ledger import KINDS, is_state
from journeyman.formats.ledger import Record as LedgerRecord
from journeyman.formats.ztick import Record
from journeyman.logs.ledger.log import Absorbing
from journeyman.servers.core.server_log import ServerLog
from journeyman.storage import Operation, PutEntries, Storage
from journeyman.storage.checking import in_batches
from journeyman.storage.contract import Changes
from journeyman.storage.folded import FoldedRecords, Report, folded_ledger

HISTORIES_TO_LOOK = 10_000  # audits written until those that are too old are looked for
TOLD_ONE_BY_ONE = 20  # records that cannot be read; of more only the number is logged


def holds_schedule(settings: Settings) -> bool:
    return settings.database.persistence is Persistence.STORAGE


def holds_work(settings: Settings) -> bool:
    return settings.workq.enabled and settings.workq.persistence is WorkqPersistence.STORAGE


def is_store_used(settings: Settings) -> bool:
    return holds_schedule(settings) or holds_work(settings)


def open_store(settings: Settings, messages: ServerLog) -> Storage:
    """UsageError: it cannot be opened."""
    try:
        return Storage.from_settings(settings.storage, say=messages.info)
    except errors.StorageError as error:
        raise errors.UsageError(f"storage: {error}") from error


def be_alone(storage: Storage) -> None:
    """Two servers on one store would run the same jobs. UsageError: there is another."""
    try:
        storage.backend.be_alone()
    except errors.StorageLocked as error:
        reason = "another server has its jobs here; stop it, or choose another storage.path"
        raise errors.UsageError(f"storage: {storage.path}: {reason}") from error


@contextmanager
def as_log_errors() -> Iterator[None]:
    """An error in a commit leaves open whether it was done, unless the engine knows better."""
    try:
        yield
    except errors.StorageClosed as error:
        raise errors.LogClosed(error.place, error.reason) from error
    except errors.StorageFull as error:
        raise errors.LogFull(error.place, error.reason) from error
    except errors.StorageUnavailable as error:
        raise errors.LogUnavailable(error.place, error.reason) from error
    except errors.StorageError as error:
        raise errors.LogPoisoned(error.place, error.reason) from error


class UnreadableTold:
    """Reports records that cannot be read: some by name, the others by their number."""

    def __init__(self, messages: ServerLog) -> None:
        self._messages = messages
        self.count = 0

    def tell(self, key: str, reason: str) -> None:
        self.count += 1
        if self.count <= TOLD_ONE_BY_ONE:
            self._messages.warn("a record cannot be read and is skipped", key=key, reason=reason)

    def tell_key(self, key: bytes, reason: str) -> None:
        self.tell(key.decode("utf-8", "backslashreplace"), reason)

    def sum_up(self) -> None:
        if self.count:
            self._messages.warn(
                "records that cannot be read were skipped; see: journeyman storage check",
                records=self.count,
            )


class StoredLedger:
    """The ledger in the store: what LedgerLog is on a disk."""

    def __init__(self, storage: Storage, absorbing: Absorbing, report: Report) -> None:
        self._storage = storage
        self.folded = folded_ledger(storage)
        self.states: dict[ledger_fold.Key, LedgerRecord] = {}
        self._histories = 0  # written since they were last looked at

        def each(record: LedgerRecord) -> None:
            if not absorbing.absorb(record) and is_state(record):
                self.states[ledger_fold.key_of(record)] = record

        self.folded.load(each, report)

    def append(
        self,
        records: Sequence[LedgerRecord],
        *,
        sync: bool = True,
        then: Callable[[], None] | None = None,
    ) -> None:
        """Durable, and ``then`` is done; or neither. For services that are not in the store."""
        del sync  # every commit is synced
        changes = self.folded.changes(records)
        with self._storage.backend.view() as view:
            before = dict(zip(changes, view.get_many(list(changes)), strict=True))
        self._apply(changes)
        self._histories += sum(not is_state(record) for record in records)
        if then is not None:
            try:
                then()
            except errors.JourneymanError:
                self._apply(before)
                raise

    def _apply(self, changes: Changes) -> None:
        with as_log_errors():
            self._storage.apply([PutEntries(changes)])

    def sync(self) -> None:
        """Every commit was synced."""

    @property
    def is_bloated(self) -> bool:
        """Whether audits should be looked at again; states replace each other."""
        return self._histories >= HISTORIES_TO_LOOK

    def records(self) -> Iterator[LedgerRecord]:
        return iter(self.folded.records())

    def compact(self, keeps: Callable[[LedgerRecord], bool]) -> None:
        """Of states the last one is all that there is, and they may be very many."""
        self._histories = 0
        families = {kind.family for kind in KINDS.values() if kind.key is None}
        records = chain.from_iterable(map(self.folded.records, sorted(families)))
        gone = [record for record in records if not keeps(record)]
        for some in in_batches(gone):
            self._apply(self.folded.removal(some))

    def close(self) -> None:
        """The store is closed by the process."""


class ScheduleRecorder:
    """The schedule in the store, as its writer sees it: records, and what the ledger says of them,
    in one commit."""

    def __init__(
        self,
        storage: Storage,
        schedule: FoldedRecords[Record],
        ledger: FoldedRecords[LedgerRecord] | None,
    ) -> None:
        self._storage = storage
        self._schedule = schedule
        self._ledger = ledger

    def write(self, records: Sequence[Record], ledger: Sequence[LedgerRecord] = ()) -> None:
        """Durable when it returns. JourneymanError: nothing was written, unless it is final."""
        operations: list[Operation] = [PutEntries(self._schedule.changes(records))]
        if ledger:
            assert self._ledger is not None
            operations.append(PutEntries(self._ledger.changes(ledger)))
        with as_log_errors():
            self._storage.apply(operations)
