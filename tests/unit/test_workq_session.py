"""One workq connection, its transport and the writer behind it played by the test."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import pytest

from journeyman.clock import SystemClock
from journeyman.protocols.workq.commands import (
    Add,
    AwaitResult,
    Complaint,
    InspectJobs,
    InspectServer,
    Lease,
    RefusedLine,
)
from journeyman.protocols.workq.replies import (
    DONE,
    READ_ONLY,
    TIMED_OUT,
    JobList,
    JobView,
    Reply,
    ServerView,
    reply_bytes,
)
from journeyman.servers.core.server_log import ServerLog
from journeyman.servers.core.shared import Shared
from journeyman.servers.workq.session import (
    LARGE_BYTES,
    LOAD_BYTES,
    READ_AHEAD_BYTES,
    WorkqContext,
    WorkqSession,
)
from journeyman.units import MIB

TEXT = "00000000-0000-4000-8000-000000000001"


class Table:
    """Loop, transport and writer in one; a session in the middle."""

    def __init__(self) -> None:
        self.sent = b""
        self._reading = True
        self.closed = self.aborted = False
        self.taken: list[Any] = []
        self.left = 0
        self.has_room = True
        self.soon: list[Any] = []
        me = cast(Any, self)
        self.around = WorkqContext(
            me,
            me,
            ServerLog(SystemClock(), lambda _: None),
            Shared.create(me, ServerLog(SystemClock(), lambda _: None), 64 * MIB),
            started_ns=7_000_000_000,
        )
        self.session = WorkqSession(self.around)
        self.session.connection_made(me)

    # the loop
    def call_later(self, after_s: float, call: Any) -> Any:
        return cast(Any, self)

    def cancel(self) -> None:
        pass

    def call_soon(self, call: Any) -> None:
        self.soon.append(call)

    def run_soon(self) -> None:
        while self.soon:
            self.soon.pop(0)()

    # the transport
    def get_extra_info(self, name: str) -> Any:
        return ("10.0.0.1", 7) if name == "peername" else None

    def set_write_buffer_limits(self, high: int) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: bytes) -> None:
        self.sent += data

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
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
    def submit(self, client: WorkqSession, requests: Iterable[Any]) -> None:
        assert client is self.session
        self.taken += requests

    def leave(self, client: WorkqSession) -> None:
        assert client is self.session
        self.left += 1

    def answer(self, *replies: Reply) -> None:
        del self.taken[: len(replies)]
        self.session.answered([self.session.render(each) for each in replies])


def test_commands_go_to_the_writer_and_answers_to_the_socket():
    table = Table()
    table.session.data_received(f"add {TEXT} q 1 1 4\r\nping\r\nfoo\r\nin".encode())
    added, refused = table.taken
    assert isinstance(added, Add)
    assert refused == RefusedLine(Complaint.UNKNOWN_COMMAND)
    table.answer(DONE, refused)
    assert table.sent == b"+OK\r\n-CLIENT-ERROR Unknown command\r\n"


@pytest.mark.parametrize(
    ("line", "kind"), [("lease q 1000", Lease), (f"result {TEXT} 5", AwaitResult)]
)
def test_nothing_behind_a_command_that_may_wait_starts_before_it_is_answered(line: str, kind: type):
    table = Table()
    table.session.data_received(f"{line}\r\ninspect server\r\n{line}\r\n".encode())
    assert [type(each) for each in table.taken] == [kind]
    table.answer(TIMED_OUT)
    assert [type(each) for each in table.taken] == [InspectServer, kind]
    table.answer(ServerView(0, 0, 0), TIMED_OUT)
    assert table.sent.startswith(b"-TIMEOUT\r\n+OK 1\r\nserver 3\r\nactive-clients 1\r\n")
    assert table.is_reading()


def test_end_of_input_while_a_command_waits_ends_the_wait():
    table = Table()
    table.session.data_received(b"lease q 1000\r\n")
    assert table.session.eof_received()
    assert table.left == 1
    assert table.session.gives_up(Lease(("q",), 1000))
    assert not table.session.is_lost
    assert not table.is_closed()
    table.answer(TIMED_OUT)
    assert table.is_closed()
    assert table.sent == b"-TIMEOUT\r\n"


def test_result_is_waited_for_after_the_end_of_input_until_the_server_stops():
    table = Table()
    table.session.data_received(f"result {TEXT} 300\r\ndelete {TEXT}\r\n".encode())
    assert table.session.eof_received()
    (waiting,) = table.taken
    assert table.left == 0
    assert not table.session.gives_up(waiting)
    table.answer(TIMED_OUT)
    table.answer(DONE)
    assert table.sent == b"-TIMEOUT\r\n+OK\r\n"
    assert table.is_closed()
    table = Table()
    table.session.data_received(f"result {TEXT} 300\r\n".encode())
    table.session.eof_received()
    table.session.finish()
    assert table.left == 1
    assert table.session.gives_up(table.taken[0])


def test_end_of_input_after_which_the_job_comes_still_delivers_it():
    table = Table()
    table.session.data_received(b"lease q 1000\r\n")
    table.session.eof_received()
    table.session.answered([b"+OK 1\r\n..."])
    assert table.sent == b"+OK 1\r\n..."
    assert table.is_closed()


def test_what_was_received_before_the_end_of_input_is_answered():
    table = Table()
    table.session.data_received(f"delete {TEXT}\r\nlease q 5\r\n".encode())
    assert table.session.eof_received()
    assert len(table.taken) == 2
    table.answer(DONE)
    assert not table.is_closed()
    table.answer(TIMED_OUT)
    assert table.is_closed()
    assert table.sent == b"+OK\r\n-TIMEOUT\r\n"


def test_lost_connection_leaves():
    table = Table()
    table.session.data_received(b"lease q 1000\r\n")
    table.session.connection_lost(None)
    assert table.left == 1
    assert table.session.is_lost
    assert table.around.sessions == set()


def test_lost_connection_that_waits_for_nothing_need_not_leave():
    table = Table()
    table.session.connection_lost(None)
    assert table.left == 0


def test_stop_of_the_server_lets_go_of_who_waits():
    table = Table()
    table.session.data_received(b"lease q 1000\r\n")
    table.session.finish()
    assert table.left == 1
    table.answer(TIMED_OUT)
    assert table.is_closed()


def test_end_of_a_connection_is_seen_behind_commands_sent_ahead():
    table = Table()
    table.session.data_received(b"lease q 1000\r\n" + b"inspect server\r\n" * 10)
    assert table.is_reading()
    table.session.data_received(b"inspect server\r\n" * (2 * READ_AHEAD_BYTES // 16))
    assert not table.is_reading()
    table.answer(TIMED_OUT)
    while table.taken:
        table.answer(*([ServerView(0, 0, 0)] * len(table.taken)))
    assert table.is_reading()


def test_megabytes_are_taken_on_only_as_those_before_are_answered():
    table = Table()
    size = MIB
    line = f"add {TEXT} q 1 1 {size}\r\n".encode() + b"x" * size + b"\r\n"
    for _ in range(2 * LOAD_BYTES // size):
        table.session.data_received(line)
    assert len(table.taken) == LOAD_BYTES // size
    assert not table.is_reading()
    table.answer(*([DONE] * len(table.taken)))
    assert len(table.taken) == LOAD_BYTES // size
    table.answer(*([DONE] * len(table.taken)))
    assert table.is_reading()


def test_line_that_is_no_workq_closes_after_what_came_before_is_answered():
    table = Table()
    table.session.data_received(b"inspect server\r\nGET / HTTP/1.1\n")
    assert len(table.taken) == 1
    assert not table.is_closed()
    table.answer(ServerView(0, 0, 0))
    assert table.is_closed()


def view(payload: bytes) -> JobView:
    return JobView(bytes(16), "q", "ready", 0, 0, 0, 0, 0, 1, 1, 0, 0, 0, payload)


@pytest.mark.parametrize("size", [10, LARGE_BYTES])
def test_list_of_jobs_leaves_whole_or_in_slices_and_is_the_same(size: int):
    table = Table()
    table.session.data_received(b"inspect jobs q 0 9\r\ninspect server\r\n")
    assert [type(each) for each in table.taken] == [InspectJobs]
    listing = JobList((view(b"x" * size), view(b"y" * size)))
    table.answer(listing)
    table.run_soon()
    assert table.sent == reply_bytes(listing)
    assert [type(each) for each in table.taken] == [InspectServer]


def test_change_that_could_not_be_recorded_is_answered_as_the_original_does():
    assert Table().session.render_failure() == READ_ONLY


def test_server_view_tells_the_start():
    table = Table()
    answer = table.session.render(ServerView(0, 5, 0))
    assert b"evicted-jobs 5\r\nstarted 1970-01-01T00:00:07Z\r\n" in cast(bytes, answer)
