"""The single writer: batches, order, what happens when the log cannot be written."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from journeyman.engines.ztick.messages import (
    Accepted,
    JobNotFound,
    Reply,
    Resume,
    RunFinished,
    ScheduledJobState,
    ZtickStats,
)
from journeyman.errors import LogFull, LogPoisoned
from journeyman.formats.framing import DecodedRecords
from journeyman.formats.ztick import CODEC, JobRemoved, JobSet, Shell, Status
from journeyman.protocols.ztick.commands import (
    ErrorCode,
    Get,
    Query,
    RefusedCommand,
    Remove,
    Set,
    SetMany,
    SetRule,
    Stat,
)
from journeyman.servers.core import group_commit
from journeyman.servers.core.group_commit import (
    MAX_BATCH,
    QUICK_BYTES,
    QUICK_IN_A_ROW,
    QUICK_NS,
)
from journeyman.servers.ztick.writer import Request
from tests.support.schedule_writer import FAR_NS, Bench, Caller, NotingRecorder, sets


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(test())


def ids(caller: Caller) -> list[bytes]:
    return [request_id for request_id, _ in caller.told]


def test_commands_that_gather_share_one_write():
    async def scenario():
        bench, caller = Bench(), Caller()
        bench.journal.gate.clear()
        bench.writer.submit(caller, sets("first"))
        await asyncio.sleep(0.01)
        for number in range(50):
            bench.writer.submit(caller, sets(f"job.{number}"))
        bench.journal.gate.set()
        await bench.settle()
        assert [len(write) for write in bench.journal.writes] == [1, 50]
        assert ids(caller) == [b"first", *(b"job.%d" % number for number in range(50))]

    run(scenario)


@pytest.mark.parametrize("is_slow", [False, True])
def test_after_a_slow_write_the_clients_that_it_answered_share_the_next_one(is_slow: bool):
    async def scenario():
        bench, other = Bench(), Caller()

        class Eager(Caller):
            def answered(self, answers: list[Any]) -> None:
                super().answered(answers)
                if self.calls == 1:
                    bench.writer.submit(self, sets("again"))

        if is_slow:
            bench.journal.take_time = lambda: bench.clock.advance_ns(QUICK_NS)
        bench.journal.gate.clear()
        bench.writer.submit(Eager(), sets("first"))
        while bench.writer.batches == 0:
            await asyncio.sleep(0)
        bench.writer.submit(other, sets("other"))
        bench.journal.gate.set()
        await bench.settle()
        names = [[record.identifier for record in write] for write in bench.journal.writes]
        last = [["other", "again"]] if is_slow else [["other"], ["again"]]
        assert names == [["first"], *last]

    run(scenario)


def test_nobody_is_answered_before_the_write_has_ended():
    async def scenario():
        bench, caller, reader = Bench(), Caller(), Caller()
        bench.journal.gate.clear()
        bench.writer.submit(caller, sets("job"))
        await asyncio.sleep(0.01)
        bench.writer.submit(reader, [Get(b"g", "job")])
        await asyncio.sleep(0.05)
        assert caller.told == []
        assert reader.told == []
        bench.journal.gate.set()
        await bench.settle()
        assert caller.told == [(b"job", Accepted())]
        assert reader.told == [(b"g", ScheduledJobState(Status.PLANNED, FAR_NS))]

    run(scenario)


def test_answers_of_one_client_stay_in_order_over_kinds_and_batches():
    async def scenario():
        bench, caller = Bench(), Caller()
        count = 3 * MAX_BATCH
        for number in range(count):
            name = str(number).encode()
            kind = number % 3
            request: Request = Get(name, "x") if kind == 0 else Set(name, "x", number)
            if kind == 2:
                request = RefusedCommand(name, ErrorCode.INVALID_ARGS, "no")
            bench.writer.submit(caller, [request])
        await bench.settle()
        assert ids(caller) == [str(number).encode() for number in range(count)]
        assert caller.calls == 3

    run(scenario)


def test_reads_alone_write_nothing():
    async def scenario():
        bench, caller = Bench(), Caller()
        bench.writer.submit(caller, [Get(b"1", "x"), Stat(b"2"), Remove(b"3", "x")])
        await bench.settle()
        assert bench.journal.writes == []
        assert [type(reply) for _, reply in caller.told] == [
            JobNotFound,
            ZtickStats,
            JobNotFound,
        ]

    run(scenario)


def test_memory_only_answers_without_a_journal():
    async def scenario():
        bench, caller = Bench(memory=True), Caller()
        bench.writer.submit(caller, sets("a", "b"))
        await bench.settle()
        assert ids(caller) == [b"a", b"b"]
        assert bench.journal.writes == []

    run(scenario)


def test_runs_start_only_when_their_records_are_written():
    async def scenario():
        bench, caller = Bench(), Caller()
        bench.writer.submit(
            caller, [SetRule(b"r", "rule", "job", Shell("true")), Set(b"s", "job", 0)]
        )
        await bench.settle()
        bench.journal.gate.clear()
        bench.writer.submit_due()
        await asyncio.sleep(0.05)
        assert bench.started == []
        bench.journal.gate.set()
        await bench.settle()
        assert [effect.identifier for effect in bench.started] == ["job"]
        assert bench.records_at_start == [3]
        bench.writer.submit_own(RunFinished(bench.started[0].run_id, True))
        await bench.settle()
        assert bench.journal.records[-1] == JobSet("job", 0, Status.EXECUTED)

    run(scenario)


def test_due_is_submitted_once_until_it_was_decided():
    async def scenario():
        bench = Bench()
        for _ in range(10):
            bench.writer.submit_due()
        await bench.settle()
        assert bench.writer.commands == 1
        bench.writer.submit_due()
        await bench.settle()
        assert bench.writer.commands == 2

    run(scenario)


def test_a_full_disk_refuses_changes_and_reads_go_on():
    async def scenario():
        bench, caller = Bench(), Caller()
        bench.writer.submit(caller, sets("kept"))
        await bench.settle()
        caller.told.clear()
        bench.journal.errors.append(LogFull("log", "no room"))
        bench.writer.submit(
            caller,
            [
                Set(b"1", "new", FAR_NS),
                Get(b"2", "new"),
                Remove(b"3", "kept"),
                Get(b"4", "kept"),
                Remove(b"5", "never"),
                RefusedCommand(b"6", ErrorCode.INVALID_ARGS, "no"),
            ],
        )
        await bench.settle()
        assert [reply for _, reply in caller.told[:5]] == [
            "failed",
            JobNotFound("new"),
            "failed",
            ScheduledJobState(Status.PLANNED, FAR_NS),
            "failed",
        ]
        assert ids(caller) == [b"1", b"2", b"3", b"4", b"5", b"6"]
        assert [type(trouble) for trouble in bench.troubles] == [LogFull]
        caller.told.clear()
        bench.writer.submit(caller, sets("again"))
        await bench.settle()
        assert caller.told == [(b"again", Accepted())]
        assert bench.troubles[1:] == [None]
        assert bench.failures == []

    run(scenario)


def test_what_the_server_has_to_record_is_tried_again(monkeypatch):
    monkeypatch.setattr(group_commit, "RETRY_S", 0.01)

    async def scenario():
        bench, caller = Bench(), Caller()
        bench.writer.submit(
            caller, [SetRule(b"r", "rule", "job", Shell("true")), Set(b"s", "job", 0)]
        )
        bench.writer.submit_own(Resume())
        await bench.settle()
        bench.writer.submit_due()
        await bench.settle()
        (effect,) = bench.started
        bench.journal.errors += [LogFull("log", "no room")] * 3
        bench.writer.submit_own(RunFinished(effect.run_id, False))
        await bench.settle()
        assert bench.journal.errors == []
        assert bench.journal.records[-1] == JobSet("job", 0, Status.FAILED)

    run(scenario)


def test_a_due_job_that_could_not_be_recorded_is_not_started():
    async def scenario():
        bench, caller = Bench(), Caller()
        bench.writer.submit(
            caller, [SetRule(b"r", "rule", "job", Shell("true")), Set(b"s", "job", 0)]
        )
        await bench.settle()
        bench.journal.errors.append(LogFull("log", "no room"))
        bench.writer.submit_due()
        await bench.settle()
        assert bench.started == []
        assert bench.schedule.next_due_ns() == 0
        bench.writer.submit_due()
        await bench.settle()
        assert [effect.identifier for effect in bench.started] == ["job"]

    run(scenario)


def test_a_failed_sync_drops_everyone_and_is_final():
    async def scenario():
        bench, caller, other = Bench(), Caller(), Caller()
        bench.journal.gate.clear()
        bench.journal.errors.append(LogPoisoned("log", "sync failed"))
        bench.writer.submit(caller, sets("job"))
        await asyncio.sleep(0.01)
        bench.writer.submit(other, [Get(b"g", "job")])
        bench.journal.gate.set()
        await bench.settle()
        assert caller.dropped
        assert other.dropped
        assert caller.told == other.told == []
        assert [type(error) for error in bench.failures] == [LogPoisoned]
        late = Caller()
        bench.writer.submit(late, [Get(b"g", "job")])
        await asyncio.sleep(0.01)
        assert late.dropped
        assert late.told == []

    run(scenario)


def test_clients_are_told_when_there_is_room_again():
    async def scenario():
        bench, caller = Bench(max_waiting=10), Caller()
        bench.journal.gate.clear()
        bench.writer.submit(caller, sets("first"))
        await asyncio.sleep(0.01)
        bench.writer.submit(caller, sets(*map(str, range(10))))
        assert not bench.writer.has_room
        bench.writer.notify_when_room(caller)
        bench.journal.gate.set()
        await bench.settle()
        assert caller.rooms == 1

    run(scenario)


def test_a_namespace_limits_what_a_client_sees_and_changes():
    async def scenario():
        bench, owner, guest = Bench(), Caller(), Caller("guest.")
        bench.writer.submit(owner, sets("mine", "guest.1"))
        await bench.settle()
        bench.writer.submit(guest, [Remove(b"1", "mine"), Query(b"2", "")])
        await bench.settle()
        (_, denied), (_, listing) = guest.told
        assert type(denied).__name__ == "OutOfScope"
        assert [row[0] for rows in listing for row in rows] == ["guest.1"]

    run(scenario)


def test_sets_that_came_together_are_decided_apart_for_a_namespace_and_refused_together():
    many = SetMany([(b"1", b"mine", b"5"), (b"2", b"guest.1", b"6")])

    class Guest(Caller):
        def render(self, request: Request, reply: Reply | None) -> bytes:
            return b"%b %b;" % (request.request_id, type(reply).__name__.encode())

    async def scenario():
        bench, guest, owner = Bench(), Guest("guest."), Caller()
        bench.writer.submit(guest, [many])
        await bench.settle()
        assert guest.told == [b"1 OutOfScope;2 Accepted;"]
        assert bench.journal.records == [JobSet("guest.1", 6, Status.PLANNED)]
        bench.journal.errors.append(LogFull("log", "no room"))
        bench.writer.submit(owner, [many])
        await bench.settle()
        assert owner.told == [(b"1", "failed")]
        assert bench.schedule.stats().jobs_total == 1
        seen: list[Any] = []
        bench.writer.watchers.append(seen.extend)
        bench.writer.submit(owner, [many])
        await bench.settle()
        assert seen == [JobSet("mine", 5, Status.PLANNED), JobSet("guest.1", 6, Status.PLANNED)]

    run(scenario)


def test_sets_of_several_clients_are_decided_in_the_order_in_which_they_came():
    async def scenario():
        bench, owner, other, guest = Bench(), Caller(), Caller(), Caller("guest.")
        bench.writer.submit(owner, [SetMany([(b"1", b"guest.a", b"5")])])
        bench.writer.submit(other, [SetMany([(b"2", b"guest.a", b"6")]), Get(b"3", "guest.a")])
        bench.writer.submit(owner, [SetMany([(b"4", b"guest.a", b"7")])])
        bench.writer.submit(guest, [Remove(b"5", "guest.a")])
        bench.writer.submit(owner, [SetMany([(b"6", b"guest.a", b"8")]), Get(b"7", "guest.a")])
        await bench.settle()
        assert len(bench.journal.writes) == 1
        set_to = partial(JobSet, "guest.a", status=Status.PLANNED)
        assert [*DecodedRecords(CODEC, bench.journal.records)] == [
            *map(set_to, (5, 6, 7)),
            JobRemoved("guest.a"),
            set_to(8),
        ]
        assert other.told == [
            (b"2", Accepted()),
            (b"3", ScheduledJobState(Status.PLANNED, 6)),
        ]
        assert owner.told[-1] == (b"7", ScheduledJobState(Status.PLANNED, 8))

    run(scenario)


def test_a_batch_takes_as_many_sets_whether_they_came_together_or_not():
    async def scenario():
        bench, caller = Bench(), Caller()
        many = SetMany([(b"r", b"job", b"5")] * 128)
        bench.writer.submit(caller, [many] * (2 * MAX_BATCH // 128))
        await bench.settle()
        assert [len(write) for write in bench.journal.writes] == [MAX_BATCH, MAX_BATCH]

    run(scenario)


def test_loop_waits_for_small_batches_of_a_log_that_no_thread_is_at():
    async def scenario():
        recorder = NotingRecorder()
        bench, here = Bench(recorder=recorder), threading.current_thread().name

        async def is_written_here(*requests: Request) -> bool:
            bench.writer.submit(Caller(), requests)
            await bench.settle()
            return recorder.threads[-1] == here

        for _ in range(QUICK_IN_A_ROW):
            assert not await is_written_here(*sets("a"))
        assert await is_written_here(*sets("a"))
        assert await is_written_here(SetMany([(b"r", b"job", b"5")] * 128))
        row = (b"r", b"x" * 1000, b"5")
        assert not await is_written_here(SetMany([row] * (QUICK_BYTES // 1000)))
        assert not await is_written_here(*[SetMany([row])] * (QUICK_BYTES // 1000))
        assert await is_written_here(*sets("b"))
        rules = [SetRule(b"r", f"rule{n}", "x", Shell("y")) for n in range(17)]
        assert await is_written_here(*rules[:1])
        assert not await is_written_here(*rules)
        let_go = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            at_the_log = threading.Event()

            def look(*_: object) -> None:
                at_the_log.set()
                assert let_go.wait(60)

            pool.submit(recorder.log.appender.observe, look)
            assert at_the_log.wait(60)
            bench.writer.submit(Caller(), sets("c"))
            await asyncio.sleep(0)  # it did not wait, for nobody has let go yet
            let_go.set()
            await bench.settle()
        assert recorder.threads[-1] != here

    run(scenario)


def test_a_mistake_in_a_decision_stops_the_server_instead_of_hanging_clients():
    async def scenario():
        bench, caller = Bench(), Caller()

        def broken(*_: object) -> None:
            raise ZeroDivisionError

        bench.writer._engine = type("Broken", (), {"begin_batch": broken})()
        bench.writer.submit(caller, sets("a"))
        bench.writer.submit(caller, sets("b"))
        await bench.settle()
        assert [type(error) for error in bench.failures] == [ZeroDivisionError]

    run(scenario)
