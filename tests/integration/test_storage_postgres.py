"""The engine postgres, on a real PostgreSQL: the contract, the facade, and what can go wrong."""

from __future__ import annotations

import threading
import traceback
from uuid import UUID

import pytest

from journeyman.config import StorageEngine, StorageSettings
from journeyman.errors import StorageError, UsageError
from journeyman.formats.keyspace.values import JobRecord
from journeyman.storage import EngineOptions, Storage, StorageMode, Upsert
from journeyman.storage.checking import find_problems
from journeyman.storage.postgres import PostgresBackend
from tests.contract.storage_contract import StorageContract


def job(number: int, status: str = "new") -> JobRecord:
    uuid = UUID(int=number)
    return JobRecord(uuid, f"q:{uuid}", "q", status, number, number)


class TestPostgres(StorageContract):
    @pytest.fixture
    def backend(self, address):
        backend = PostgresBackend(address)
        yield backend
        backend.close()


def test_two_that_write_at_once_lose_no_count(address):
    """Each has connections of its own, as two processes on two hosts have."""

    def insert(first: int) -> None:
        with Storage.open("postgres", address) as storage:
            for at in range(first, first + 200, 20):
                storage.apply([Upsert(job(number)) for number in range(at, at + 20)])

    threads = [threading.Thread(target=insert, args=(first,)) for first in (0, 1000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with Storage.open("postgres", address) as storage:
        assert storage.count("q", "new") == 400
        with storage.backend.view() as view:
            assert list(find_problems(view)) == []
        page = storage.list_jobs("q", "new", size=30, page=11)
        assert [record.created_at_ns for record in page.jobs] == [*range(1100, 1130)]


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://me:secret@127.0.0.1:1/db",
        "host=127.0.0.1 port=1 user=me password=secret",
        "postgresql://me:secret@[/",
        "postgres:/me:secret@127.0.0.1/db",
        "host=127.0.0.1 password='secret",
        "postgresql://me:secret@127.0.0.1:port/db",
    ],
)
def test_what_cannot_be_is_said_without_the_password(address):
    with pytest.raises((StorageError, UsageError)) as refused:
        Storage.open("postgres", address)
    assert "secret" not in "".join(traceback.format_exception(refused.value))
    assert "\n" not in str(refused.value)


def test_address_that_is_missing_is_named():
    with pytest.raises(UsageError, match=r"storage\.path: .*postgresql://USER@HOST/DATABASE"):
        Storage.from_settings(StorageSettings(engine=StorageEngine.POSTGRES))
    with pytest.raises(UsageError, match="postgres has none"):
        Storage.open("postgres", "x", EngineOptions(mode=StorageMode.LOW_SPACE))
