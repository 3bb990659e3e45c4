"""The writer of the fan-out queues: batches that fail, clients that are slow, leave or wait."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from journeyman.engines.kestrel.engine import KestrelEngine
from journeyman.engines.kestrel.messages import Effect
from journeyman.engines.kestrel.queue import KestrelOptions, QueueSettings, ReaderSettings
from journeyman.errors import JourneymanError, LogPoisoned
from journeyman.protocols.kestrel.commands import Confirm, DeleteQueue, GetItem, Key, Put, Version
from journeyman.protocols.kestrel.replies import Reply, line, reply_bytes
from journeyman.servers.core.contract import Requests
from journeyman.servers.core.group_commit import QUICK_IN_A_ROW, GroupCommit
from journeyman.servers.kestrel import writer
from journeyman.servers.kestrel.metrics import KestrelMetrics
from journeyman.servers.kestrel.persistence import KestrelLogs
from journeyman.servers.kestrel.writer import NO_ROOM, KestrelDialect
from journeyman.testing import ManualClock
from tests.support.fanout_caller import Caller
from tests.support.simulated_disk import SimulatedDisk

Q, P = Key("q"), Key("p")
STORED, END, DELETED = b"STORED\r\n", b"END\r\n", b"DELETED\r\n"
SETTINGS = KestrelOptions(QueueSettings(ReaderSettings(max_open=1000)))


class OnlyVersion:
    """A server that can be asked for nothing but its version."""

    usual: frozenset[type] = frozenset()

    def answer(self, request: Any) -> Reply | None:
        return line("V") if type(request) is Version else None


class Bench:
    """A writer with journals on a simulated disk."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self.disk = disk
        self.clock = ManualClock()
        self.engine = KestrelEngine(SETTINGS)
        self.journals = KestrelLogs(disk, self.clock, "/q", waits_for_sync=True)
        self.journals.open_all()
        self.troubles: list[JourneymanError | None] = []
        self.failures: list[BaseException] = []
        self.figures = KestrelMetrics(self.engine.stats, lambda: self.engine.counts, [], list)
        loop = asyncio.get_running_loop()
        self.dialect = KestrelDialect(self.engine, self.clock, self, self.journals, OnlyVersion())
        self.writer = GroupCommit(self, loop, self.clock, self.dialect, self.journals)

    def on_batch(self) -> None:
        """There is no ticker here."""

    def on_effect(self, effect: Effect) -> None:
        """Checkpoints are not written here."""

    def on_unread(self, error: Exception) -> None:
        raise error

    def on_trouble(self, error: JourneymanError | None) -> None:
        self.troubles.append(error)

    def on_failure(self, error: BaseException) -> None:
        self.failures.append(error)

    def on_answered(self, requests: Requests, outcomes: Sequence[object], _: int) -> None:
        self.figures.count(requests, outcomes)

    async def tell(self, client: Caller, *requests: Any) -> list[bytes]:
        """What the client hears until all is quiet."""
        before = len(client.told)
        self.writer.submit(client, list(requests))
        await self.settle()
        return client.told[before:]

    async def settle(self) -> None:
        await self.writer.idle()
        await asyncio.sleep(0)
        await self.writer.idle()
        assert self.failures == []


def value(key: str, data: bytes) -> bytes:
    return b"VALUE %b 0 %d\r\n%b\r\nEND\r\n" % (key.encode(), len(data), data)


def run(test: Callable[[Bench], Awaitable[None]]) -> None:
    async def scenario() -> None:
        bench = Bench(SimulatedDisk())
        try:
            await test(bench)
        finally:
            bench.writer.close()
            bench.journals.close()

    asyncio.run(scenario())


# -- where a batch is written --


def test_quick_puts_are_synced_on_the_loop_and_a_new_queue_in_the_thread():
    async def test(bench: Bench) -> None:
        client, synced = Caller(), []
        assert await bench.tell(client, Put("q", 0, b"first")) == [STORED]
        bench.disk.before_sync = lambda: synced.append(threading.current_thread().name)
        for _ in range(QUICK_IN_A_ROW):
            assert await bench.tell(client, Put("q", 0, b"item")) == [STORED]
        assert set(synced[:-1]) == {"journeyman-writer"}
        assert synced[-1] == threading.current_thread().name
        synced.clear()
        assert await bench.tell(client, Put("p", 0, b"another queue")) == [STORED]
        assert set(synced) == {"journeyman-writer"}
        bench.disk.fail_next_sync()
        bench.writer.submit(client, [Put("q", 0, b"lost")])
        await bench.writer.idle()
        assert client.dropped
        assert [type(failure) for failure in bench.failures] == [LogPoisoned]
        assert client.told[-1] == STORED

    run(test)


