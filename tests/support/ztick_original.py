"""A model of what the original ztick does with its log: loading it, and appending to it.

It reads one file. A whole frame that it cannot decode is skipped, an incomplete one at the end is
ignored and stays. It appends a header and a payload in two writes, whatever stands before them.
"""

from __future__ import annotations

from pathlib import Path

from journeyman.errors import FormatError
from journeyman.folds import ztick as fold
from journeyman.formats.ztick import (
    CODEC,
    FanOutRunner,
    JobRemoved,
    Record,
    RuleRemoved,
    RuleSet,
    WorkQueueRunner,
)


def load(data: bytes) -> dict[fold.Key, Record]:
    """The jobs and rules that it has after a start, by their last entries."""
    states: dict[fold.Key, Record] = {}
    offset = 0
    while offset + 4 <= len(data):
        end = offset + 4 + int.from_bytes(data[offset : offset + 4], "big")
        if end > len(data):
            break
        record = _decoded(data[offset:end])
        if record is not None:
            states.pop(fold.key_of(record), None)
            if not isinstance(record, JobRemoved | RuleRemoved):
                states[fold.key_of(record)] = record
        offset = end
    return states


def _decoded(frame: bytes) -> Record | None:
    try:
        entry = CODEC.decode(frame, 0)
    except FormatError:
        return None
    assert entry is not None
    record = entry.record
    if isinstance(record, RuleSet) and isinstance(record.runner, WorkQueueRunner | FanOutRunner):
        return None
    return record


def append(path: Path, record: Record) -> None:
    data = CODEC.encode(record)
    with path.open("ab", buffering=0) as file:
        file.write(data[:4])
        file.write(data[4:])
