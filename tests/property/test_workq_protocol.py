"""Laws of the workq protocol, for bytes and values nobody thought of."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from journeyman.protocols import Foreign
from journeyman.protocols.workq import parser as workq_parser
from journeyman.protocols.workq.commands import (
    MAX_COUNT,
    MAX_PAYLOAD_BYTES,
    MAX_PRIORITY,
    MAX_RETRY_DELAY_MS,
    MAX_TTL_MS,
    MAX_TTR_MS,
    MAX_WAIT_MS,
    MIN_PRIORITY,
    Add,
    Complete,
    Event,
    Fail,
    HangUp,
    InspectServer,
    Lease,
    RefusedLine,
    RunJob,
    ScheduleJob,
)
from journeyman.protocols.workq.parser import WorkqParser
from journeyman.protocols.workq.readers import NO_TIME_NS
from journeyman.protocols.workq.replies import Finished, Leased, id_text, reply_bytes

TEXT = b"00000000-0000-4000-8000-000000000001"
NS = 1_000_000_000

# Bytes in which line ends, sizes and command words are common.
PIECES = st.sampled_from(
    [
        *(b"\r\n", b"\r", b"\n", b" ", b"-", b"=", b"x", b"\xff", b"\0"),
        *(b"add %b q 1000 60000 " % TEXT, b"schedule %b q 1 1 2099-01-01T00:00:00Z " % TEXT),
        *(b"run %b q 1 1 " % TEXT, b"complete %b " % TEXT, b"fail %b " % TEXT),
        *(b"0\r\n\r\n", b"3\r\nabc\r\n", b"3\r\nab", b"-3\r\n", b"1048577\r\n", b"12\r\n"),
        *(b"-priority=1 ", b"-=1 ", b"-max-fails=9 ", b"-retry-delay=5 "),
        *(b"lease a b 5\r\n", b"inspect server\r\n", b"inspect ", b"delete %b\r\n" % TEXT),
        *(b"y" * 700, b"\r\n" * 10),
    ]
)
STREAMS = st.one_of(st.lists(PIECES, max_size=30).map(b"".join), st.binary(max_size=200))
IDS = st.uuids(version=4).map(lambda found: found.bytes)
NAMES = st.text("abcXYZ019_.-", min_size=1, max_size=255)
PAYLOADS = st.binary(max_size=300)
COUNTS = st.integers(0, MAX_COUNT)
PRIORITIES = st.integers(MIN_PRIORITY, MAX_PRIORITY)
DELAYS = st.integers(0, MAX_RETRY_DELAY_MS)
TTRS, TTLS = st.integers(1, MAX_TTR_MS), st.integers(1, MAX_TTL_MS)
WAITS = st.integers(0, MAX_WAIT_MS)
TIMES = st.integers(NO_TIME_NS + 1, 253_402_300_799 * NS)
OPTIONS = (PRIORITIES, COUNTS, COUNTS, DELAYS, st.none())
COMMANDS = st.one_of(
    st.builds(Add, IDS, NAMES, TTRS, TTLS, PAYLOADS, *OPTIONS),
    st.builds(ScheduleJob, IDS, NAMES, TTRS, TTLS, TIMES, PAYLOADS, *OPTIONS),
    st.builds(RunJob, IDS, NAMES, TTRS, WAITS, PAYLOADS, PRIORITIES),
    st.builds(Complete, IDS, PAYLOADS, st.integers(0, 2**32 - 1)),
    st.builds(Fail, IDS, PAYLOADS),
    st.builds(Lease, st.lists(NAMES, min_size=1, max_size=5).map(tuple), WAITS),
)


@st.composite
def cut(draw: st.DrawFn, data: bytes) -> list[bytes]:
    places = sorted(draw(st.lists(st.integers(0, len(data)), max_size=8)))
    return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]


def of_pieces(pieces: list[bytes]) -> tuple[list[Event], WorkqParser]:
    parser = WorkqParser()
    return [event for piece in pieces for event in parser.feed(piece)], parser


@given(st.data(), STREAMS)
def test_events_are_the_same_however_the_bytes_are_cut(data: st.DataObject, stream: bytes):
    whole, at_once = of_pieces([stream])
    found, in_pieces = of_pieces(data.draw(cut(stream)))
    one_by_one, trickled = of_pieces([bytes([byte]) for byte in stream])
    assert found == whole == one_by_one
    assert at_once.closed == in_pieces.closed == trickled.closed
    assert at_once.kept_bytes == in_pieces.kept_bytes == trickled.kept_bytes


@given(STREAMS)
def test_no_more_is_kept_than_was_fed_and_nothing_after_a_hangup(stream: bytes):
    events, parser = of_pieces([stream])
    assert parser.kept_bytes <= len(stream)
    endings = [event for event in events if isinstance(event, HangUp | Foreign)]
    assert endings == (events[-1:] if parser.closed else [])
    if parser.closed:
        assert parser.kept_bytes == 0
        assert parser.feed(b"inspect server\r\n") == []


@given(st.data(), st.lists(COMMANDS, max_size=6))
def test_commands_come_back_from_the_bytes_they_are_written_as(
    data: st.DataObject, commands: list[Event]
):
    stream = b"".join(map(written, commands))
    found, parser = of_pieces(data.draw(cut(stream)))
    assert found == commands
    assert list(map(type, found)) == list(map(type, commands))
    assert parser.kept_bytes == 0


@given(
    st.lists(COMMANDS, min_size=1, max_size=3),
    st.integers(0, 3),
    st.integers(0, 160),
    st.sampled_from([b"", b" ", b"0", b"x", b"\r\n", b"\xff", b" -max-fails=1", b" -attempt=0"]),
)
def test_usual_commands_and_what_is_nearly_one_are_read_the_same_in_one_step(
    commands: list[Event], flags: int, place: int, noise: bytes
):
    """Fed at once they may be read in one step, byte by byte never."""
    data = b"".join(written(each) for each in commands)
    for flag in (b"retry-delay", b"max-attempts", b"priority")[:flags]:
        data = re.sub(b" -%b=-?[0-9]+" % flag, b"", data)
    data = data[:place] + noise + data[place:]
    at_once, one = of_pieces([data])
    trickled, other = of_pieces([data[at : at + 1] for at in range(len(data))])
    assert at_once == trickled
    assert list(map(type, at_once)) == list(map(type, trickled))
    assert (one.closed, one.kept_bytes) == (other.closed, other.kept_bytes)


@given(st.binary(max_size=200), st.integers(0, 8), st.sampled_from(sorted(workq_parser._KINDS)))
def test_payload_is_never_taken_for_a_command(payload: bytes, wrong: int, word: bytes):
    """Whatever is wrong with a line that says a SIZE, the bytes behind it are passed over."""
    kind = workq_parser._KINDS[word]
    if not isinstance(kind, workq_parser._WithPayload):
        return
    fields = [word, TEXT, b"q", b"1", b"1", b"2099-01-01T00:00:00Z"][: kind.token_count - 1]
    if 1 <= wrong < len(fields):
        fields[wrong] = b"!"
    line = b" ".join([*fields, b"%d" % len(payload), *([b"-=1"] if wrong == 8 else [])])
    found, parser = of_pieces([line + b"\r\n" + payload + b"\r\ninspect server\r\n"])
    assert len(found) == 2
    assert found[-1] == InspectServer()
    assert not parser.closed


@given(st.integers(MAX_PAYLOAD_BYTES + 1, 2**70), STREAMS)
def test_oversized_payload_is_passed_over_whatever_it_holds(size: int, stream: bytes):
    found, parser = of_pieces([b"complete %b %d\r\n" % (TEXT, size), stream])
    assert len(found) == 1
    assert isinstance(found[0], RefusedLine)
    assert parser.kept_bytes == 0


@given(IDS, NAMES, TTRS, PAYLOADS, st.booleans())
def test_answers_can_be_taken_apart_by_their_sizes(
    job_id: bytes, name: str, ttr_ms: int, payload: bytes, success: bool
):
    head, line, rest = reply_bytes(Leased(job_id, name, ttr_ms, payload)).split(b"\r\n", 2)
    assert head == b"+OK 1"
    words = line.decode().split(" ")
    assert (UUID(words[0]).bytes, words[1], int(words[2])) == (job_id, name, ttr_ms)
    assert rest == payload + b"\r\n"
    assert int(words[3]) == len(payload)
    answer = reply_bytes(Finished(job_id, success, payload))
    line = b"%b %d %d" % (id_text(job_id).encode(), success, len(payload))
    assert answer == b"+OK 1\r\n%b\r\n%b\r\n" % (line, payload)


def written(command: Event) -> bytes:
    """The command as a client sends it."""
    match command:
        case Add(job_id, name, ttr_ms, ttl_ms, payload):
            words = f"add {id_text(job_id)} {name} {ttr_ms} {ttl_ms}"
            return line(words, payload, options(command))
        case ScheduleJob(job_id, name, ttr_ms, ttl_ms, time_ns, payload):
            words = f"schedule {id_text(job_id)} {name} {ttr_ms} {ttl_ms} {time_of(time_ns)}"
            return line(words, payload, options(command))
        case RunJob(job_id, name, ttr_ms, wait_ms, payload, priority):
            words = f"run {id_text(job_id)} {name} {ttr_ms} {wait_ms}"
            return line(words, payload, f"-priority={priority}")
        case Complete(job_id, result, attempt):
            flag = f"-attempt={attempt}" if attempt else ""
            return line(f"complete {id_text(job_id)}", result, flag)
        case Fail(job_id, result):
            return line(f"fail {id_text(job_id)}", result)
        case Lease(names, wait_ms):
            return f"lease {' '.join(names)} {wait_ms}\r\n".encode()
    raise AssertionError(command)


def line(words: str, payload: bytes, flags: str = "") -> bytes:
    head = f"{words} {len(payload)} {flags}".rstrip(" ")
    return head.encode() + b"\r\n" + payload + b"\r\n"


def options(command: Add | ScheduleJob) -> str:
    return (
        f"-priority={command.priority} -max-attempts={command.max_attempts} "
        f"-max-fails={command.max_fails} -retry-delay={command.retry_delay_ms}"
    )


def time_of(time_ns: int) -> str:
    seconds, nanos = divmod(time_ns, NS)
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
    return f"{moment.replace(tzinfo=None).isoformat()}.{nanos:09}Z"