# -- figures --


def test_commands_that_are_put_off_are_counted_once():
    """A batch creates a few queues only; what stands behind the next one comes later."""

    async def test(bench: Bench) -> None:
        client = Caller()
        puts = [Put(f"q{number}", 0, b"x") for number in range(3 * writer.MAX_CHANGES)]
        gets = [GetItem(Key(put.queue)) for put in puts]
        heard = await bench.tell(client, *puts, *gets)
        assert heard.count(STORED) == len(puts)
        assert bench.figures.count_of("set") == len(puts)
        assert bench.figures.count_of("get") == len(gets)

    run(test)


# -- the fast path --


def test_commands_in_a_row_are_answered_and_counted_as_one_by_one():
    puts = [Put("q", 0, b"item %d" % number) for number in range(3 * writer.MAX_RUN)]
    get, confirm = GetItem(Q, open=True), Confirm(Q, 1)
    heard: list[list[bytes]] = []
    counted: list[list[int]] = []

    async def test(bench: Bench) -> None:
        client, other = Caller(), Caller()
        told = await bench.tell(client, *puts, *[get] * 5, *puts[:2], *[confirm] * 6)
        told += await bench.tell(other, *[GetItem(Q)] * 3, get, Put("q", 0, b"x" * 30), get)
        heard.append(told + await bench.tell(client, *[get] * (len(puts) + 3)))
        counted.append([bench.figures.count_of(word) for word in ("set", "get", "confirm")])

    run(test)
    OnlyVersion.usual = frozenset({Put, GetItem, Confirm})
    try:
        run(test)
    finally:
        OnlyVersion.usual = frozenset()
    assert heard[0] == heard[1]
    assert counted[0] == counted[1]


def test_what_is_said_to_one_client_in_a_batch_stays_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(OnlyVersion, "usual", frozenset({Put, GetItem, Confirm}))
    monkeypatch.setattr(writer, "MAX_SAID_BYTES", 2000)

    async def test(bench: Bench) -> None:
        client = Caller()
        sizes: list[int] = []
        client.answered = lambda answers: sizes.append(sum(len(reply_bytes(r)) for r in answers))  # type: ignore[method-assign,arg-type,misc]
        bench.writer.submit(client, [Put("q", 0, b"x" * 900)] * 10)
        bench.writer.submit(client, [GetItem(Q, open=True)] * 10)
        await bench.settle()
        assert sum(sizes) > 9000
        assert max(sizes) < 2000 + 1000

    run(test)


# -- batches that fail --


@pytest.mark.parametrize("kind", ["create", "write"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EMFILE, errno.EDQUOT])
def test_queue_that_cannot_be_made_is_refused_and_made_later(kind: str, code: int):
    async def test(bench: Bench) -> None:
        client = Caller()
        assert await bench.tell(client, Put("p", 0, b"x")) == [STORED]
        bench.disk.fail(kind, error=code, times=1000)
        assert await bench.tell(client, Put("q", 0, b"x")) == [reply_bytes(NO_ROOM)]
        assert await bench.tell(client, GetItem(Key("r", "a"))) == [reply_bytes(NO_ROOM)]
        assert await bench.tell(client, GetItem(P)) == [value("p", b"x")]
        bench.disk.heal()
        assert await bench.tell(client, Put("q", 0, b"y"), GetItem(Q)) == [STORED, value("q", b"y")]
        assert await bench.tell(client, GetItem(Key("r", "a"))) == [END]
        assert bench.troubles[-1] is None

    run(test)


@pytest.mark.parametrize("put_first", [False, True])
@pytest.mark.parametrize("put_again", [False, True])
def test_queue_that_was_deleted_in_a_batch_that_failed_is_deleted(put_first: bool, put_again: bool):
    async def test(bench: Bench) -> None:
        client = Caller()
        assert await bench.tell(client, Put("q", 0, b"x"), Put("p", 0, b"x")) == [STORED] * 2
        before = [Put("q", 0, b"y")] if put_first else []
        behind = [Put("q", 0, b"z")] if put_again else []
        # The checkpoint of the deletion, and the files of the queue that is made anew, can be made.
        bench.disk.fail("create", error=errno.ENOSPC, skip=4 if put_again else 1, times=1000)
        told = await bench.tell(
            client, *before, DeleteQueue(Q), *behind, Put("new", 0, b"x"), GetItem(P)
        )
        bench.disk.heal()
        assert told[len(before) :][0] == DELETED
        assert told[-2:] == [reply_bytes(NO_ROOM), value("p", b"x")]
        assert await bench.tell(client, Put("q", 0, b"again")) == [STORED]
        found = await bench.tell(client, GetItem(Q), GetItem(Q), GetItem(Q))
        left = [b"z", b"again"] if told[len(before) + 1 :][0] == STORED else [b"again"]
        assert found == [*(value("q", item) for item in left), *[END] * (3 - len(left))]

    run(test)


