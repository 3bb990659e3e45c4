"""The simulated PostgreSQL does with each statement of the disk what the real one does."""

from __future__ import annotations

import random
from typing import Any

import psycopg
import pytest

from journeyman.disk import guard, names, postgres
from journeyman.disk.postgres import PostgresDisk
from tests.simulation.database import TAKE, Tables

STATEMENTS = 400
_TIMED = (postgres._STATUS, postgres._SCAN)  # their last column is a time


class _Drawn:
    """Statements by chance, about few files, so that they meet."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self.epoch = 0

    def _own(self) -> int | None:
        return self._chance.choice((self.epoch, self.epoch, self.epoch, None, self.epoch + 1))

    def _id(self) -> int:
        return self._chance.randrange(8)

    def _name(self) -> bytes:
        return self._chance.choice((b"a", b"b", b"\xff", b"log"))

    def _place(self) -> int:
        return self._chance.choice((0, 0, 2, 4, 6, 8, 12, 30))

    def _piece(self) -> bytes:
        return self._chance.choice((b"ab", b"abcd", b"xy"))

    def next(self) -> tuple[str, Any]:
        calls, chance = names._CALLS, self._chance
        kinds: list[tuple[str, Any]] = [
            (calls["make"], (self._own(), chance.choice((0, 0, 1)), self._name(), False)),
            (calls["make"], (self._own(), 0, self._name(), True)),
            (calls["cut"], (self._own(), self._id(), self._place())),
            (calls["rename"], (self._own(), self._id(), chance.choice((0, 1)), self._name())),
            (calls["remove"], (self._own(), self._id())),
            (names._FIND, (chance.choice((0, 1)), self._name())),
            (names._LIST, (chance.choice((0, 1)),)),
            (postgres._STATUS, (self._id(),)),
            (postgres._SCAN, (chance.choice((0, 1)),)),
            (postgres._PURGE, ()),
            (guard._EPOCH, ()),
            (guard._CLEAN, (self.epoch,)),
            (guard._ADVERTISE, (f"server {chance.randrange(10)}", self._own() or 0)),
            (TAKE, (f"server {chance.randrange(10)}",)),
        ]
        own, file_id = self._own(), self._id()
        merge = {"own": own, "file": file_id, "piece": chance.choice((4, 8))}
        begin = self._place()
        kinds += [(postgres._MERGE, {**merge, "from": 0, "to": chance.choice((8, 16))})]
        read = {"file": file_id, "from": begin, "to": begin + chance.choice((1, 3, 100))}
        kinds += [(postgres._READ, read)] * 3
        for _ in range(12):
            count = chance.choice((1, 1, 2))
            files = [self._id() for _ in range(count)]
            places = [self._place() for _ in range(count)]
            pieces = [self._piece() for _ in range(count)]
            kinds.append((calls["append"], (self._own(), files, places, pieces)))
        return chance.choice(kinds)


def _really(database: psycopg.Connection[Any], statement: str, values: Any) -> object:
    try:
        cursor = database.execute(statement, values, binary=True)
        return cursor.fetchall() if cursor.description is not None else []
    except psycopg.Error as error:
        return error.sqlstate


def _simulated(tables: Tables, statement: str, values: Any) -> object:
    try:
        rows, change = tables.plan(statement, values)
        if change is not None:
            change()
    except psycopg.Error as error:
        return error.sqlstate
    return rows


def _comparable(statement: str, outcome: Any) -> object:
    if not isinstance(outcome, list) or (statement in names._CALLS.values() and not outcome[0][0]):
        return outcome if isinstance(outcome, str) else None
    rows = [row[:-1] for row in outcome] if statement in _TIMED else outcome
    return sorted(rows)


@pytest.mark.parametrize("seed", range(6))
def test_each_statement_does_the_same(seed: int, data_address: str):
    disk = PostgresDisk(data_address)
    disk.prepare()
    tables, drawn = Tables(lambda: 0), _Drawn(seed)
    tables.is_made = True
    errors = 0
    with psycopg.connect(data_address, autocommit=True) as database:
        for number in range(STATEMENTS):
            statement, values = drawn.next()
            real = _comparable(statement, _really(database, statement, values))
            simulated = _comparable(statement, _simulated(tables, statement, values))
            assert real == simulated, (number, statement, values)
            errors += isinstance(real, str)
            drawn.epoch = tables.epoch
        kept = database.execute(
            "SELECT b.file, b.at, b.data FROM journeyman_bytes b JOIN journeyman_file f"
            " ON b.file = f.id"
        ).fetchall()
    disk.close()
    assert sorted(kept) == sorted(
        (file_id, at, data) for file_id, file in tables.files.items() for at, data, _ in file.rows
    )
    assert 0 < errors < STATEMENTS
