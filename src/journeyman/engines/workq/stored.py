"""The record of a waiting job in the store -> its spec, in one step: for the speed of a start.

    {"created_at":T,"execution_start_at":T,"jid":..,"max_attempts":..,"payload":..,"queue_name":..,
     "retry_interval_ms":..,"runtime":{"attempts_so_far":0},"status":"waiting","uuid":..,
     "workq":{"encoding":..,"max_fails":..,"priority":..,"ttl_ms":..,"ttr_ms":..}}

Nearly all waiting jobs are just so: added, not scheduled, never leased. None says nothing: whatever
differs in one byte is left to the decoder and the fold (formats.keyspace.values, folds.keyspace),
which are the law. tests/property/test_stored_jobs.py compares both.
"""

from __future__ import annotations

import binascii
import json
import re
from collections.abc import Callable
from typing import NamedTuple

from journeyman.engines.workq.job import LOWEST_PRIORITY, TOP_PRIORITY, Spec, pack
from journeyman.formats.keyspace.text import check_json, parse_time

_ASCII = rb"[ !#-\[\]-~]*"  # of a string without escapes
_NUMBER = rb"0|[1-9][0-9]{0,17}"
_WAITING = re.compile(
    rb'\{"created_at":"([0-9T:.+-]*)","execution_start_at":"\1","jid":"' + _ASCII + rb'",'
    rb'"max_attempts":(?:null|(' + _NUMBER + rb")),"
    rb'"payload":(?:"([A-Za-z0-9+/]*={0,2})"|(.*)),"queue_name":"([A-Za-z0-9_.-]{1,255})",'
    rb'"retry_interval_ms":(?:null|' + _NUMBER + rb'),"runtime":\{"attempts_so_far":0\},'
    rb'"status":"waiting","uuid":"([0-9a-f-]{36})","workq":\{'
    rb'(?:"encoding":"(base64|text)",)?(?:"max_fails":(' + _NUMBER + rb"),)?"
    rb'(?:"priority":(-?[1-9][0-9]{0,9}),)?"ttl_ms":(' + _NUMBER + rb"),"
    rb'"ttr_ms":(' + _NUMBER + rb")\}\}",
    re.DOTALL,
)


class WaitingJob(NamedTuple):
    spec: Spec
    queue: int  # its number
    created_ns: int
    ttl_ms: int


def waiting_job(
    job_id: bytes, uuid_text: bytes, raw: bytes, number_of: Callable[[str], int], key: str = ""
) -> WaitingJob | None:
    """``uuid_text`` is the id as the record must have it; ``number_of`` a queue by its name, which
    is made if there is none: so it is asked last. ``key`` is not in the record."""
    match = _WAITING.fullmatch(raw)
    if match is None:
        return None
    created, attempts, simple, other, queue, uuid, encoding, fails, priority, ttl, ttr = (
        match.groups()
    )
    urgency = int(priority or 0)
    if uuid != uuid_text or not LOWEST_PRIORITY <= urgency <= TOP_PRIORITY:
        return None
    try:
        created_ns, payload = parse_time(created.decode()), _payload(simple, other, encoding)
    except ValueError:
        return None
    number, ttl_ms = number_of(queue.decode()), int(ttl)
    spec = pack(
        job_id,
        number,
        int(ttr),
        ttl_ms,
        urgency,
        int(attempts or 0),
        int(fails or 0),
        created_ns,
        None,
        0,
        payload,
        key,
    )
    return WaitingJob(spec, number, created_ns, ttl_ms)


def _payload(simple: bytes | None, other: bytes | None, encoding: bytes | None) -> bytes:
    """ValueError: it is not what its encoding says. binascii.Error is one."""
    if encoding == b"base64":
        if simple is None:
            raise ValueError("not plain base64")
        return binascii.a2b_base64(simple, strict_mode=True)
    if simple is not None:
        return simple if encoding else b'"%b"' % simple
    assert other is not None
    text = other.decode()
    check_json(text)
    if not encoding:
        return other
    if not text.startswith('"'):
        raise ValueError("not a string")
    return str(json.loads(text)).encode()
