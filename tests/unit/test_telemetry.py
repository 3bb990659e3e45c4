"""Telemetry with a collector of our own making: sampling, bounds, failures, the end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import pytest

from journeyman.config import TelemetrySettings
from journeyman.engines.ztick.messages import DONE, JobNotFound, TriggerDue
from journeyman.errors import UsageError
from journeyman.formats.ztick import Shell
from journeyman.protocols.ztick.commands import Get, Set
from journeyman.servers.core.metrics import Family
from journeyman.servers.core.server_log import ServerLog
from journeyman.servers.ztick.metrics import ServerMetrics
from journeyman.servers.ztick.runs import EndedRun
from journeyman.servers.ztick.spans import RequestSpan, RunSpan, Span
from journeyman.servers.ztick.telemetry import (
    MAX_SPANS_A_SECOND,
    MAX_WAITING_SPANS,
    RateLimit,
    Telemetry,
)
from journeyman.testing import ManualClock
from tests.support.stat_lines import STAT

WAIT_S = 60.0
CLIENT = object()


class Collector:
    """Takes what is exported; ``answer`` says how that goes."""

    def __init__(self, answer: Callable[[], str] = str) -> None:
        self.answer = answer
        self.spans: list[Span] = []
        self.exports: list[list[Span]] = []
        self.families: list[Sequence[Family]] = []
        self.called = threading.Semaphore(0)

    def export_spans(self, spans: Sequence[Span]) -> str:
        self.exports.append(list(spans))
        self.called.release()
        if not (reason := self.answer()):
            self.spans += spans
        return reason

    def export_figures(self, families: Sequence[Family], now_ns: int) -> str:
        self.families.append(families)
        self.called.release()
        return self.answer()

    def wait(self, calls: int) -> None:
        for _ in range(calls):
            assert self.called.acquire(timeout=WAIT_S)


class Bench:
    def __init__(self, collector: Collector, *, interval_ms: int = 3_600_000) -> None:
        self.clock = ManualClock()
        self.metrics = ServerMetrics()
        self.lines: list[str] = []
        self.telemetry = Telemetry(
            TelemetrySettings(enabled=True, flush_interval_ms=interval_ms),
            self.metrics,
            lambda: STAT,
            self.clock,
            ServerLog(self.clock, self.lines.append),
            exporter=collector,
        )

    def gets(self, count: int) -> None:
        requests = [(CLIENT, Get(b"%d" % number, "job")) for number in range(count)]
        self.telemetry.requests(requests, [JobNotFound("job")] * count, self.clock.now_ns())

    def export(self) -> None:
        """One round of the thread: what a stop sends."""
        self.telemetry.start()
        self.telemetry.stop()


def test_requests_and_runs_become_spans():
    collector = Collector()
    bench = Bench(collector)
    begun_ns = bench.clock.now_ns()
    bench.clock.advance(0.002)
    bench.telemetry.requests(
        [(CLIENT, Set(b"r1", "a", 1)), (CLIENT, Get(b"r2", "b"))],
        [DONE, JobNotFound("b")],
        begun_ns,
    )
    run = EndedRun("a", 1, begun_ns, 5, True, "")
    bench.telemetry.run(Shell("true"), run)
    bench.export()
    ended_ns = begun_ns + 2_000_000
    assert collector.spans == [
        RequestSpan(b"r1", "set", "ok", begun_ns, ended_ns),
        RequestSpan(b"r2", "get", "not_found", begun_ns, ended_ns),
        RunSpan("shell", run),
    ]
    assert len(collector.families) == 1


def test_the_servers_own_commands_are_no_requests_and_use_nothing_up():
    collector = Collector()
    bench = Bench(collector)
    for _ in range(10 * MAX_SPANS_A_SECOND):
        bench.telemetry.requests([(None, TriggerDue())], [DONE], 1)
    bench.gets(1)
    bench.export()
    assert [type(span) for span in collector.spans] == [RequestSpan]


def test_of_a_large_batch_some_are_taken_from_all_over_it():
    collector = Collector()
    bench = Bench(collector)
    bench.gets(10 * MAX_SPANS_A_SECOND)
    bench.export()
    numbers = [int(span.request_id) for span in collector.spans if isinstance(span, RequestSpan)]
    assert numbers == list(range(0, 10 * MAX_SPANS_A_SECOND, 10))


@pytest.mark.parametrize("size", [1, 2, 3, 99, 100, 101, 150, 199, 250, 1023])
def test_a_sample_never_exceeds_what_is_allowed(size):
    collector = Collector()
    bench = Bench(collector)
    for _ in range(200):
        bench.gets(size)
    bench.export()
    assert size <= len(collector.spans) * 11
    assert len(collector.spans) <= MAX_SPANS_A_SECOND


def test_the_sample_goes_on_in_the_next_second():
    collector = Collector()
    bench = Bench(collector)
    for _ in range(3):
        for _ in range(2 * MAX_SPANS_A_SECOND):
            bench.gets(1)
        bench.clock.advance(1)
    bench.export()
    assert len(collector.spans) == 3 * MAX_SPANS_A_SECOND


def test_an_allowance_is_earned_over_time_and_not_saved_for_ever():
    allowance = RateLimit(a_second=10, left=10, last_ns=0)
    assert allowance.at(0) == 10
    allowance.take(10)
    assert allowance.at(50_000_000) == 0
    assert allowance.at(100_000_000) == 1
    assert allowance.at(3_600_000_000_000) == 10


def test_spans_that_nobody_fetches_are_bounded_and_counted():
    bench = Bench(Collector())
    more = 2 * MAX_SPANS_A_SECOND
    for _ in range((MAX_WAITING_SPANS + more) // MAX_SPANS_A_SECOND + 1):
        bench.gets(MAX_SPANS_A_SECOND)
        bench.clock.advance(1)
    assert len(bench.telemetry._waiting) == MAX_WAITING_SPANS
    assert bench.metrics.spans_crowded_out >= more


def test_a_collector_that_fails_costs_its_spans_and_is_told_once():
    reasons = iter(["no route", "no route", "", ""])
    collector = Collector(lambda: next(reasons, ""))
    bench = Bench(collector, interval_ms=0)
    bench.gets(3)
    bench.telemetry.start()
    collector.wait(1)  # the spans: refused
    collector.wait(1)  # the figures of the next round: refused
    collector.wait(2)  # the figures of two more: taken
    bench.telemetry.stop()
    assert bench.metrics.spans_not_taken == 3
    assert [line.split(" ", 1)[1] for line in bench.lines] == [
        'WARN telemetry cannot be sent; the server goes on reason="no route"\n',
        "INFO telemetry is sent again\n",
    ]
    assert bench.metrics.exports["traces", False] == 1
    assert bench.metrics.exports["metrics", False] == 1
    assert bench.metrics.exports["metrics", True] >= 2


def test_an_exporter_that_raises_does_not_end_the_thread():
    def broken() -> str:
        raise RuntimeError("unforeseen")

    collector = Collector(broken)
    bench = Bench(collector, interval_ms=0)
    bench.telemetry.start()
    collector.wait(3)
    bench.telemetry.stop()
    assert "RuntimeError: unforeseen" in bench.lines[0]
    assert len(bench.lines) == 1


def test_many_spans_are_sent_in_several_requests_and_none_behind_a_failure():
    answers = iter(["", "full"])
    collector = Collector(lambda: next(answers, ""))
    bench = Bench(collector)
    for _ in range(12):
        bench.gets(MAX_SPANS_A_SECOND)
        bench.clock.advance(1)
    bench.export()
    assert [len(spans) for spans in collector.exports] == [512, 512]
    assert bench.metrics.spans_not_taken == 1200 - 512
    assert not collector.families


def test_a_collector_that_never_returns_does_not_hold_up_the_stop():
    release = threading.Event()

    def hang() -> str:
        release.wait(WAIT_S)
        return ""

    collector = Collector(hang)
    bench = Bench(collector, interval_ms=0)
    bench.telemetry.start()
    collector.wait(1)
    bench.telemetry.stop()  # returns although the thread has not
    assert bench.telemetry._thread.is_alive()
    release.set()
    bench.telemetry._thread.join(WAIT_S)
    assert not bench.telemetry._thread.is_alive()


def test_what_was_never_started_can_be_stopped():
    Bench(Collector()).telemetry.stop()


@pytest.mark.parametrize(
    "endpoint", ["collector:4318", "ftp://collector", "http://", "http://[::1", "http://c:99999"]
)
def test_an_endpoint_that_is_no_url_is_named(endpoint):
    clock = ManualClock()
    with pytest.raises(UsageError, match=r"^telemetry\.endpoint = .*expected the URL"):
        Telemetry(
            TelemetrySettings(enabled=True, endpoint=endpoint),
            ServerMetrics(),
            lambda: STAT,
            clock,
            ServerLog(clock, print),
        )
