"""The facade: writers at once, what is refused, and paths."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import pytest

from journeyman.errors import (
    EncodeError,
    StorageClosed,
    StorageError,
    StorageFull,
    StorageLocked,
    UnreadableRecord,
    UsageError,
)
from journeyman.formats.keyspace.values import JobRecord, QueueRecord
from journeyman.storage import (
    EngineOptions,
    OperationOutcome,
    SetStatus,
    Storage,
    StorageMode,
    Upsert,
    pages,
)
from journeyman.storage import opening as storage_opening
from journeyman.storage.checking import find_problems
from journeyman.storage.contract import expanded
from journeyman.storage.memory import MemoryBackend
from journeyman.storage.records import job_key
from journeyman.storage.rocksdb import RocksBackend

ENGINES = ["rocksdb", "sqlite", "memory"]


@pytest.fixture(params=ENGINES)
def storage(request, tmp_path):
    with Storage.open(request.param, str(tmp_path / "store")) as storage:
        yield storage


def job(number: int, status: str = "new", queue: str = "q") -> JobRecord:
    uuid = UUID(int=number)
    return JobRecord(uuid, f"{queue}:{uuid}", queue, status, number, number)


def in_threads(*works) -> None:
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_two_threads_that_insert_500_jobs_each_make_1000(storage):
    def insert(first: int) -> None:
        for number in range(first, first + 500):
            storage.upsert_job_record(job(number))

    in_threads(lambda: insert(0), lambda: insert(10_000))
    assert storage.count("q", "new") == 1000
    with storage.backend.view() as view:
        assert list(find_problems(view)) == []


def test_threads_that_move_the_same_jobs_lose_no_count(storage):
    storage.apply([Upsert(job(number)) for number in range(100)])

    def move(status: str) -> None:
        for number in range(100):
            assert storage.set_job_status(UUID(int=number), status)
            if number % 3 == 0:
                storage.remove_job_record(UUID(int=number + 1000))
                storage.upsert_job_record(job(number + 1000, status))

    in_threads(lambda: move("waiting"), lambda: move("active"), lambda: move("failed"))
    with storage.backend.view() as view:
        assert list(find_problems(view)) == []
    assert sum(each.count for each in storage.queue_status_counts()) == 134


class CountingBackend(MemoryBackend):
    """Counts turns, and holds the first one until told."""

    def __init__(self) -> None:
        super().__init__()
        self.turns = 0
        self.go = threading.Event()
        self.entered = threading.Event()

    def turn(self):
        self.turns += 1
        if self.turns == 2:  # the first one is that of the schema
            self.entered.set()
            assert self.go.wait(60)
        return super().turn()


def test_an_operation_that_cannot_be_stored_is_refused_before_anything_is_done(storage):
    for bad in (
        replace(job(2), status="a b"),
        replace(job(2), queue=""),
        replace(job(2), queue="x" * 1025),
        replace(job(2), payload="{"),
    ):
        with pytest.raises(EncodeError):
            storage.apply([Upsert(job(1)), Upsert(bad)])
    with pytest.raises(EncodeError):
        storage.set_job_status(UUID(int=1), "a:b")
    assert storage.get_job(UUID(int=1)) is None
    assert storage.apply([]) == []


def test_what_is_not_there_is_absent(storage):
    assert storage.get_job(UUID(int=1)) is None
    assert not storage.set_job_status(UUID(int=1), "new")
    assert not storage.remove_job_record(UUID(int=1))
    assert storage.list_jobs("q", "new", page=3).jobs == ()
    assert storage.list_jobs_by_status("new").jobs == ()
    assert storage.jobs_due_before(10**15) == []
    assert storage.queue_status_counts() == []
    assert storage.load_queues().queues == ()


def test_a_record_that_cannot_be_read_is_reported_and_stepped_over(storage):
    storage.apply([Upsert(job(number)) for number in range(5)])
    storage.backend.put(job_key(UUID(int=2)), b"not a record")
    for page in (
        storage.list_jobs("q", "new"),
        storage.list_jobs("q", "new", page=1),
        storage.list_jobs_by_status("new"),
    ):
        assert [record.job_uuid.int for record in page.jobs] == [0, 1, 3, 4]
        assert [each.key for each in page.unreadable] == [job_key(UUID(int=2))]
    with pytest.raises(UnreadableRecord):
        storage.get_job(UUID(int=2))
    with pytest.raises(UnreadableRecord):
        storage.set_job_status(UUID(int=2), "active")
    assert storage.apply([SetStatus(UUID(int=2), "active")]) == [OperationOutcome.UNREADABLE]
    found = list(storage.all_jobs())
    assert sum(isinstance(each, JobRecord) for each in found) == 4
    storage.upsert_job_record(job(2))
    with storage.backend.view() as view:
        assert list(find_problems(view)) == []


def test_replacing_queues_replaces_all_of_them(storage):
    one, two = (QueueRecord(UUID(int=n), f"q{n}", n, True, "active") for n in (1, 2))
    storage.replace_queues([two, one])
    assert storage.load_queues().queues == (one, two)
    storage.replace_queues([two])
    storage.backend.put(b"v1:q:broken", b"{}")
    found = storage.load_queues()
    assert found.queues == (two,)
    assert [each.key for each in found.unreadable] == [b"v1:q:broken"]


def test_jobs_of_one_millisecond_stay_in_their_order(storage):
    numbers = [5, 3, 9, 1]
    storage.apply(
        [Upsert(replace(job(n), created_at_ns=at)) for at, n in enumerate(numbers, start=10**18)]
    )
    page = storage.list_jobs("q", "new")
    assert [record.job_uuid.int for record in page.jobs] == numbers


@pytest.mark.parametrize("sorted_at_most", [1000, 20])
def test_jobs_of_all_queues_stand_in_the_order_of_their_creation(
    storage, sorted_at_most, monkeypatch
):
    monkeypatch.setattr(pages, "_SORTED", sorted_at_most)
    ms = 10**6
    dice = Random(7)
    moments = [10**18 + n * ms + dice.randrange(ms) for n in range(5) for _ in range(n * 4 + 1)]
    numbers = dice.sample(range(1000), len(moments))
    jobs = [
        replace(job(number, queue=f"q{number % 3}"), created_at_ns=created_ns)
        for number, created_ns in zip(numbers, moments, strict=True)
    ]
    storage.apply([Upsert(record) for record in jobs])
    expected = sorted(jobs, key=lambda record: (record.created_at_ns, record.job_uuid))
    for size in (1, 2, 3, 7, 50, 100):
        found, cursor = [], None
        while True:
            page = storage.list_jobs_by_status("new", size=size, after=cursor)
            assert len(page.jobs) <= size
            found += page.jobs
            cursor = page.next_cursor
            if cursor is None:
                break
        assert found == expected


def test_more_jobs_of_one_millisecond_than_are_sorted_are_all_listed_once(storage, monkeypatch):
    monkeypatch.setattr(pages, "_SORTED", 5)
    storage.apply([Upsert(replace(job(n), created_at_ns=10**18 + 99 - n)) for n in range(40)])
    storage.apply([Upsert(replace(job(50), created_at_ns=10**18 + 10**6))])
    for size in (1, 3, 10, 100):
        found, cursor = [], None
        while True:
            page = storage.list_jobs_by_status("new", size=size, after=cursor)
            found += [record.job_uuid.int for record in page.jobs]
            cursor = page.next_cursor
            if cursor is None:
                break
        assert sorted(found) == [*range(40), 50]
        assert found[-1] == 50


def test_pages_and_cursors_that_cannot_be_are_refused(storage):
    storage.upsert_job_record(job(1))
    for words in ({"size": 0}, {"size": 10**6}, {"after": "xyz"}, {"after": "00", "page": 1}):
        with pytest.raises(UsageError):
            storage.list_jobs("q", "new", **words)
    assert storage.list_jobs("q", "new", page=0) == storage.list_jobs("q", "new", page=1)


def test_a_closed_store_says_so(storage):
    storage.close()
    storage.close()
    with pytest.raises(StorageClosed):
        storage.upsert_job_record(job(1))
    with pytest.raises(StorageClosed):
        storage.list_jobs("q", "new")


class NoRoom:
    """A database of RocksDB whose writes fail for want of room, with all of it written, or none."""

    def __init__(self, database: Any, *, writes: bool) -> None:
        self._database, self._writes = database, writes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    def write(self, *batch: Any) -> None:
        if self._writes:
            self._database.write(*batch)
        raise Exception("IO error: No space left on device")


@pytest.mark.parametrize("end", [b"a" * 100_000, b"", None], ids=["large", "empty", "removed"])
@pytest.mark.parametrize("writes", [False, True])
def test_rocksdb_refuses_no_change_that_its_log_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: bool, end: bytes | None
):
    """It would be there after a kill: that it is not known must be said."""
    backend = RocksBackend(str(tmp_path), EngineOptions())
    for _ in range(2):  # the same ends before
        with backend.turn() as turn:
            turn.commit({b"k": b"v", b"end": end})
    whole = backend._open()
    with monkeypatch.context() as patch:
        patch.setattr(backend, "_open", lambda: NoRoom(whole, writes=writes))
        with pytest.raises(StorageError) as caught, backend.turn() as turn:
            turn.commit({b"k": b"w", b"end": end})
    assert isinstance(caught.value, StorageFull) is not writes
    backend.close()


class Syncing:
    """A database of RocksDB whose syncs do something else first."""

    def __init__(self, database: Any, before_sync: Callable[[], object]) -> None:
        self._database = database
        self._before_sync = before_sync

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    def write(self, batch: Any) -> None:
        self._database.write(batch)  # without a sync, which would let no other thread run

    def flush_wal(self, *, sync: bool) -> None:
        self._before_sync()
        self._database.flush_wal(sync=sync)


def test_views_of_rocksdb_show_only_what_is_synced(tmp_path, monkeypatch):
    syncs: list[int] = []
    seen: list[Any] = []

    def look() -> None:
        with backend.view() as view:
            seen.append((len(syncs), view.get(b"a"), [key for key, _ in view.scan(b"", b"z")]))

    def sync() -> None:
        """Another thread runs while the engine syncs, and its view waits for that."""
        reader.start()
        waiters: Any = backend._gate
        while not waiters._waiters and reader.is_alive():
            time.sleep(0.001)
        early.extend(seen)
        syncs.append(1)

    early: list[Any] = []
    reader = threading.Thread(target=look)
    backend = RocksBackend(str(tmp_path), EngineOptions())
    backend.write({b"a": b"1"})
    with backend.view() as before:
        monkeypatch.setattr(backend, "_db", Syncing(backend._db, sync))
        backend.write({b"a": b"2", b"b": b"2"})
        assert before.get_many([b"a", b"b"]) == [b"1", None]
    reader.join()
    assert early == []
    assert seen == [(1, b"2", [b"a", b"b"])]
    backend.close()


def test_after_a_failed_sync_rocksdb_says_nothing_more(tmp_path, monkeypatch):
    def fail() -> None:
        raise Exception("IO error: While fdatasync: Input/output error")

    backend = RocksBackend(str(tmp_path), EngineOptions())
    backend.write({b"a": b"1"})
    monkeypatch.setattr(backend, "_db", Syncing(backend._db, fail))
    with pytest.raises(StorageError, match="rocksdb: IO error: While fdatasync"):
        backend.write({b"a": b"2"})
    for _ in range(2):
        with pytest.raises(StorageError, match=r"an earlier sync: .*Input/output error"):
            backend.write({b"a": b"3"})
        with pytest.raises(StorageError, match=r"an earlier sync: .*Input/output error"):
            backend.get(b"a")
    backend.close()


def test_a_second_process_is_kept_out_of_rocksdb(tmp_path):
    with Storage.open("rocksdb", str(tmp_path)), pytest.raises(StorageLocked):
        Storage.open("rocksdb", str(tmp_path))


def test_damaged_files_are_an_error_and_never_the_end_of_a_scan(tmp_path):
    for _ in range(2):  # what was in the log of the first is in a file of the second
        with Storage.open("rocksdb", str(tmp_path)) as storage:
            storage.apply([Upsert(job(number)) for number in range(3000)])
    for path in tmp_path.glob("*.sst"):
        data = bytearray(path.read_bytes())
        for at in range(100, len(data) - 4000, 997):
            data[at] ^= 0xFF
        path.write_bytes(data)
    with pytest.raises(StorageError) as found, Storage.open("rocksdb", str(tmp_path)) as storage:
        list(storage.all_jobs())
    assert not isinstance(found.value, StorageLocked)
    assert "Corruption" in str(found.value)


def test_two_that_write_to_one_sqlite_store_lose_no_count(tmp_path):
    def insert(first: int) -> None:
        with Storage.open("sqlite", str(tmp_path)) as storage:
            for number in range(first, first + 300):
                storage.upsert_job_record(job(number))

    with Storage.open("sqlite", str(tmp_path)) as storage:
        in_threads(lambda: insert(0), lambda: insert(1000))
        assert storage.count("q", "new") == 600


def test_options_that_an_engine_has_nothing_for_are_refused(tmp_path):
    for options in (EngineOptions(2**20), EngineOptions(mode=StorageMode.LOW_SPACE)):
        with pytest.raises(UsageError, match="memory has none"):
            Storage.open("memory", "", options)
    with pytest.raises(UsageError, match=r"unsupported storage\.engine 'sled'; there are rocksdb"):
        Storage.open("sled", str(tmp_path))


@pytest.mark.parametrize(
    ("engine", "module", "extra"),
    [("rocksdb", "rocksdict", "storage"), ("postgres", "psycopg", "postgres")],
)
def test_a_library_that_is_missing_is_one_clear_line(monkeypatch, tmp_path, engine, module, extra):
    import sys

    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(sys.modules, f"journeyman.storage.{engine}", raising=False)
    with pytest.raises(UsageError) as refused:
        storage_opening.open_backend(engine, str(tmp_path), EngineOptions())
    assert str(refused.value).endswith(f"pip install 'journeyman[{extra}]'")


def test_a_directory_that_cannot_be_made_is_one_clear_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="failed to create storage data directory"):
        Storage.open("rocksdb", str(tmp_path / "file" / "x"))


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("~/x", "/home/me/x"),
        ("~/~//x", "/home/me/x"),
        ("$HOME", "/home/me/"),
        ("$HOME/x", "/home/me/x"),
        ("~", "~"),
        ("~you/x", "~you/x"),
        ("$HOMEX", "$HOMEX"),
        ("/x/$HOME", "/x/$HOME"),
        ("x", "x"),
    ],
)
def test_the_home_directory_is_put_in(path, place):
    assert expanded(path, {"HOME": "/home/me"}) == place


def test_without_a_home_directory_a_path_that_needs_it_is_refused():
    for path in ("~/x", "$HOME"):
        with pytest.raises(UsageError, match="HOME is not set"):
            expanded(path, {})
    assert expanded("/x", {}) == "/x"
