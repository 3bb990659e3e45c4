r"""One run of a scheduled job as a line of JSON: what the ztick log cannot say.

    {"job":"backup.db","rule":"backup","runner":"shell","execution_ns":1794769200000000000,
     "started_ns":1794769200001804211,"ended_ns":1794769204113947020,"outcome":"failed",
     "detail":"exit status 3","output":"disk is full\n"}            (one line, ended by \n)

The log of a schedule has no times of writing: it says that a job was executed, never when. These
lines do. The original neither writes nor reads them.

A line that is not whole, or holds something else, is not an error: ``decode`` answers None. So a
file whose last write was cut off loses that line and no other. What a program said may hold any
character; all but plain ASCII is escaped, so no byte of it can end a line.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Any

EXECUTED = "executed"
FAILED = "failed"
CUT_OFF = "cut-off"  # the server stopped first: how far the run got is unknown
OUTCOMES = (EXECUTED, FAILED, CUT_OFF)


@dataclass(frozen=True, slots=True)
class RunLine:
    """Times are wall time; ``ended_ns`` is never before ``started_ns``."""

    job: str
    rule: str
    runner: str
    execution_ns: int  # when the job was due
    started_ns: int
    ended_ns: int
    outcome: str
    detail: str = ""  # why it failed
    output: str = ""  # what the program or server said: its beginning and its end


_TEXTS = tuple(each.name for each in fields(RunLine) if each.type == "str")
_TIMES = tuple(each.name for each in fields(RunLine) if each.type == "int")
_NAMES = tuple(each.name for each in fields(RunLine))
_ENCODER = json.JSONEncoder(separators=(",", ":"))


def encode(run: RunLine) -> bytes:
    """The line, its end included."""
    text = _ENCODER.encode({name: getattr(run, name) for name in _NAMES})
    return text.encode("ascii") + b"\n"


def decode(line: bytes) -> RunLine | None:
    """The run of one line; None if it is not such a line. Fields of later versions are ignored."""
    try:
        value: Any = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    known = {name: value[name] for name in _NAMES if name in value}
    texts_fit = all(isinstance(known.get(name, ""), str) for name in _TEXTS)
    times_fit = all(type(known.get(name)) is int for name in _TIMES)
    if not texts_fit or not times_fit or not {"job", "outcome"} <= known.keys():
        return None
    return RunLine(**{"rule": "", "runner": ""} | known)
