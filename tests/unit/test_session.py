"""One connection, its transport and the writer behind it played by the test."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, cast

import pytest

from journeyman.clock import SystemClock
from journeyman.config import parse_tokens
from journeyman.engines.ztick.messages import DONE, JobNotFound
from journeyman.errors import SnapshotGivenUp
from journeyman.protocols.ztick.replies import Metrics
from journeyman.servers.core.access import Access
from journeyman.servers.core.connection import LIST_STALL_S, PARSE_BYTES, WINDOW
from journeyman.servers.core.server_log import ServerLog
from journeyman.servers.core.shared import Shared
from journeyman.servers.ztick.session import ZtickContext, ZtickSession
from journeyman.servers.ztick.writer import Request

TOKENS = '[token.a]\nsecret = "right"\nnamespace = "a."\n'


class Timer:
    def __init__(self, after_s: float, call: Any, args: tuple[Any, ...]) -> None:
        self.after_s, self.call, self.args, self.cancelled = after_s, call, args, False

    def cancel(self) -> None:
        self.cancelled = True


class Table:
    """Loop, transport and writer in one; a session in the middle."""

    def __init__(
        self,
        *,
        tokens: str = "",
        unsent_bytes: int = 65536,
        total_unsent_bytes: int = 64 * 1024 * 1024,
    ) -> None:
        self.sent = b""
        self._reading = True
        self.closed = self.aborted = False
        self.taken: list[Request] = []
        self.has_room = True
        self.wants_room = False
        self.timers: list[Timer] = []
        self.soon: list[Any] = []
        self.lines: list[str] = []
        me = cast(Any, self)
        self.around = ZtickContext(
            me,
            me,
            ServerLog(SystemClock(), self.lines.append),
            Shared.create(me, ServerLog(SystemClock(), self.lines.append), total_unsent_bytes),
            Access(parse_tokens(tokens, "tokens") if tokens else None),
            unsent_bytes=unsent_bytes,
            metrics=lambda stats: cast(Metrics, stats),
        )
        self.session = ZtickSession(self.around)
        self.session.connection_made(me)

    # the loop
    now_s = 0.0

    def time(self) -> float:
        return self.now_s

    def call_later(self, after_s: float, call: Any, *args: Any) -> Timer:
        timer = Timer(after_s, call, args)
        self.timers.append(timer)
        return timer

    def call_soon(self, call: Any) -> None:
        self.soon.append(call)

    def run_soon(self, times: int = 1000) -> None:
        for _ in range(times):
            if not self.soon:
                return
            self.soon.pop(0)()

    def ring(self, after_s: float) -> None:
        for timer in [t for t in self.timers if t.after_s == after_s and not t.cancelled]:
            timer.cancelled = True
            timer.call(*timer.args)

    # the transport
    def get_extra_info(self, name: str) -> Any:
        return ("10.0.0.1", 7) if name == "peername" else None

    def set_write_buffer_limits(self, high: int) -> None:
        self.high = high

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: bytes) -> None:
        self.sent += data

    def pause_reading(self) -> None:
        assert self._reading
        self._reading = False

    def resume_reading(self) -> None:
        assert not self._reading
        self._reading = True

    def is_reading(self) -> bool:
        return self._reading

    def is_closed(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.aborted = True

    # the writer
    def submit(self, client: ZtickSession, requests: Iterable[Request]) -> None:
        assert client is self.session
        self.taken += requests

    def notify_when_room(self, client: ZtickSession) -> None:
        self.wants_room = True

    def answer(self, count: int) -> None:
        requests, self.taken = self.taken[:count], self.taken[count:]
        self.session.answered([self.session.render(each, DONE) for each in requests])


def gets(begin: int, end: int) -> bytes:
    return b"".join(b"r%d GET x\n" % number for number in range(begin, end))


def test_commands_go_to_the_writer_and_answers_to_the_socket():
    table = Table()
    table.session.data_received(b"r1 GET a\nr2 GET b\nr3 G")
    assert [request.request_id for request in table.taken] == [b"r1", b"r2"]
    table.answer(2)
    assert table.sent == b"r1 OK\nr2 OK\n"
    table.session.data_received(b"ET c\n")
    assert [request.request_id for request in table.taken] == [b"r3"]


def test_no_more_than_a_window_is_with_the_writer():
    table = Table()
    table.session.data_received(gets(0, 3 * WINDOW))
    assert len(table.taken) == WINDOW
    assert not table.is_reading()
    table.answer(10)
    assert len(table.taken) == WINDOW
    assert not table.is_reading()
    while table.taken:
        table.answer(WINDOW)
    assert table.is_reading()
    assert table.sent == b"".join(b"r%d OK\n" % number for number in range(3 * WINDOW))


def test_little_is_parsed_ahead_of_the_writer():
    table = Table()
    table.has_room = False
    table.session.data_received(b"r STAT\n" * 40_000)
    assert len(table.session._backlog) <= PARSE_BYTES // 7 + 1
    assert table.wants_room


def test_a_full_writer_is_waited_for():
    table = Table()
    table.has_room = False
    table.session.data_received(gets(0, 3))
    assert table.taken == []
    assert not table.is_reading()
    table.has_room = True
    table.session.room()
    assert len(table.taken) == 3
    assert table.is_reading()


def test_a_client_that_does_not_fetch_is_not_served_further():
    table = Table()
    table.session.data_received(gets(0, 2))
    table.session.pause_writing()
    table.session.data_received(gets(2, 5))
    table.answer(2)
    assert table.taken == []
    assert not table.is_reading()
    table.session.resume_writing()
    assert len(table.taken) == 3
    assert table.is_reading()


def slices(count: int, made: list[int]) -> Iterator[bytes]:
    for number in range(count):
        made.append(number)
        yield b"q %d\n" % number


def test_lists_leave_in_slices_and_hold_back_what_follows():
    table = Table()
    made: list[int] = []
    table.session.data_received(b"q QUERY\nr1 GET a\n")
    assert len(table.taken) == 1
    table.session.answered([slices(5, made)])
    table.run_soon(2)
    assert made == [0, 1]
    table.session.pause_writing()
    table.run_soon()
    assert made == [0, 1]
    assert len(table.taken) == 1
    table.session.resume_writing()
    table.run_soon()
    assert table.sent == b"".join(b"q %d\n" % number for number in range(5))
    assert [request.request_id for request in table.taken] == [b"q", b"r1"]


def test_a_list_that_is_not_fetched_ends_the_connection():
    table = Table()
    table.session.data_received(b"q QUERY\n")
    table.session.answered([slices(5, [])])
    table.session.pause_writing()
    table.ring(LIST_STALL_S)
    assert table.aborted


def test_a_list_that_was_given_up_ends_the_connection():
    def given_up() -> Iterator[bytes]:
        yield b"q a planned 1\n"
        raise SnapshotGivenUp("too slow")

    table = Table()
    table.session.data_received(b"q QUERY\n")
    table.session.answered([given_up()])
    table.run_soon()
    assert table.aborted
    assert any("too slow: closing" in line for line in table.lines)


def test_a_pause_without_a_list_is_patient():
    table = Table()
    table.session.data_received(b"r GET a\n")
    table.session.pause_writing()
    table.ring(LIST_STALL_S)
    assert not table.aborted


def test_a_half_closed_client_is_answered_and_then_closed():
    table = Table()
    table.session.data_received(gets(0, 2 * WINDOW))
    assert table.session.eof_received()
    table.answer(WINDOW)
    assert not table.is_closed()
    table.answer(WINDOW)
    assert table.is_closed()
    assert table.sent.endswith(b"r%d OK\n" % (2 * WINDOW - 1))


def test_a_client_with_nothing_to_hear_is_closed_at_its_end():
    table = Table()
    assert not table.session.eof_received()
    assert table.is_closed()


def test_finish_answers_what_was_received():
    table = Table()
    table.session.data_received(gets(0, 2))
    table.session.finish()
    table.session.data_received(gets(2, 3))
    assert not table.is_closed()
    table.answer(2)
    assert table.is_closed()
    assert table.sent == b"r0 OK\nr1 OK\n"


def test_answers_after_the_connection_is_lost_go_nowhere():
    table = Table()
    table.session.data_received(gets(0, 2))
    table.session.connection_lost(None)
    table.answer(2)
    assert table.sent == b""
    assert not table.around.sessions


def test_a_wrong_secret_is_refused_and_nothing_behind_it_counts():
    table = Table(tokens=TOKENS)
    table.session.data_received(b"AUTH wrong\nr GET a.1\n")
    assert table.taken == []
    assert table.sent == b"ERROR auth_failed\n"
    assert table.is_closed()


def guessed_table() -> Table:
    """Its address has just shown a wrong secret: the next one has to wait."""
    table = Table(tokens=TOKENS)
    ask = table.around.access.attempts.ask
    ask(cast(Any, table), "10.0.0.1", b"", lambda: None, lambda _: None)
    return table


@pytest.mark.parametrize("is_right", [True, False])
def test_a_secret_that_waits_too_long_gets_no_verdict(is_right):
    table = guessed_table()
    table.session.data_received(b"AUTH %b\nr GET a.1\n" % (b"right" if is_right else b"wrong"))
    table.ring(5.0)
    assert table.aborted
    table.now_s = 0.1
    table.ring(0.1)
    assert (table.sent, table.taken) == (b"", [])


def test_nothing_is_read_while_a_secret_waits():
    table = guessed_table()
    table.session.data_received(b"AUTH right\n")
    assert not table.is_reading()
    table.now_s = 0.1
    table.ring(0.1)
    assert table.sent == b"OK\n"
    assert table.is_reading()


def test_a_secret_that_waits_does_not_hold_up_a_stop():
    table = guessed_table()
    table.session.data_received(b"AUTH right\n")
    table.session.finish()
    assert table.aborted


@pytest.mark.parametrize("is_right", [True, False])
def test_a_secret_that_waits_holds_up_what_follows(is_right):
    """The end of input does not end it."""
    table = guessed_table()
    secret = b"right" if is_right else b"wrong"
    table.session.data_received(b"AUTH %b\nr GET a.1\n" % secret)
    table.session.eof_received()
    assert (table.sent, table.taken, table.is_closed(), table.aborted) == (b"", [], False, False)
    table.now_s = 0.1
    table.ring(0.1)
    if is_right:
        assert table.sent == b"OK\n"
        assert len(table.taken) == 1
        table.answer(1)
    else:
        assert table.sent == b"ERROR auth_failed\n"
        assert table.taken == []
    assert table.is_closed()


def test_a_right_secret_brings_its_namespace_and_stops_the_clock():
    table = Table(tokens=TOKENS)
    table.session.data_received(b"AUTH right\nr GET a.1\n")
    assert table.sent == b"OK\n"
    assert table.session.namespace == "a."
    table.ring(5.0)
    assert not table.aborted
    assert len(table.taken) == 1


def test_no_secret_in_time_ends_the_connection():
    table = Table(tokens=TOKENS)
    table.ring(5.0)
    assert table.aborted


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_pieces_of_any_size_give_the_same_answers(size):
    table = Table()
    data = b'r1 GET "a b"\r\nbad\nr2 SET x\nr3 GET y\n'
    for at in range(0, len(data), size):
        table.session.data_received(data[at : at + size])
    requests, table.taken = table.taken, []
    table.session.answered([table.session.render(each, JobNotFound("n")) for each in requests])
    assert table.sent == (
        b'r1 ERROR not_found job "n" does not exist\n'
        b"r2 ERROR invalid_args missing required argument: timestamp\n"
        b'r3 ERROR not_found job "n" does not exist\n'
    )
