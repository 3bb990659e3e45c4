"""A synthetic ztick log: rules first, then jobs set, run, replanned and removed.

RULE SET rule.0000 backup. shell ...        rules, one runner kind after the other
SET backup.0000017 <ns> planned             a job set for the first time, or replanned
SET backup.0000017 <ns> executed            the same job, its status changed
REMOVE backup.0000017                       ``removals`` of all job records, while jobs live
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from struct import Struct

from journeyman.cli.synthetic import PIECE_BYTES, Plan, SyntheticBytes
from journeyman.formats.ztick.runners import RUNNER_WORDS

_PATTERNS = ("backup.", "report.", "notify.", "deploy.", "billing.", "cleanup.")
_PLAN_WITHIN_NS = 365 * 24 * 3600 * 1_000_000_000
_STATUS_CHANGES = 0.5  # of the records that meet a job which is already there
_PLANNED, _EXECUTED, _FAILED = 0, 2, 3
_FAILURES = 0.05  # of the status changes

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
            status = _FAILED if draw() < _FAILURES else _EXECUTED
        else:
            status = _PLANNED
            execution[job] = start_ns + int(draw() * _PLAN_WITHIN_NS)
            if not alive[job]:
                alive[job] = 1
                living.append(job)
        yield set_heads[job] + _job_tail(execution[job], status)


def _frames_of_ids(ids: int) -> tuple[list[bytes], list[bytes]]:
    """For each id, the beginning of its SET frame and its whole REMOVE frame."""
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