def test_reads_of_a_batch_that_failed_are_answered_in_order():
    async def test(bench: Bench) -> None:
        client = Caller()
        assert await bench.tell(client, Put("q", 0, b"a"), Put("q", 0, b"b")) == [STORED] * 2
        bench.disk.fail("write", error=errno.ENOSPC, times=1000)
        requests = [GetItem(Q, open=True), Put("q", 0, b"c"), Confirm(Q, 1), Version(), GetItem(Q)]
        told = await bench.tell(client, *requests)
        assert told == [value("q", b"a"), reply_bytes(NO_ROOM), END, b"V\r\n", value("q", b"b")]
        bench.disk.heal()
        assert await bench.tell(client, GetItem(Q)) == [END]

    run(test)


# -- slow clients --


def test_client_is_told_so_much_in_a_batch_and_the_rest_in_the_next(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(writer, "MAX_SAID_BYTES", 300)

    async def test(bench: Bench) -> None:
        client, other = Caller(), Caller()
        items = [b"%d" % number * 100 for number in range(9)]
        await bench.tell(client, *(Put("q", 0, item) for item in items))
        before = bench.writer.batches
        told = await bench.tell(client, *[GetItem(Q)] * 10, Version())
        assert told == [*(value("q", item) for item in items), END, b"V\r\n"]
        assert bench.writer.batches > before + 1
        assert await bench.tell(other, Version()) == [b"V\r\n"]

    run(test)


def test_slow_client_is_put_off_until_it_resumes():
    async def test(bench: Bench) -> None:
        client, other = Caller(), Caller()
        await bench.tell(client, Put("q", 0, b"a"), Put("q", 0, b"b"))
        client.is_slow = True
        assert await bench.tell(client, GetItem(Q), Version()) == []
        assert await bench.tell(client, GetItem(Q)) == []
        assert await bench.tell(other, GetItem(Q)) == [value("q", b"a")]
        client.is_slow = False
        bench.dialect.resume(client)
        await bench.settle()
        assert client.told[-3:] == [value("q", b"b"), b"V\r\n", END]
        bench.dialect.resume(client)  # there is nothing any more
        assert await bench.tell(client, Version()) == [b"V\r\n"]

    run(test)


def test_slow_client_that_is_lost_leaves_nothing_behind():
    async def test(bench: Bench) -> None:
        client, other = Caller(), Caller()
        await bench.tell(client, Put("q", 0, b"a"), GetItem(Q, open=True))
        client.is_slow = True
        assert await bench.tell(client, GetItem(Q, open=True)) == []
        client.is_lost = True
        bench.writer.leave(client)
        await bench.settle()
        assert await bench.tell(other, GetItem(Q)) == [value("q", b"a")]
        assert bench.engine.stats().open_reads == 0
        assert not bench.dialect._held
        assert not bench.dialect._put_off

    run(test)


def test_client_that_is_slow_in_a_batch_that_fails_is_put_off_once():
    async def test(bench: Bench) -> None:
        slow, other = Caller(), Caller()
        await bench.tell(other, Put("q", 0, b"a"))
        slow.is_slow = True
        bench.disk.fail("write", error=errno.ENOSPC, times=1000)
        bench.writer.submit(slow, [GetItem(Q), Version()])
        assert await bench.tell(other, Put("q", 0, b"b")) == [reply_bytes(NO_ROOM)]
        bench.disk.heal()
        slow.is_slow = False
        bench.dialect.resume(slow)
        await bench.settle()
        assert slow.told == [value("q", b"a"), b"V\r\n"]

    run(test)


@pytest.mark.parametrize("was_put_off_before", [False, True])
def test_client_that_resumes_while_a_batch_fails_is_answered_once(was_put_off_before: bool):
    async def test(bench: Bench) -> None:
        slow, other = Caller(), Caller()
        await bench.tell(other, Put("q", 0, b"a"), Put("q", 0, b"b"))
        slow.is_slow = True
        requests = [GetItem(Q), Version()]
        if was_put_off_before:
            assert await bench.tell(slow, requests.pop(0)) == []
        write, is_writing, may_write = bench.journals.write, threading.Event(), threading.Event()

        def held_up(writes: Sequence[Any]) -> None:
            is_writing.set()
            assert may_write.wait(60)
            write(writes)

        bench.journals.write = held_up  # type: ignore[method-assign]
        bench.disk.fail("write", error=errno.ENOSPC, times=1000)
        bench.writer.submit(slow, requests)
        bench.writer.submit(other, [Put("q", 0, b"c")])
        assert await asyncio.to_thread(is_writing.wait, 60)
        slow.is_slow = False
        bench.dialect.resume(slow)
        may_write.set()
        await bench.settle()
        assert other.told[2:] == [reply_bytes(NO_ROOM)]
        assert slow.told == [value("q", b"a"), b"V\r\n"]

    run(test)


# -- who is hung up on --


def test_nothing_behind_a_command_that_ends_the_connection_is_done():
    async def test(bench: Bench) -> None:
        client, other = Caller(), Caller()
        await bench.tell(other, Put("q", 0, b"a"), Put("p", 0, b"b"))
        told = await bench.tell(
            client, GetItem(Q, open=True), GetItem(Q), GetItem(P), Put("p", 0, b"c")
        )
        assert told == [value("q", b"a"), b"ERROR\r\n"]
        assert await bench.tell(client, GetItem(P)) == []  # it was on its way
        client.is_lost = True
        bench.writer.leave(client)
        await bench.settle()
        assert await bench.tell(other, GetItem(P), GetItem(P)) == [value("p", b"b"), END]
        assert await bench.tell(other, GetItem(Q)) == [value("q", b"a")]
        assert not bench.dialect._held

    run(test)


# -- who waits --


def test_who_stops_sending_is_answered_and_waits_no_longer():
    async def test(bench: Bench) -> None:
        client = Caller()
        bench.writer.submit(client, [GetItem(Q, 60_000), Version()])
        await bench.settle()
        assert client.told == []
        client.is_leaving = True
        bench.dialect.stop_waiting(client)
        await bench.settle()
        assert client.told == [END, b"V\r\n"]
        assert await bench.tell(client, GetItem(Q, 60_000)) == [END]

    run(test)


def test_failed_sync_is_final():
    async def scenario() -> None:
        bench = Bench(SimulatedDisk())
        client = Caller()
        assert await bench.tell(client, Put("q", 0, b"a")) == [STORED]
        bench.disk.fail_next_sync()
        bench.writer.submit(client, [Put("q", 0, b"b")])
        await bench.writer.idle()
        assert len(bench.failures) == 1
        assert client.dropped
        assert client.told == [STORED]
        bench.writer.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("what", ["queues", "readers", "deletes"])
def test_client_that_makes_and_removes_very_many_does_not_hold_up_the_others(what: str):
    """Each of these waits several times for the disk; so a batch has a few of them only."""

    async def test(bench: Bench) -> None:
        hostile, others = Caller(), [Caller(), Caller()]
        await bench.tell(others[0], Put("p", 0, b"x"), Put("q", 0, b"x"))
        if what == "deletes":
            await bench.tell(hostile, *(Put(f"d{n}", 0, b"x") for n in range(50)))
        kinds: dict[str, list[Any]] = {
            "queues": [Put(f"n{n}", 0, b"x") for n in range(50)],
            "readers": [GetItem(Key("q", f"r{n}"), close=True, open=True) for n in range(50)],
            "deletes": [DeleteQueue(Key(f"d{n}")) for n in range(50)],
        }
        before = len(hostile.told)
        bench.writer.submit(hostile, kinds[what])
        bench.writer.submit(others[0], [Put("p", 0, b"y")])
        bench.writer.submit(others[1], [DeleteQueue(Key("unknown")), Put("p", 0, b"z")])
        while not (others[0].told[2:] and others[1].told[1:]):
            await asyncio.sleep(0)
        assert len(hostile.told) - before < 20
        await bench.settle()
        assert len(hostile.told) - before == 50
        assert others[1].told == [DELETED, STORED]

    run(test)


def test_order_of_a_clients_commands_holds_though_some_are_put_off():
    async def test(bench: Bench) -> None:
        client = Caller()
        asked: list[Any] = []
        for n in range(40):
            asked += [
                Put(f"n{n}", 0, b"x"),
                GetItem(Key(f"n{n}")),
                DeleteQueue(Key(f"n{n}")),
                Version(),
            ]
        told = await bench.tell(client, *asked)
        assert told == [
            answer
            for n in range(40)
            for answer in (STORED, value(f"n{n}", b"x"), DELETED, b"V\r\n")
        ]

    run(test)
