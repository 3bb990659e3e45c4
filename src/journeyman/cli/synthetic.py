r"""The shared part of the makers of synthetic logs: the plan, and pieces of files.

    Plan --synthetic_ztick | synthetic_workq | synthetic_kestrel--> Piece, Piece, ...

A maker is a generator of pieces; pieces of one file follow each other. The same plan always gives
the same bytes. The makers pack bytes themselves, since a codec's checked encode of each record
would take most of the time; that they agree with the codecs is tested.

A synthetic kestrel queue: segments of puts, and one checkpoint for each reader.

    <queue>.<ms>            puts with ids 1, 2, 3, ...; one in ten expires
    <queue>.read.<reader>   READ_HEAD at ``removals`` of all ids, READ_DONE of a few beyond it

A segment is named after the millisecond in which its first item was added, and ends before the
put that would take it over ``segment_bytes``.

A synthetic workq command log: jobs added, leased, finished, timed out and deleted.

    add|schedule --> start-attempt --> complete | fail --> [delete]
                      ^          \-> timeout-attempt -.
                      '------------------------------'

The queue is simulated step by step on its own clock, so records of many jobs mix as they do in a
busy server, no record comes before the one it needs, and times only grow. ``removals`` of the
finished jobs are deleted. When every id has been used, finished jobs are deleted and their ids
added again.

A synthetic ztick log: rules first, then jobs set, run, replanned and removed.

    RULE SET rule.0000 backup. shell ...        rules, one runner kind after the other
    SET backup.0000017 <ns> planned             a job set for the first time, or replanned
    SET backup.0000017 <ns> executed            the same job, its status changed
    REMOVE backup.0000017                       ``removals`` of all job records, while jobs live
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from struct import Struct
from typing import NamedTuple

from google_crc32c import value as crc32c

from journeyman.formats.kestrel import READER_MAGIC, WRITER_MAGIC
from journeyman.formats.workq import HEADER, Command
from journeyman.formats.ztick.codec import RUNNER_WORDS
from journeyman.units import DAY_S, NS_PER_MS, NS_PER_S

PIECE_BYTES = 1024 * 1024  # about how much a maker holds before it hands over


class SyntheticBytes(NamedTuple):
    """The next bytes of a file; ``records`` is how many it completes."""

    file: str
    data: bytes
    records: int


@dataclass(frozen=True, slots=True)
class Plan:
    """The shape of the log to be made. docs/cli.md says what each field means in a dialect."""

    records: int
    ids: int
    removals: float
    payload_bytes: int
    seed: int
    segment_bytes: int
    rules: int
    queue: str
    readers: int
    start_ns: int


class Pool:
    """Random bytes, made once; slices of it serve as payloads."""

    def __init__(self, random: Random, size: int) -> None:
        # Letters and digits: payloads then look alike in every dump, and compress like text.
        alphabet = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"
        table = bytes(alphabet[i % 64] for i in range(256))
        self._size = size
        self._spread = 64 * 1024
        self._bytes = random.randbytes(size + self._spread).translate(table)

    def slice(self, fraction: float) -> bytes:
        """``size`` bytes from anywhere; ``fraction`` is a random number below 1."""
        begin = int(fraction * self._spread)
        return self._bytes[begin : begin + self._size]


_EXPIRING = 0.1  # share of all items
_EXPIRES_AFTER_MS = 7 * 24 * 3600 * 1000
_STEP_NS = 2_000_000  # items come 1 ms apart on average
_DONE_BEYOND_HEAD = 20  # ids at most

# The fields: command byte, data size, error count, item id, add time[, expire time].
_put = Struct("<Biiqq").pack
_put_expiring = Struct("<Biiqqq").pack
_PUT, _PUT_EXPIRING = 0x86, 0x88
_read_head = Struct("<Bq").pack
_READ_HEAD = 0x02
_read_done = Struct("<Bi").pack
_READ_DONE = 0x91


def kestrel_pieces(plan: Plan) -> Iterator[SyntheticBytes]:
    """All files of the queue, in pieces of about PIECE_BYTES."""
    random = Random(plan.seed)
    yield from _segments(random, plan)
    for number in range(plan.readers):
        yield _checkpoint(random, plan, number)


def _segments(random: Random, plan: Plan) -> Iterator[SyntheticBytes]:
    draw = random.random
    pool = Pool(random, plan.payload_bytes)
    now_ns = plan.start_ns
    name_ms = now_ns // NS_PER_MS
    parts = [WRITER_MAGIC]
    records = 0
    waiting = position = len(WRITER_MAGIC)
    for item_id in range(1, plan.records + 1):
        now_ns += int(draw() * _STEP_NS)
        add_ms = now_ns // NS_PER_MS
        data = pool.slice(draw())
        if draw() < _EXPIRING:
            expire_ms = add_ms + _EXPIRES_AFTER_MS
            head = _put_expiring(_PUT_EXPIRING, len(data), 0, item_id, add_ms, expire_ms)
        else:
            head = _put(_PUT, len(data), 0, item_id, add_ms)
        size = len(head) + len(data)
        full = position + size > plan.segment_bytes and position > len(WRITER_MAGIC)
        if full or waiting >= PIECE_BYTES:
            yield SyntheticBytes(f"{plan.queue}.{name_ms}", b"".join(parts), records)
            parts.clear()
            records = waiting = 0
        if full:
            name_ms = max(add_ms, name_ms + 1)
            parts.append(WRITER_MAGIC)
            waiting = position = len(WRITER_MAGIC)
        parts.append(head)
        parts.append(data)
        records += 1
        waiting += size
        position += size
    yield SyntheticBytes(f"{plan.queue}.{name_ms}", b"".join(parts), records)


def _checkpoint(random: Random, plan: Plan, number: int) -> SyntheticBytes:
    """Readers stand apart: the first at ``removals`` of the ids, each next one a little later."""
    head = int(plan.records * plan.removals * (1 - number / (4 * plan.readers)))
    beyond = range(head + 2, min(head + 4 * _DONE_BEYOND_HEAD, plan.records + 1))
    done = sorted(random.sample(beyond, min(len(beyond), _DONE_BEYOND_HEAD)))
    ids = b"".join(item_id.to_bytes(8, "little") for item_id in done)
    data = READER_MAGIC + _read_head(_READ_HEAD, head) + _read_done(_READ_DONE, len(ids)) + ids
    # A lone reader is the default one, whose name is empty.
    name = "" if plan.readers == 1 else f"reader{number + 1}"
    return SyntheticBytes(f"{plan.queue}.read.{name}", data, 2)


_DUE_AFTER_NS = 60 * NS_PER_S
_SCHEDULED = 0.1  # share of the jobs
_SHORT_LIVED = 0.2  # share of the jobs that live an hour instead of 30 days
_TTL_MS = 2_592_000_000
_SHORT_TTL_MS = 3_600_000
_TTR_MS = 60_000
_TIMED_OUT, _FAILED = 0.05, 0.10  # shares of the attempts
_BACKLOG = 1000  # jobs ready or leased, about

_time = Struct(">BqIh").pack
_TIME_NONE = _time(1, 0, 0, -1)
_YEAR_ONE_S = 62_135_596_800  # seconds from 0001-01-01 to 1970-01-01
_ADD, _SCHEDULE = bytes([Command.ADD]), bytes([Command.SCHEDULE])
_COMPLETE, _FAIL = bytes([Command.COMPLETE]), bytes([Command.FAIL])
_DELETE = bytes([Command.DELETE])
_START, _TIMEOUT = bytes([Command.START_ATTEMPT]), bytes([Command.TIMEOUT_ATTEMPT])


def workq_pieces(plan: Plan) -> Iterator[SyntheticBytes]:
    """All segments, in pieces of about PIECE_BYTES. A full segment ends after its last record."""
    number = 1
    parts = [HEADER]
    records = 0
    waiting = position = len(HEADER)
    for record in _Life(plan).records():
        if position >= plan.segment_bytes or waiting >= PIECE_BYTES:
            yield SyntheticBytes(f"{number:09d}.log", b"".join(parts), records)
            parts.clear()
            records = waiting = 0
        if position >= plan.segment_bytes:
            number += 1
            parts.append(HEADER)
            waiting = position = len(HEADER)
        parts.append(record)
        records += 1
        waiting += len(record)
        position += len(record)
    yield SyntheticBytes(f"{number:09d}.log", b"".join(parts), records)


class _Life:
    """The simulated queue. Each step is one record."""

    def __init__(self, plan: Plan) -> None:
        self._count = plan.records
        self._removals = plan.removals
        self._now_ns = plan.start_ns
        random = Random(plan.seed)
        self._draw = random.random
        self._pool = Pool(random, plan.payload_bytes)
        self._result_pool = Pool(random, plan.payload_bytes // 4)
        name = plan.queue.encode()
        self._name = _varint(len(name)) + name
        self._payload_size = _varint(plan.payload_bytes)
        self._result_size = _varint(plan.payload_bytes // 4)
        self._fresh = [_uuid4(random) for _ in range(min(plan.ids, plan.records))]
        self._fresh.reverse()  # ids are taken from the end
        self._ready: deque[bytes] = deque()
        self._leased: deque[bytes] = deque()
        self._scheduled: deque[tuple[int, bytes]] = deque()
        self._finished: deque[bytes] = deque()
        self._doomed: deque[bytes] = deque()

    def records(self) -> Iterator[bytes]:
        draw = self._draw
        for _ in range(self._count):
            self._now_ns += int(draw() * _STEP_NS)
            if self._scheduled and self._scheduled[0][0] <= self._now_ns:
                self._ready.append(self._scheduled.popleft()[1])
            yield _record(self._now_ns, self._step(draw()))

    def _step(self, fraction: float) -> bytes:
        """The payload of the next record: what is done follows from how much of what waits."""
        waiting = len(self._ready) + len(self._leased)
        if self._doomed and fraction < 0.5:
            return self._delete(self._doomed.popleft())
        if self._fresh and (waiting == 0 or fraction < 0.33 or waiting < _BACKLOG // 2):
            return self._add(self._fresh.pop())
        if self._leased and (not self._ready or fraction < 0.66):
            return self._finish(self._leased.popleft())
        if self._ready:
            self._leased.append(self._ready.popleft())
            return _START + self._leased[-1]
        if self._doomed or self._finished:
            return self._delete((self._doomed or self._finished).popleft())
        # Nothing but scheduled jobs left: the clock jumps to the first of them.
        due_ns, job = self._scheduled.popleft()
        self._now_ns = max(self._now_ns, due_ns)
        self._leased.append(job)
        return _START + job

    def _add(self, job: bytes) -> bytes:
        draw = self._draw
        created = _instant(self._now_ns)
        ttl_ms = _SHORT_TTL_MS if draw() < _SHORT_LIVED else _TTL_MS
        priority = _varint(int(draw() * 10) * 2)  # zigzag of 0 to 9
        if draw() < _SCHEDULED:
            due_ns = self._now_ns + _DUE_AFTER_NS
            self._scheduled.append((due_ns, job))
            command, due = _SCHEDULE, _instant(due_ns)
        else:
            self._ready.append(job)
            command, due = _ADD, _TIME_NONE
        return b"".join(
            (
                command,
                job,
                self._name,
                _TTR_VARINT,
                _TTL_VARINTS[ttl_ms],
                priority,
                b"\x00\x00",  # max-attempts, max-fails: no limit
                self._payload_size,
                self._pool.slice(draw()),
                due,
                created,
            )
        )

    def _finish(self, job: bytes) -> bytes:
        draw = self._draw
        luck = draw()
        if luck < _TIMED_OUT:
            self._ready.append(job)
            return _TIMEOUT + job
        (self._doomed if draw() < self._removals else self._finished).append(job)
        command = _FAIL if luck < _TIMED_OUT + _FAILED else _COMPLETE
        return command + job + self._result_size + self._result_pool.slice(draw())

    def _delete(self, job: bytes) -> bytes:
        if not self._fresh:
            self._fresh.append(job)
        return _DELETE + job


def _record(now_ns: int, payload: bytes) -> bytes:
    record = _instant(now_ns) + _varint(len(payload)) + payload
    checksum: int = crc32c(record)
    return record + checksum.to_bytes(4, "big")


def _instant(unix_ns: int) -> bytes:
    seconds, rest_ns = divmod(unix_ns, NS_PER_S)
    return _time(1, seconds + _YEAR_ONE_S, rest_ns, -1)


def _varint(number: int) -> bytes:
    if number < 0x80:
        return number.to_bytes(1, "little")
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _uuid4(random: Random) -> bytes:
    number = random.getrandbits(128)
    number = number & ~(0xF << 76) | (4 << 76)  # version 4
    number = number & ~(0x3 << 62) | (2 << 62)  # variant 10
    return number.to_bytes(16, "big")


_TTR_VARINT = _varint(_TTR_MS)
_TTL_VARINTS = {ttl_ms: _varint(ttl_ms) for ttl_ms in (_SHORT_TTL_MS, _TTL_MS)}

_PATTERNS = ("backup.", "report.", "notify.", "deploy.", "billing.", "cleanup.")
_PLAN_WITHIN_NS = 365 * DAY_S * NS_PER_S
_STATUS_CHANGES = 0.5  # share of the records of a job that is already there
_PLANNED, _EXECUTED, _FAILED_RUN = 0, 2, 3
_FAILURES = 0.05  # share of the status changes

_frame = Struct(">IBH").pack  # length, entry type, identifier length
_job_tail = Struct(">qB").pack  # execution, status
_JOB, _RULE, _JOB_REMOVED = 0, 1, 2
_JOB_TAIL_BYTES = 9


def ztick_pieces(file: str, plan: Plan) -> Iterator[SyntheticBytes]:
    """The log, in pieces of about PIECE_BYTES."""
    random = Random(plan.seed)
    rules = rule_frames(min(plan.rules, plan.records))
    yield SyntheticBytes(file, b"".join(rules), len(rules))
    frames: list[bytes] = []
    size = 0
    for frame in _job_frames(random, plan, plan.records - len(rules)):
        frames.append(frame)
        size += len(frame)
        if size >= PIECE_BYTES:
            yield SyntheticBytes(file, b"".join(frames), len(frames))
            frames.clear()
            size = 0
    yield SyntheticBytes(file, b"".join(frames), len(frames))


def _job_frames(random: Random, plan: Plan, count: int) -> Iterator[bytes]:
    draw = random.random
    ids = max(1, min(plan.ids, count))
    set_heads, removals = _frames_of_ids(ids)
    execution = [0] * ids
    alive = bytearray(ids)
    living: list[int] = []
    start_ns = plan.start_ns
    for _ in range(count):
        if living and draw() < plan.removals:
            at = int(draw() * len(living))
            job = living[at]
            living[at] = living[-1]
            living.pop()
            alive[job] = 0
            yield removals[job]
            continue
        job = int(draw() * ids)
        if alive[job] and draw() < _STATUS_CHANGES:
            status = _FAILED_RUN if draw() < _FAILURES else _EXECUTED
        else:
            status = _PLANNED
            execution[job] = start_ns + int(draw() * _PLAN_WITHIN_NS)
            if not alive[job]:
                alive[job] = 1
                living.append(job)
        yield set_heads[job] + _job_tail(execution[job], status)


def _frames_of_ids(ids: int) -> tuple[list[bytes], list[bytes]]:
    """Return, for each id, the beginning of its SET frame and its whole REMOVE frame."""
    set_heads = []
    removals = []
    for job in range(ids):
        identifier = f"{_PATTERNS[job % len(_PATTERNS)]}{job:07d}".encode()
        size = 3 + len(identifier)
        set_heads.append(_frame(size + _JOB_TAIL_BYTES, _JOB, len(identifier)) + identifier)
        removals.append(_frame(size, _JOB_REMOVED, len(identifier)) + identifier)
    return set_heads, removals


def rule_frames(count: int) -> list[bytes]:
    """``count`` rules, every kind of runner in turn."""
    return [_rule_frame(number) for number in range(count)]


def _rule_frame(number: int) -> bytes:
    pattern = _PATTERNS[number % len(_PATTERNS)]
    if number >= len(_PATTERNS):
        pattern = f"{pattern}{number}."
    runner = _runner(number % len(RUNNER_WORDS), f"{pattern}{number}")
    payload = _string(f"rule.{number:04d}") + _string(pattern) + runner
    return (1 + len(payload)).to_bytes(4, "big") + bytes([_RULE]) + payload


def _runner(kind: int, name: str) -> bytes:
    strings: tuple[str, ...]
    match kind:
        case 0:
            strings = (f"/usr/local/bin/run --job {name}",)
        case 1:
            strings = ("amqp://guest:guest@localhost:5672/", "jobs", name)
        case 2:
            return b"\x02" + _string("/usr/bin/env") + b"\x00\x02" + _string("run") + _string(name)
        case 3:
            return b"\x03" + _string(name) + b"\x00\x01" + _string("format=pdf")
        case 4:
            strings = ("POST", f"https://hooks.example.com/{name}")
        case 5:
            strings = ("redis://127.0.0.1:6379/0", "RPUSH", f"jobs:{name}")
        case 6:
            queue = name.partition(".")[0]
            return b"\x06" + _string(queue) + b"\x00\x01" + _string("-max-attempts=3")
        case _:
            strings = (name.partition(".")[0],)
    return bytes([kind]) + b"".join(map(_string, strings))


def _string(value: str) -> bytes:
    data = value.encode()
    return len(data).to_bytes(2, "big") + data
