"""A synthetic kestrel queue: segments of puts, and one checkpoint for each reader.

    <queue>.<ms>            puts with ids 1, 2, 3, ...; one in ten expires
    <queue>.read.<reader>   READ_HEAD at ``removals`` of all ids, READ_DONE of a few beyond it

A segment is named after the millisecond in which its first item was added, and ends before the
put that would take it over ``segment_bytes``.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from struct import Struct

from journeyman.cli.synthetic import PIECE_BYTES, Plan, Pool, SyntheticBytes
from journeyman.formats.kestrel import READER_MAGIC, WRITER_MAGIC

_EXPIRING = 0.1  # of all items
_EXPIRES_AFTER_MS = 7 * 24 * 3600 * 1000
_STEP_NS = 2_000_000  # items come 1 ms apart on average
_NS_PER_MS = 1_000_000
_DONE_BEYOND_HEAD = 20  # ids at most

# command byte, data size, error count, item id, add time[, expire time]
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
    name_ms = now_ns // _NS_PER_MS
    parts = [WRITER_MAGIC]
    records = 0
    waiting = position = len(WRITER_MAGIC)
    for item_id in range(1, plan.records + 1):
        now_ns += int(draw() * _STEP_NS)
        add_ms = now_ns // _NS_PER_MS
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
    """Readers stand apart: the first at ``removals`` of the ids, each next one a little behind."""
    head = int(plan.records * plan.removals * (1 - number / (4 * plan.readers)))
    beyond = range(head + 2, min(head + 4 * _DONE_BEYOND_HEAD, plan.records + 1))
    done = sorted(random.sample(beyond, min(len(beyond), _DONE_BEYOND_HEAD)))
    ids = b"".join(item_id.to_bytes(8, "little") for item_id in done)
    data = READER_MAGIC + _read_head(_READ_HEAD, head) + _read_done(_READ_DONE, len(ids)) + ids
    # A lone reader is the default one, whose name is empty.
    name = "" if plan.readers == 1 else f"reader{number + 1}"
    return SyntheticBytes(f"{plan.queue}.read.{name}", data, 2)
