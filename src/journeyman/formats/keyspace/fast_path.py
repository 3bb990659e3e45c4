"""A job record that is just as values.py would write it, taken apart in one step: for speed.

Nearly all records are. Whatever matches here has the parts that a decoder would find, payload and
all checked; what does not match says nothing, and is decoded.

    {"created_at":"..","execution_start_at":"..", ... ,"status":"..","uuid":".."}
    {"created_at":"..","execution_start_at":"..", ... ,"status":"..","uuid":"..","workq":..}
"""

from __future__ import annotations

import re
from typing import NamedTuple

from journeyman.formats.keyspace.text import (
    MAX_JSON_DEPTH,
    check_json,
    parse_time,
    string_text,
)

_PLAIN = r'"([^"\\\x00-\x1f]*)"'  # a string without escapes
_NUMBER = "0|[1-9][0-9]{0,18}"
# A job as it is written, with at most one member more, behind all others by its name.
_WRITTEN_JOB = re.compile(
    rf'\{{"created_at":{_PLAIN},"execution_start_at":{_PLAIN},"jid":{_PLAIN},'
    rf'"max_attempts":(null|{_NUMBER}),"payload":(.*),"queue_name":{_PLAIN},'
    rf'"retry_interval_ms":(null|{_NUMBER}),"runtime":\{{"attempts_so_far":({_NUMBER})\}},'
    rf'"status":{_PLAIN},"uuid":"([0-9a-f]{{8}}(?:-[0-9a-f]{{4}}){{3}}-[0-9a-f]{{12}})"'
    r'(?:,"([v-z][a-z_]*)":(.*))?\}',
    re.DOTALL,
)
_STATUS_GROUP = 9


def match_written(text: str) -> re.Match[str] | None:
    """The parts of a job that is just as it would be written: for speed.

    None says nothing. The groups are the values of the members in their order, then name and value
    of one more.
    """
    match = _WRITTEN_JOB.fullmatch(text)
    if match is None or text.count("[") + text.count("{") > MAX_JSON_DEPTH:
        return None
    try:
        check_json(match[5])
        if match[12] is not None:
            check_json(match[12])
    except ValueError:
        return None  # other members stand behind it, or it is none
    return match


class Glance(NamedTuple):
    """What indexes need to know of a job, and its record with another status."""

    uuid_text: str
    queue: str
    status: str
    created_at_ns: int
    execution_start_ns: int
    changed: bytes


def glance(data: bytes, status: str | None = None) -> Glance | None:
    """A look at the record of a job without making one, and the record with a status.

    None if it is not just as it would be written, or is no record: decode it then.
    """
    try:
        text = str(data, "utf-8")
        match = match_written(text)
        if match is None:
            return None
        old = match[_STATUS_GROUP]
        created_ns = parse_time(match[1])
        start_ns = created_ns if match[1] == match[2] else parse_time(match[2])
    except ValueError:
        return None
    if status is not None and status != old:
        start, end = match.span(_STATUS_GROUP)
        data = f"{text[: start - 1]}{string_text(status)}{text[end + 1 :]}".encode()
    return Glance(match[10], match[6], old, created_ns, start_ns, data)
