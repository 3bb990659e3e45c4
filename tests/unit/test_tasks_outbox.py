"""The outbox: rows of the application's transaction, sent once, reported when they cannot be."""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings
from sqlalchemy import create_engine
from sqlalchemy import text as sql_text
from sqlalchemy.orm import Session

import journeyman as jm
from journeyman.client import CannotConnect, Refused
from journeyman.errors import UsageError
from journeyman.integrations.sqlalchemy import SqlAlchemyOutbox
from journeyman.tasks.broker import Order, Relayed
from journeyman.testing import InMemory

app = jm.App()


@app.task(name="ship", retries=2, priority=7, lease=9, ttl=3600, key="{number}")
def ship(number: int) -> int:
    return number


@app.task(name="once", unique="{number}")
def once(number: int) -> None: ...


@pytest.fixture
def place(tmp_path) -> Path:
    where: Path = tmp_path / "shop.db"
    return where


@pytest.fixture
def outbox(place) -> jm.Outbox:
    found = jm.Outbox(lambda: sqlite3.connect(place))
    found.create_table()
    found.create_table()  # once more changes nothing
    return found


def write(place: Path, act: Callable[[sqlite3.Connection], Any], *, commits: bool = True) -> Any:
    """``act`` in a transaction."""
    with closing(sqlite3.connect(place)) as connection:
        done = act(connection)
        connection.commit() if commits else connection.rollback()
        return done


def send(outbox: jm.Outbox, number: int, connection: sqlite3.Connection) -> jm.Job[int]:
    return outbox.send(connection, ship.call(number))


def rows(place: Path) -> list[Any]:
    return list(write(place, lambda it: it.execute("SELECT * FROM journeyman_outbox").fetchall()))


def test_a_job_is_sent_if_its_transaction_commits(place, outbox):
    with InMemory(app) as queue:
        kept = write(place, lambda it: outbox.send(it, ship.call(1)))
        write(place, lambda it: outbox.send(it.cursor(), ship.call(2)), commits=False)
        queue.assert_nothing_sent()
        assert outbox.relay(queue) == Relayed(1, 0, 0)
        queue.run_all()
        (job,) = queue.jobs
        assert (job.id, job.args, job.result) == (kept.id, (1,), 1)
        assert kept.result(timeout=1) == 1
    assert rows(place) == []


def test_the_options_of_a_job_come_along(place, outbox):
    class Noting:
        orders: list[Order]

        def __init__(self) -> None:
            self.orders = []

        def add(self, order: Order) -> bool:
            self.orders.append(order)
            return True

    at = datetime.now(UTC) + timedelta(hours=1)
    with InMemory(app):
        plain = ship.call(1).order()
        write(place, lambda it: outbox.send(it, ship.call(1)))
        write(place, lambda it: outbox.send(it, ship.at(at).call(1).then(ship)))
    noting: Any = Noting()
    outbox.relay(noting)
    first, second = noting.orders
    assert (first.payload, first.limit_key) == (plain.payload, plain.limit_key)
    for name in ("queue", "max_fails", "priority", "lease_ms", "ttl_ms", "unique", "unique_ms"):
        assert getattr(first.options, name) == getattr(plain.options, name)
    assert (second.at, second.has_followers) == (at, True)


def test_a_unique_job_is_added_once(place, outbox):
    with InMemory(app) as queue:
        for _ in range(2):
            write(place, lambda it: outbox.send(it, once.call(1)))
        assert outbox.relay(queue) == Relayed(2, 0, 0)
        assert len(queue.jobs) == 1


def test_rows_older_than_the_ttl_are_reported_and_not_sent(place, outbox, monkeypatch, caplog):
    with InMemory(app) as queue:
        write(place, lambda it: outbox.send(it, ship.call(1)))
        now = time.time()
        monkeypatch.setattr(time, "time", lambda: now + 3601)
        with caplog.at_level(logging.ERROR):
            assert outbox.relay(queue) == outbox.relay(queue) == Relayed(0, 1, 0)
        queue.assert_nothing_sent()
    assert len(rows(place)) == 1
    (said,) = [record.message for record in caplog.records]
    assert said.startswith("journeyman_outbox has 1 rows that are older than the TTL of their job")


