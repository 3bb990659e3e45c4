"""What the workq protocol lets through, as a check of an add that is in the log already.

The original refuses to replay a log that holds a value outside these limits; the fold keeps the
job and reports every such value. ``unusable_values`` yields one phrase for each.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from journeyman.formats.workq import MAX_PAYLOAD_BYTES, Command, JobAdded
from journeyman.formats.workq.retry import delay_ms_of, max_fails_of

__all__ = [
    "MAX_COUNT",
    "MAX_NAME_BYTES",
    "MAX_RETRY_DELAY_MS",
    "MAX_TTL_MS",
    "MAX_TTR_MS",
    "PRIORITY_LIMITS",
    "unusable_values",
]

MAX_NAME_BYTES = 255
MAX_TTR_MS = 86_400_000  # a day
MAX_TTL_MS = 2_592_000_000  # thirty days
MAX_RETRY_DELAY_MS = 86_400_000  # ours, kept with max-fails: see formats.workq_retry
MAX_COUNT = 255  # of max-attempts and max-fails
PRIORITY_LIMITS = (-(2**31), 2**31 - 1)

_NAME = re.compile(rf"[A-Za-z0-9_.-]{{1,{MAX_NAME_BYTES}}}", re.ASCII)


def unusable_values(added: JobAdded) -> Iterator[str]:
    """A phrase for each field that the protocol would refuse."""
    if not _is_uuid4(added.job_id):
        yield f"id {added.job_id.hex()} is no UUID of version 4"
    if _NAME.fullmatch(added.name) is None:
        yield f"name {added.name!r}"
    if not 1 <= added.ttr_ms <= MAX_TTR_MS:
        yield f"ttr of {added.ttr_ms} ms"
    if not 1 <= added.ttl_ms <= MAX_TTL_MS:
        yield f"ttl of {added.ttl_ms} ms"
    if not PRIORITY_LIMITS[0] <= added.priority <= PRIORITY_LIMITS[1]:
        yield f"priority {added.priority}"
    if not 0 <= added.max_attempts <= MAX_COUNT:
        yield f"max-attempts {added.max_attempts}"
    if max_fails_of(added.max_fails) > MAX_COUNT:
        yield f"max-fails {added.max_fails}"
    if delay_ms_of(added.max_fails) > MAX_RETRY_DELAY_MS:
        yield f"retry-delay of {delay_ms_of(added.max_fails)} ms"
    if len(added.payload) > MAX_PAYLOAD_BYTES:
        yield f"payload of {len(added.payload)} bytes"
    if (added.time is None) is (added.command == Command.SCHEDULE):
        yield "scheduled without a time" if added.time is None else "a time without being scheduled"


def _is_uuid4(job_id: bytes) -> bool:
    return len(job_id) == 16 and job_id[6] >> 4 == 4 and job_id[8] >> 6 == 2
