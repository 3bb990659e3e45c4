"""Fuzz target: Overhop keys and values."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from uuid import UUID

from journeyman.errors import FormatError
from journeyman.formats.keyspace.keys import (
    CounterKey,
    JobKey,
    QueueKey,
    QueueTimeKey,
    StatusFifoKey,
    StatusKey,
    decode_key,
    encode_key,
)
from journeyman.formats.keyspace.values import Value, decode_value, encode_value
from tests.fuzz.runner import run

VECTORS = Path(__file__).parents[1] / "golden" / "data" / "overhop-vectors.json"
ANY = UUID(int=7)
KINDS = (QueueKey("q"), JobKey(ANY), StatusKey(ANY), CounterKey("q", "new"))
HOSTILE = (
    '{"payload":' + "[" * 200 + "]" * 200 + "}",
    '{"payload":"' + '\\"' * 300,
    '{"payload":1e999,"x":NaN,"y":-Infinity,"z":' + "9" * 5000 + "}",
    '{"payload":"\\ud800"}',
    '{"a":1,"a":2}',
)


def corpus() -> list[bytes]:
    pairs = [kv for step in json.loads(VECTORS.read_text())["steps"] for kv in step["kv"]]
    keys = {bytes.fromhex(kv["key_hex"]) for kv in pairs}
    values = {kv["value"].encode() for kv in pairs}
    newer = {encode_key(QueueTimeKey(ms, "a:b", ANY)) for ms in (-1, 0, 2**63 - 1)}
    return sorted(keys | values | newer) + [text.encode() for text in HOSTILE]


def check(data: bytes) -> None:
    """Only FormatError comes out; a key is exact, a value is the same after being written."""
    try:
        key = decode_key(data)
    except FormatError:
        pass
    else:
        assert encode_key(key) == data
    for kind in (*KINDS, StatusFifoKey("new", 0, ANY)):
        try:
            value = decode_value(kind, data)
        except FormatError:
            continue
        check_value(kind, value)


def check_value(kind: QueueKey | JobKey | StatusKey | CounterKey | StatusFifoKey, value: Value):
    written = encode_value(value)
    assert decode_value(kind, written) == value
    assert encode_value(decode_value(kind, written)) == written


if __name__ == "__main__":
    run(check, corpus(), sys.argv[1:])