def test_a_row_whose_ttl_ends_while_a_round_is_held_up_is_not_sent(place, outbox, monkeypatch):
    """Another relay may have sent it, and the server may have forgotten the job since."""
    begun = time.time()

    class Slow(InMemory):
        def add(self, order: Order) -> bool:
            monkeypatch.setattr(time, "time", lambda: begun + 3601)
            return super().add(order)

    with Slow(app) as queue:
        for number in (1, 2):
            write(place, partial(send, outbox, number))
        assert outbox.relay(queue) == Relayed(1, 0, 0)
        assert outbox.relay(queue) == Relayed(0, 1, 0)
        assert len(queue.jobs) == 1


def test_a_row_that_is_refused_stays_with_the_reason_and_others_are_sent(place, outbox):
    class Refusing(InMemory):
        def add(self, order: Order) -> bool:
            if b"[1]" in order.payload:
                raise Refused("CLIENT-ERROR", "Insufficient namespace scope")
            return super().add(order)

    with Refusing(app) as queue:
        for number in (1, 2):
            write(place, partial(send, outbox, number))
        write(place, lambda it: it.execute("UPDATE journeyman_outbox SET job = job"))
        assert outbox.relay(queue) == Relayed(1, 0, 1)
        assert outbox.relay(queue) == Relayed(0, 0, 1)
        assert [job.args for job in queue.jobs] == [(2,)]
    ((*_, problem),) = rows(place)
    assert "Insufficient namespace scope" in problem


def test_a_row_that_is_not_one_of_the_outbox_is_refused(place, outbox):
    with InMemory(app) as queue:
        write(place, lambda it: outbox.send(it, ship.call(1)))
        write(place, lambda it: it.execute("UPDATE journeyman_outbox SET job = '{}'"))
        assert outbox.relay(queue) == Relayed(0, 0, 1)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(["ok", "away", "reply lost"]), max_size=12), st.integers(1, 4))
def test_whatever_breaks_each_job_is_sent_exactly_once(tmp_path_factory, faults, count):
    """A server that is away, or takes the job and cannot say so."""
    place = tmp_path_factory.mktemp("outbox") / "shop.db"
    outbox = jm.Outbox(lambda: sqlite3.connect(place))
    outbox.create_table()
    left = iter(faults)

    class Faulty(InMemory):
        def add(self, order: Order) -> bool:
            fault = next(left, "ok")
            if fault == "away":
                raise CannotConnect("no server")
            is_new = super().add(order)
            if fault == "reply lost":
                raise CannotConnect("the reply was lost")
            return is_new

    with Faulty(app) as queue:
        for number in range(count):
            write(place, partial(send, outbox, number))
        for _ in range(len(faults) + 1):
            try:
                outbox.relay(queue)
            except CannotConnect:
                continue
        assert sorted(job.args for job in queue.jobs) == [(number,) for number in range(count)]
        assert queue.run_all() == count
    assert rows(place) == []


def test_the_outbox_of_sqlalchemy(tmp_path):
    engine = create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
    outbox = SqlAlchemyOutbox(engine)
    outbox.create_table()
    with InMemory(app) as queue:
        with Session(engine) as session, session.begin():
            session.execute(sql_text("CREATE TABLE orders (number INTEGER)"))
            outbox.send(session, ship.call(1))
        with Session(engine) as session:
            outbox.send(session, ship.call(2))
            session.rollback()
        with engine.begin() as connection:
            outbox.send(connection, ship.call(3))
        assert outbox.relay(queue) == Relayed(2, 0, 0)
        assert [job.args for job in queue.jobs] == [(1,), (3,)]
        assert outbox.relay(queue) == Relayed(0, 0, 0)
    engine.dispose()


@pytest.mark.parametrize(
    ("options", "said"),
    [({"table": "x; DROP"}, "not the name of a table"), ({"paramstyle": "named"}, "qmark, format")],
)
def test_what_the_outbox_cannot_use_is_refused(options, said):
    with pytest.raises(UsageError, match=said):
        jm.Outbox(lambda: None, **options)
