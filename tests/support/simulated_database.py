"""The disk in PostgreSQL, on tables in memory, as a disk for tests of crashes.

    disk = SimulatedDatabase()
    disk.cut_power_at(7)               the process ends at the 7th change of the tables from now
    ... run the program ...
    after = disk.after_crash(seed)     a new disk with what was committed

What runs is disk/postgres.py. A change of the tables is an operation: it happens whole or not at
all, and what was gathered in memory is lost. ``torn`` of cut_power_at: the change was committed and
its answer was lost. Paths are as on other disks. See simulated_disk.py, which it replaces.
"""

from __future__ import annotations

import copy
import errno
from typing import Any

import pytest

from journeyman.disk import NotWritten, is_database
from journeyman.disk.names import _CALLS
from journeyman.disk.postgres import PostgresDisk
from tests.simulation.database import Tables
from tests.support import workq_logs
from tests.support.simulated_disk import PowerCut

ADDRESS = "postgresql://simulated/database"
TORN = 0.5


def _committed() -> Tables:
    tables = Tables(lambda: 0)
    tables.is_made = True
    return tables


class _Changes:
    """In place of ``journeyman.disk.database.Database``, for one process."""

    address = ADDRESS
    epoch = None
    waiting_since_ns = None

    def __init__(self, tables: Tables, capacity: int | None) -> None:
        self.tables = tables
        self.capacity = capacity
        self.operations = 0
        self.is_powered = True
        self.cut_at: int | None = None
        self.is_committed_at_cut = False

    @property
    def used(self) -> int:
        return sum(len(row[1]) for file in self.tables.files.values() for row in file.rows)

    def run_script(self, script: str) -> None:
        """The tables are there."""

    def ask(self, query: str, values: Any, about: str) -> list[Any]:
        self._check_power()
        return self.tables.plan(query, values)[0]

    def change(self, statement: str, values: Any, about: str) -> list[Any]:
        self._check_power()
        if statement == _CALLS["append"] and self.capacity is not None:
            pieces = values[3]
            if self.used + sum(map(len, pieces)) > self.capacity:
                raise NotWritten(errno.ENOSPC, "no room", about)
        self.operations += 1
        is_cut = self.operations == self.cut_at
        rows, make_change = self.tables.plan(statement, values)
        if make_change is not None and not (is_cut and not self.is_committed_at_cut):
            make_change()
        if is_cut:
            self.is_powered = False
            self._check_power()
        return rows

    def close(self) -> None:
        """There are no connections."""

    def _check_power(self) -> None:
        if not self.is_powered:
            raise PowerCut


class SimulatedDatabase(PostgresDisk):
    def __init__(self, *, capacity: int | None = None, tables: Tables | None = None) -> None:
        super().__init__(ADDRESS)
        self._changes = _Changes(tables or _committed(), capacity)
        self.database = self._changes  # type: ignore[assignment]

    # --- trouble ---

    @property
    def operations(self) -> int:
        return self._changes.operations

    @property
    def used(self) -> int:
        return self._changes.used

    @property
    def is_powered(self) -> bool:
        return self._changes.is_powered

    @property
    def capacity(self) -> int | None:
        return self._changes.capacity

    @capacity.setter
    def capacity(self, capacity: int | None) -> None:
        self._changes.capacity = capacity

    def cut_power_at(self, operation: int, *, torn: float = 0.0) -> None:
        self._changes.cut_at = self.operations + operation
        self._changes.is_committed_at_cut = torn >= TORN

    def after_crash(self, survival: object = None) -> SimulatedDatabase:
        """A commit is durable, whatever else survives."""
        tables = copy.copy(self._changes.tables)
        fresh = _committed()
        fresh.files = copy.deepcopy(tables.files)
        fresh._next_id = tables._next_id
        return SimulatedDatabase(capacity=self.capacity, tables=fresh)

    def plant(self, path: str, data: bytes) -> None:
        """Put a durable file there, without operations."""
        before = self.operations
        self.make_dirs(path.rpartition("/")[0])
        if self.exists(path):
            self.remove(path)
        file = self.open_append(path)
        file.write(data)
        file.sync()
        file.close()
        self._changes.operations = before

    def files(self) -> dict[str, bytes]:
        found: dict[str, bytes] = {}

        def visit(directory: str) -> None:
            for name in self.list_dir(directory):
                path = f"{directory}/{name}"
                if self.is_dir(path):
                    visit(path)
                else:
                    found[path.removeprefix(ADDRESS)] = self.read_bytes(path)

        visit(ADDRESS)
        return found

    # --- paths without an address ---

    def find(self, path: str) -> tuple[int, bool] | None:
        return super().find(_addressed(path))

    def _place(self, path: str) -> tuple[int, bytes]:
        return super()._place(_addressed(path))

    def make_dirs(self, path: str) -> None:
        super().make_dirs(_addressed(path))

    def rename(self, source: str, target: str) -> None:
        super().rename(_addressed(source), _addressed(target))

    # --- the process has the directory ---

    def _claim(self, path: str, timeout_s: float) -> None:
        """There is no other process."""

    def _unclaim(self) -> None:
        """The same."""


def _addressed(path: str) -> str:
    return path if is_database(path) else f"{ADDRESS}/{path.strip('/')}"


@pytest.fixture(params=["files", "database"])
def kind_of_disk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What is made as a SimulatedDisk, by the module or by ``planted``, is a SimulatedDatabase the
    second time."""
    if request.param == "database":
        for module in (request.module, workq_logs):
            monkeypatch.setattr(module, "SimulatedDisk", SimulatedDatabase)
    return str(request.param)
