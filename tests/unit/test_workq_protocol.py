"""The workq protocol command by command: what each line gives, what is refused, what hangs up."""

from __future__ import annotations

import tracemalloc
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest
from msgspec import structs

from journeyman.protocols.workq.commands import (
    MAX_PAYLOAD_BYTES,
    Add,
    AwaitResult,
    Complaint,
    Complete,
    Delete,
    Event,
    Fail,
    HangUp,
    InspectDeadJobs,
    InspectJob,
    InspectJobs,
    InspectPausedQueues,
    InspectQueue,
    InspectQueues,
    InspectScheduledJobs,
    InspectServer,
    Lease,
    PauseQueue,
    RefusedLine,
    Requeue,
    ResumeQueue,
    RunJob,
    ScheduleJob,
)
from journeyman.protocols.workq.parser import LINE_LIMIT_BYTES, WorkqParser
from journeyman.protocols.workq.replies import (
    DONE,
    NOT_FOUND,
    READ_ONLY,
    TIMED_OUT,
    Finished,
    JobList,
    JobView,
    Leased,
    QueueList,
    QueueView,
    ServerView,
    id_text,
    reply_bytes,
    time_text,
)

TEXT = "00000000-0000-4000-8000-000000000001"
ID = bytes.fromhex(TEXT.replace("-", ""))
SECOND = 1_000_000_000


def events(data: bytes) -> list[Event]:
    return WorkqParser().feed(data)


def event(data: bytes | str) -> Event:
    """The one event of these bytes."""
    found = events(data.encode() if isinstance(data, str) else data)
    assert len(found) == 1, found
    return found[0]


def complaint(data: str) -> Complaint:
    refused = event(data)
    assert isinstance(refused, RefusedLine), refused
    return refused.complaint


# -- what each command gives ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "command"),
    [
        (f"add {TEXT} q 1000 60000 4\r\nping\r\n", Add(ID, "q", 1000, 60000, b"ping")),
        (
            f"add {TEXT} q 1 1 0 -priority=-5 -max-attempts=255 -max-fails=3\r\n\r\n",
            Add(ID, "q", 1, 1, b"", -5, 255, 3),
        ),
        (
            f"add {TEXT} q 1 1 0 -priority=1 -a=1 -b=2 -retry-delay=500\r\n\r\n",
            Add(ID, "q", 1, 1, b"", 1, 0, 0, 500),
        ),
        (
            f"schedule {TEXT} q 1 2 1970-01-01T00:00:05Z 1 -priority=9\r\nx\r\n",
            ScheduleJob(ID, "q", 1, 2, 5 * SECOND, b"x", 9),
        ),
        (f"run {TEXT} q 1 0 1 -priority=+7\r\nx\r\n", RunJob(ID, "q", 1, 0, b"x", 7)),
        (f"run {TEXT} q 1 0 0 -max-attempts=x\r\n\r\n", RunJob(ID, "q", 1, 0, b"")),
        (f"complete {TEXT} 2\r\nok\r\n", Complete(ID, b"ok")),
        (f"fail {TEXT} 0\r\n\r\n", Fail(ID, b"")),
        (f"fail {TEXT} 0 -release=1 -delay=5\r\n\r\n", Fail(ID, b"", 5, is_release=True)),
        (f"result {TEXT} 86400000\r\n", AwaitResult(ID, 86_400_000)),
        ("lease a b.c A-Z_0.9 5\r\n", Lease(("a", "b.c", "A-Z_0.9"), 5)),
        (f"delete {TEXT}\r\n", Delete(ID)),
        ("inspect server\r\n", InspectServer()),
        ("inspect queues 0 100\r\n", InspectQueues(0, 100)),
        ("inspect queue q\r\n", InspectQueue("q")),
        ("inspect jobs q 4294967295 1\r\n", InspectJobs("q", 2**32 - 1, 1)),
        ("inspect scheduled-jobs q 0 1\r\n", InspectScheduledJobs("q", 0, 1)),
        (f"inspect job {TEXT}\r\n", InspectJob(ID)),
        ("inspect dead-jobs q 0 1\r\n", InspectDeadJobs("q", 0, 1)),
        ("inspect paused-queues 0 1\r\n", InspectPausedQueues(0, 1)),
        (f"requeue {TEXT}\r\n", Requeue(ID)),
        ("pause q\r\n", PauseQueue("q")),
        ("resume q\r\n", ResumeQueue("q")),
    ],
)
def test_command_is_read(sent: str, command: Event):
    found = event(sent)
    assert found == command
    assert type(found) is type(command)


