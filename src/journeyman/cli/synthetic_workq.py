r"""A synthetic workq command log: jobs added, leased, finished, timed out and deleted.

    add|schedule --> start-attempt --> complete | fail --> [delete]
                      ^          \-> timeout-attempt -.
                      '------------------------------'

The queue is simulated step by step on its own clock, so records of many jobs mix as they do in a
busy server, no record comes before the one it needs, and times only grow. ``removals`` of the
finished jobs are deleted. When every id has been used, finished jobs are deleted and their ids
added anew.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from random import Random
from struct import Struct

from google_crc32c import value as crc32c

from journeyman.cli.synthetic import PIECE_BYTES, Plan, Pool, SyntheticBytes
from journeyman.formats.workq import HEADER, Command

_STEP_NS = 2_000_000  # records come 1 ms apart on average
_DUE_AFTER_NS = 60 * 1_000_000_000
_SCHEDULED = 0.1  # of the jobs
_SHORT_LIVED = 0.2  # of the jobs: an hour instead of 30 days
_TTL_MS = 2_592_000_000
_SHORT_TTL_MS = 3_600_000
_TTR_MS = 60_000
_TIMED_OUT, _FAILED = 0.05, 0.10  # of the attempts
_BACKLOG = 1000  # jobs ready or leased, about

_time = Struct(">BqIh").pack
_TIME_NONE = _time(1, 0, 0, -1)
_YEAR_ONE_S = 62_135_596_800  # seconds from 0001-01-01 to 1970-01-01
_ADD, _SCHEDULE = bytes([Command.ADD]), bytes([Command.SCHEDULE])
_COMPLETE, _FAIL = bytes([Command.COMPLETE]), bytes([Command.FAIL])
_DELETE = bytes([Command.DELETE])
_START, _TIMEOUT = bytes([Command.START_ATTEMPT]), bytes([Command.TIMEOUT_ATTEMPT])


def workq_pieces(plan: Plan) -> Iterator[SyntheticBytes]:
    """All segments, in pieces of about PIECE_BYTES. A full segment ends behind its last record."""
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
    seconds, rest_ns = divmod(unix_ns, 1_000_000_000)
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
