"""The storage contract, kept by every engine."""

from __future__ import annotations

import pytest

from journeyman.config import StorageMode
from journeyman.storage.contract import EngineOptions
from journeyman.storage.memory import MemoryBackend
from journeyman.storage.rocksdb import RocksBackend
from journeyman.storage.sqlite import SqliteBackend
from tests.contract.storage_contract import StorageContract

OPTIONS = [
    EngineOptions(),
    EngineOptions(8 * 1024 * 1024, StorageMode.LOW_SPACE),
    EngineOptions(64 * 1024 * 1024, StorageMode.HIGH_THROUGHPUT),
]


class TestRocksdb(StorageContract):
    @pytest.fixture(params=OPTIONS)
    def backend(self, request, tmp_path):
        backend = RocksBackend(str(tmp_path), request.param)
        yield backend
        backend.close()


class TestSqlite(StorageContract):
    @pytest.fixture(params=OPTIONS)
    def backend(self, request, tmp_path):
        backend = SqliteBackend(str(tmp_path), request.param)
        yield backend
        backend.close()


class TestMemory(StorageContract):
    @pytest.fixture
    def backend(self):
        return MemoryBackend()