@pytest.mark.parametrize("size", ["4", "+4", "004", "0000000000000000000000000000004"])
def test_size_may_have_a_plus_and_zeros(size: str):
    assert event(f"add {TEXT} q 1 1 {size}\r\nping\r\n") == Add(ID, "q", 1, 1, b"ping")


def test_payload_may_hold_line_ends_and_any_byte():
    payload = bytes(range(256)) + b"\r\ndelete x\r\n"
    sent = b"add %b q 1 1 %d\r\n%b\r\n" % (TEXT.encode(), len(payload), payload)
    assert event(sent) == Add(ID, "q", 1, 1, payload)


def test_flags_may_stand_anywhere_behind_the_command():
    sent = f"add -priority=2 {TEXT} q  -max-fails=1 1 1   0\r\n\r\n"
    assert event(sent) == Add(ID, "q", 1, 1, b"", 2, 0, 1)


def test_word_that_begins_with_a_dash_is_no_flag_without_an_equals_sign():
    assert event("inspect queue -x\r\n") == InspectQueue("-x")


def test_what_follows_the_second_equals_sign_of_a_flag_is_passed_over():
    added = event(f"add {TEXT} q 1 1 0 -priority=1=2\r\n\r\n")
    assert isinstance(added, Add)
    assert added.priority == 1


@pytest.mark.parametrize(
    "written",
    [
        TEXT,
        TEXT.upper(),
        TEXT.replace("-", ""),
        "{" + TEXT + "}",
        "urn:uuid:" + TEXT,
        "-" + TEXT,
        TEXT + "zzzz",
        TEXT + "--",
    ],
)
def test_id_is_read_in_all_its_forms(written: str):
    assert event(f"result {written} 0\r\n") == AwaitResult(ID, 0)


@pytest.mark.parametrize(
    "written",
    [
        "abc",
        TEXT[:-2],
        "g" + TEXT[1:],
        "urn:uuid:00000000-0000-4000-8000",  # of 32 characters; the original dies of it
        "urn:uuid:",
        "{",
        "\t" * 36,
        "0000 0000-0000-4000-8000-000000000001".replace(" ", "_"),
    ],
)
def test_malformed_id_is_refused(written: str):
    assert complaint(f"inspect job {written}\r\n") is Complaint.ID


@pytest.mark.parametrize(
    "written",
    [
        "6ba7b810-9dad-11d1-80b4-00c04fd430c4",
        "00000000-0000-0000-0000-000000000000",
        "00000000-0000-4000-c000-0000000000aa",
        "00000000-0000-5000-8000-0000000000aa",
    ],
)
def test_id_of_another_version_makes_no_job_but_can_be_looked_for(written: str):
    raw = bytes.fromhex(written.replace("-", ""))
    for line in ("add {} q 1 1 0", "run {} q 1 1 0", "complete {} 0", "fail {} 0"):
        assert complaint(line.format(written) + "\r\n\r\n") is Complaint.ID
    for line in ("result {} 0", "result {} x"):
        assert complaint(line.format(written) + "\r\n") is Complaint.ID
    assert event(f"inspect job {written}\r\n") == InspectJob(raw)
    assert event(f"delete {written}\r\n") == Delete(raw)


