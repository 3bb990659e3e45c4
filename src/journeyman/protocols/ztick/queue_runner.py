"""The queue runner of a rule: which job of the work queue a due job becomes.

    queue <name> [-ttr=MS] [-ttl=MS] [-priority=N] [-max-attempts=N] [-max-fails=N]
                 [-retry-delay=MS] [-payload=TEXT]

The flags are those of the workq command ``add``, with its limits; ttr and ttl, which are arguments
there, are flags here. Without them a worker has a minute, and the job and its result a day. Without
``-payload`` the payload is that of the http runner: job id and time, as JSON.

The id of the job is made of the id and the time of the scheduled one. So a job that is run again,
because the server stopped before it could note the end of the run, is not added twice.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from journeyman.formats.ztick import WorkQueueRunner
from journeyman.protocols.workq import readers
from journeyman.protocols.workq.commands import Add, RefusedLine
from journeyman.protocols.workq.replies import id_text

DEFAULT_TTR_MS = 60_000
DEFAULT_TTL_MS = 86_400_000

_FLAGS = ("ttr", "ttl", "priority", "max-attempts", "max-fails", "retry-delay", "payload")


def read_queue(words: Sequence[str]) -> WorkQueueRunner | str:
    """The runner that these words describe, or one phrase that says what is wrong."""
    if not words:
        return "missing required argument: name"
    runner = WorkQueueRunner(words[0], tuple(words[1:]))
    job = queue_job(runner, "any", 0)
    return job if isinstance(job, str) else runner


def queue_job(runner: WorkQueueRunner, job_id: str, execution_ns: int) -> Add | str:
    """The job to add, or why there is none. A log may hold rules that nobody has checked."""
    flags = _read_flags(runner.flags)
    if isinstance(flags, str):
        return flags
    payload = flags.pop("payload", None)
    if payload is None:
        body = {"job_id": job_id, "execution": execution_ns}
        payload = json.dumps(body, separators=(",", ":"), ensure_ascii=False)
    words = (
        "add",
        id_text(work_id(job_id, execution_ns)),
        runner.name,
        flags.pop("ttr", str(DEFAULT_TTR_MS)),
        flags.pop("ttl", str(DEFAULT_TTL_MS)),
        "0",
    )
    encoded = {key.encode(): value.encode() for key, value in flags.items()}
    job = readers.add([word.encode() for word in words], encoded, payload.encode())
    if isinstance(job, RefusedLine):
        return f"the work queue would refuse the job: {job.complaint}"
    assert isinstance(job, Add)
    return job


def _read_flags(words: Sequence[str]) -> dict[str, str] | str:
    flags: dict[str, str] = {}
    for word in words:
        key, equals, value = word.removeprefix("-").partition("=")
        if not word.startswith("-") or not equals or key not in _FLAGS:
            return f"unknown queue flag: expected {', '.join(f'-{name}=' for name in _FLAGS)}"
        if key in flags:
            return f"-{key} is given twice"
        flags[key] = value
    return flags


def work_id(job_id: str, execution_ns: int) -> bytes:
    """Always the same for the same run; in the form of a UUID of version 4."""
    digest = hashlib.sha256(b"%d %b" % (execution_ns, job_id.encode())).digest()
    found = bytearray(digest[:16])
    found[6] = found[6] & 0x0F | 0x40
    found[8] = found[8] & 0x3F | 0x80
    return bytes(found)