# -- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", Complaint.UNKNOWN_COMMAND),
        ("foo", Complaint.UNKNOWN_COMMAND),
        ("ADD x", Complaint.UNKNOWN_COMMAND),
        (" inspect server", Complaint.UNKNOWN_COMMAND),
        ("inspect\tserver", Complaint.UNKNOWN_COMMAND),
        ("inspect everything", Complaint.UNKNOWN_COMMAND),
        ("-priority=3 inspect server", Complaint.UNKNOWN_COMMAND),
        ("foo -=1", Complaint.FLAGS),
        ("foo -a=", Complaint.FLAGS),
        ("foo -a==1", Complaint.FLAGS),
        ("inspect server -a=1 -a=2", Complaint.FLAGS),
        ("inspect", Complaint.ARGS),
        ("inspect server now", Complaint.ARGS),
        ("inspect server -x=1", Complaint.ARGS),
        ("inspect job", Complaint.ARGS),
        ("inspect jobs q 0", Complaint.ARGS),
        ("inspect jobs q! x 0", Complaint.NAME),
        ("inspect jobs q x 0", Complaint.CURSOR_OFFSET),
        ("inspect jobs q 4294967296 1", Complaint.CURSOR_OFFSET),
        ("inspect jobs q +1 1", Complaint.CURSOR_OFFSET),
        ("inspect queues 0 0", Complaint.LIMIT),
        ("inspect queues 0 101", Complaint.LIMIT),
        ("inspect queue q!", Complaint.NAME),
        ("lease", Complaint.ARGS),
        ("lease q", Complaint.ARGS),
        ("lease q 1 -f=1", Complaint.ARGS),
        ("lease q! x", Complaint.WAIT),
        ("lease q 86400001", Complaint.WAIT),
        ("lease q -1", Complaint.WAIT),
        ("lease q +5", Complaint.WAIT),
        ("lease q q! 5", Complaint.NAME),
        ("lease " + "n" * 256 + " 5", Complaint.NAME),
        ("result abc x", Complaint.ID),
        (f"result {TEXT} x", Complaint.WAIT),
        (f"result {TEXT}", Complaint.ARGS),
        (f"delete {TEXT} {TEXT}", Complaint.ARGS),
        (f"delete {TEXT} -a=1", Complaint.ARGS),
        ("delete", Complaint.ARGS),
        ("pause q!", Complaint.NAME),
        ("resume", Complaint.ARGS),
        ("requeue x", Complaint.ID),
        (f"add {TEXT} q 1 1", Complaint.ARGS),
        (f"add {TEXT} q 1 1 4 5", Complaint.ARGS),
        (f"add {TEXT} q 1 1 x", Complaint.PAYLOAD_SIZE),
        (f"add {TEXT} q 1 1 -1", Complaint.PAYLOAD_SIZE),
        (f"add {TEXT} q 1 1 1_0", Complaint.PAYLOAD_SIZE),
        (f"add {TEXT} q 1 1 1.0", Complaint.PAYLOAD_SIZE),
        (f"complete {TEXT} x", Complaint.PAYLOAD_SIZE),
        (f"fail {TEXT} x", Complaint.RESULT_SIZE),
    ],
)
def test_line_is_refused_and_the_next_one_is_read(line: str, expected: Complaint):
    found = events(line.encode() + b"\r\ninspect server\r\n")
    assert found == [RefusedLine(expected), InspectServer()]


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (f"add {TEXT} q 1 1 5", Complaint.PAYLOAD_SIZE),
        (f"complete {TEXT} 5", Complaint.PAYLOAD_SIZE),
        (f"fail {TEXT} 5", Complaint.RESULT_SIZE),
    ],
)
def test_payload_of_another_size_is_answered_at_once(command: str, expected: Complaint):
    line = command.encode() + b"\r\n"
    # Nothing is certain any more: what follows may be a payload, and is not taken for a command.
    assert events(line + b"ping\r\n") == [RefusedLine(expected), HangUp()]
    assert events(line + b"ping\r\ninspect server\r\n") == [RefusedLine(expected), HangUp()]
    assert events(line + b"ping-x") == [RefusedLine(expected), HangUp()]
    assert events(line + b"ping-\n") == [RefusedLine(expected), HangUp()]
    assert events(line + b"ping-\r") == []


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (f"add {TEXT} q 1 1 2 -a=1 -b=2 -c=3 -d=4", Complaint.ARGS),
        (f"add {TEXT} q 1 1 2 -a=1 -b=2 -c=3 -d=4 -retry-delay=1", Complaint.ARGS),
        (f"add {TEXT} q 1 1 2 -=1", Complaint.FLAGS),
        ("add abc q! x x 2 -priority=x", Complaint.ID),
        (f"add {TEXT} q! x x 2 -priority=x", Complaint.TTR),
        (f"add {TEXT} q! 0 x 2 -priority=x", Complaint.TTL),
        (f"add {TEXT} q! 0 0 2 -priority=x -max-fails=x -max-attempts=x", Complaint.MAX_ATTEMPTS),
        (f"add {TEXT} q! 0 0 2 -priority=x -max-fails=256", Complaint.MAX_FAILS),
        (f"add {TEXT} q! 0 0 2 -priority=2147483648", Complaint.PRIORITY),
        (f"add {TEXT} q! 0 0 2 -priority=-2147483649", Complaint.PRIORITY),
        (f"add {TEXT} q! 0 0 2 -retry-delay=86400001", Complaint.RETRY_DELAY),
        (f"add {TEXT[:14]}1{TEXT[15:]} q! 0 0 2", Complaint.ID),
        (f"add {TEXT} q! 0 0 2", Complaint.NAME),
        (f"add {TEXT[:14]}1{TEXT[15:]} q! {2**32} 0 2", Complaint.TTR),
        (f"add {TEXT[:14]}1{TEXT[15:]} q! {2**32 - 1} 0 2", Complaint.ID),
        (f"add {TEXT} q! 0 {2**64} 2", Complaint.TTL),
        (f"add {TEXT} q! 0 {2**64 - 1} 2", Complaint.NAME),
        (f"run {TEXT} q! {2**32} 1 2 -priority=x", Complaint.TTR),
        (f"add {TEXT} {'n' * 256} 1 1 2", Complaint.NAME),
        (f"add {TEXT} q 0 0 2", Complaint.TTR),
        (f"add {TEXT} q 86400001 0 2", Complaint.TTR),
        (f"add {TEXT} q +1 1 2", Complaint.TTR),
        (f"add {TEXT} q 1 0 2", Complaint.TTL),
        (f"add {TEXT} q 1 2592000001 2", Complaint.TTL),
        (f"add {TEXT} q 1 {'9' * 5000} 2", Complaint.TTL),
        ("schedule abc q x x x 2", Complaint.ID),
        (f"schedule {TEXT} q! 0 0 x 2 -priority=x", Complaint.TIME),
        (f"schedule {TEXT} q! 0 0 2099-01-01T00:00:00Z 2 -priority=x", Complaint.PRIORITY),
        (f"schedule {TEXT} q! 0 0 2099-01-01T00:00:00Z 2", Complaint.NAME),
        (f"run {TEXT} q! 0 x 2 -priority=x", Complaint.PRIORITY),
        (f"run {TEXT} q! 0 x 2", Complaint.WAIT),
        (f"run {TEXT} q! 0 86400001 2", Complaint.WAIT),
        (f"run {TEXT} q! 0 0 2", Complaint.NAME),
        (f"run {TEXT} q 0 0 2", Complaint.TTR),
        (f"run {TEXT} q 1 0 2 -priority=1 -a=1", Complaint.ARGS),
        ("complete abc 2", Complaint.ID),
        (f"complete {TEXT} 2 -a=1", Complaint.ARGS),
        (f"fail {TEXT} 2 -a=1", Complaint.ARGS),
    ],
)
def test_refused_command_takes_its_payload_with_it(line: str, expected: Complaint):
    found = events(line.encode() + b"\r\n\r\n\r\ninspect server\r\n")
    assert found == [RefusedLine(expected), InspectServer()]


@pytest.mark.parametrize("extra", [1, 70_000])
def test_oversized_payload_is_passed_over_without_being_kept(extra: int):
    size = MAX_PAYLOAD_BYTES + extra
    parser = WorkqParser()
    assert parser.feed(f"add {TEXT} q 1 1 {size}\r\n".encode()) == [
        RefusedLine(Complaint.PAYLOAD_SIZE)
    ]
    for _ in range(size // 1000):
        assert parser.feed(b"delete x\r\n" * 100) == []
        assert parser.kept_bytes == 0
    assert parser.feed(b"x" * (size % 1000)) == []
    assert parser.feed(b"\r\ninspect server\r\n") == [InspectServer()]


def test_number_beyond_all_sizes_is_passed_over_and_costs_nothing():
    parser = WorkqParser()
    found = parser.feed(f"fail {TEXT} {'9' * 6000}\r\n".encode() + b"x" * 10_000)
    assert found == [RefusedLine(Complaint.RESULT_SIZE)]
    assert parser.kept_bytes == 0


def test_flags_that_are_wrong_beside_an_oversized_payload_are_complained_about_once():
    size = MAX_PAYLOAD_BYTES + 1
    found = events(b"add %b q 1 1 %d -=1\r\n" % (TEXT.encode(), size) + b"x" * size + b"\r\n\r\n")
    assert found == [RefusedLine(Complaint.FLAGS), RefusedLine(Complaint.UNKNOWN_COMMAND)]


# -- what hangs up --------------------------------------------------------------------------------


@pytest.mark.parametrize("sent", [b"inspect server\n", b"\n", b"x\r \n"])
def test_line_feed_without_a_carriage_return_hangs_up(sent: bytes):
    parser = WorkqParser()
    assert parser.feed(sent + b"inspect server\r\n") == [HangUp()]
    assert parser.closed
    assert parser.feed(b"inspect server\r\n") == []
    assert parser.kept_bytes == 0


@dataclass(frozen=True)
class Mismatch:
    line: str
    complaint: Complaint


@pytest.mark.parametrize(
    "case",
    [
        Mismatch(f"add {TEXT} q 1 1 3", Complaint.PAYLOAD_SIZE),
        Mismatch(f"fail {TEXT} 3", Complaint.RESULT_SIZE),
        Mismatch(f"complete {TEXT} 3 -=1", Complaint.PAYLOAD_SIZE),
    ],
)
def test_payload_of_another_size_than_said_is_refused_and_hangs_up(case: Mismatch):
    parser = WorkqParser()
    found = parser.feed(case.line.encode() + b"\r\nabcdelete " + TEXT.encode() + b"\r\n")
    assert found == [RefusedLine(case.complaint), HangUp()]
    assert parser.closed


def test_oversized_payload_without_its_end_hangs_up():
    size = MAX_PAYLOAD_BYTES + 1
    found = events(b"add %b q 1 1 %d\r\n" % (TEXT.encode(), size) + b"x" * (size + 2))
    assert found == [RefusedLine(Complaint.PAYLOAD_SIZE), HangUp()]


def test_longest_line_is_read_and_a_longer_one_hangs_up():
    longest = b"x" * (LINE_LIMIT_BYTES - 2) + b"\r\n"
    assert events(longest) == [RefusedLine(Complaint.UNKNOWN_COMMAND)]
    assert events(b"x" + longest) == [HangUp()]
    parser = WorkqParser()
    assert parser.feed(b"x" * (LINE_LIMIT_BYTES - 1)) == []
    assert parser.feed(b"x") == [HangUp()]


def test_what_came_before_a_hangup_is_still_given():
    assert events(b"inspect server\r\n\n") == [InspectServer(), HangUp()]


def test_carriage_return_and_line_feed_may_come_apart_anywhere():
    parser = WorkqParser()
    assert parser.feed(f"add {TEXT} q 1 1 4\r".encode()) == []
    assert parser.feed(b"\nping\r") == []
    assert parser.feed(b"\ninspect server\r") == [Add(ID, "q", 1, 1, b"ping")]
    assert parser.feed(b"\n") == [InspectServer()]


def test_payload_that_trickles_in_is_kept_once():
    parser = WorkqParser()
    parser.feed(f"add {TEXT} q 1 1 {MAX_PAYLOAD_BYTES}\r\n".encode())
    tracemalloc.start()
    for _ in range(MAX_PAYLOAD_BYTES // 512):
        parser.feed(b"x" * 512)
    assert parser.kept_bytes == MAX_PAYLOAD_BYTES
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 3 * MAX_PAYLOAD_BYTES
    assert parser.feed(b"\r\n") == [Add(ID, "q", 1, 1, b"x" * MAX_PAYLOAD_BYTES)]


# -- times ----------------------------------------------------------------------------------------


def at(text: str) -> Event:
    return event(f"schedule {TEXT} q 1 1 {text} 0\r\n\r\n")


@pytest.mark.parametrize(
    ("text", "time_ns"),
    [
        ("2099-01-01T00:00:00Z", 4_070_908_800 * SECOND),
        ("2099-01-01T0:00:00Z", 4_070_908_800 * SECOND),
        ("2099-01-01T00:00:00.123456789Z", 4_070_908_800 * SECOND + 123_456_789),
        ("2099-01-01T00:00:00.1234567899Z", 4_070_908_800 * SECOND + 123_456_789),
        ("2099-01-01T00:00:00.0" + "9" * 40 + "Z", 4_070_908_800 * SECOND + 99_999_999),
        ("2099-01-01T00:00:00,5Z", 4_070_908_800 * SECOND + 500_000_000),
        ("9999-12-31T23:59:59Z", 253_402_300_799 * SECOND),
    ],
)
def test_time_is_read(text: str, time_ns: int):
    assert at(text) == ScheduleJob(ID, "q", 1, 1, time_ns, b"")


@pytest.mark.parametrize(
    "text",
    [
        "2099-01-01T00:00:00+00:00",
        "2099-01-01T00:00:00",
        "2099-02-30T00:00:00Z",
        "2099-1-1T00:00:00Z",
        "2099-01-01T24:00:00Z",
        "2099-01-01T00:00:60Z",
        "2099-01-01T00:00:00.Z",
        "0000-01-01T00:00:00Z",
        "now",
    ],
)
def test_time_is_refused(text: str):
    assert at(text) == RefusedLine(Complaint.TIME)


def test_time_in_the_year_one_means_at_once():
    assert at("0001-01-01T00:00:00Z") == Add(ID, "q", 1, 1, b"")


# -- replies --------------------------------------------------------------------------------------

MOMENT = int(datetime(2026, 11, 15, 18, 56, 50, tzinfo=UTC).timestamp()) * SECOND + 999_999_999


def test_short_replies():
    assert reply_bytes(DONE) == b"+OK\r\n"
    assert reply_bytes(TIMED_OUT) == b"-TIMEOUT\r\n"
    assert reply_bytes(NOT_FOUND) == b"-NOT-FOUND\r\n"
    assert reply_bytes(RefusedLine(Complaint.DUPLICATE_JOB)) == b"-CLIENT-ERROR Duplicate job\r\n"
    assert READ_ONLY.startswith(b"-SERVER-ERROR Read-only mode ")


def test_leased_job_and_result_are_raw_behind_their_size():
    assert reply_bytes(Leased(ID, "q", 1500, b"a\r\n\xff")) == (
        b"+OK 1\r\n%b q 1500 4\r\na\r\n\xff\r\n" % TEXT.encode()
    )
    assert reply_bytes(Finished(ID, False, b"")) == b"+OK 1\r\n%b 0 0\r\n\r\n" % TEXT.encode()
    assert reply_bytes(Finished(ID, True, b"ok")) == b"+OK 1\r\n%b 1 2\r\nok\r\n" % TEXT.encode()


def test_job_says_how_many_keys_it_has():
    plain = JobView(ID, "q", "leased", 4, 3, 6, 5, -7, 1, 2, 0, MOMENT, MOMENT, b"\xff")
    block = reply_bytes(JobList((plain, structs.replace(plain, scheduled_ns=MOMENT))))
    assert block.startswith(b"+OK 2\r\n" + TEXT.encode() + b" 12\r\nname q\r\n")
    first, second = block[7:].split(TEXT.encode())[1:]
    assert first.count(b"\r\n") == 1 + 12
    assert b"payload-size 1\r\npayload \xff\r\n" in first
    assert first.endswith(
        b"max-attempts 3\r\nattempts 4\r\nmax-fails 5\r\nfails 6\r\npriority -7\r\nstate 4\r\n"
        b"created 2026-11-15T18:56:50Z\r\n"
    )
    assert second == first.replace(b" 12", b" 13", 1) + b"time 2026-11-15T18:56:50Z\r\n"


def test_queues_and_server_say_how_many_keys_they_have():
    queues = QueueList((QueueView("a", 1, 2, paused=True), QueueView("b", 0, 0)))
    assert reply_bytes(queues) == (
        b"+OK 2\r\na 2\r\nready-len 1\r\nscheduled-len 2\r\n"
        b"b 2\r\nready-len 0\r\nscheduled-len 0\r\n"
    )
    assert reply_bytes(QueueList(())) == b"+OK 0\r\n"
    assert reply_bytes(ServerView(3, 1, MOMENT)) == (
        b"+OK 1\r\nserver 3\r\nactive-clients 3\r\nevicted-jobs 1\r\n"
        b"started 2026-11-15T18:56:50Z\r\n"
    )


@pytest.mark.parametrize(
    ("unix_ns", "text"),
    [
        (-1, "1969-12-31T23:59:59Z"),
        (-(10**22), "0001-01-01T00:00:00Z"),
        (10**22, "9999-12-31T23:59:59Z"),
    ],
)
def test_time_outside_the_calendar_is_shown_as_its_end(unix_ns: int, text: str):
    assert time_text(unix_ns) == text


def test_id_is_written_in_lower_case_with_dashes():
    assert id_text(bytes(range(16))) == "00010203-0405-0607-0809-0a0b0c0d0e0f"
