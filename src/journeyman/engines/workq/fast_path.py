"""Commands of the usual kind, decided in one step, their records encoded at once.

    add        a new id, into a queue that is in use and that no client waits for
    lease      of one queue without limits that has a ready job; for a worker without a name
    complete   of a leased job that no client waits for

engine.py is the law: ``decide_usual`` does what the decisions there do, or leaves the command to
them (tests/property/test_workq_engine.py). It is for jobs that have nothing in the ledger: no job
has options, no worker a name, none waits for another. Nothing of it may be expired, held back or
limited, so there is nothing to be done but the command itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from journeyman.engines.workq.job import (
    COMPLETED,
    HAS_KEY,
    IS_RUN,
    LEASED,
    begin_lease,
    flags_of,
    keep_result,
    lease_fields_of,
    pack,
    queue_of,
    shown_payload_of,
)
from journeyman.engines.workq.state import WorkqState
from journeyman.formats.timed_frame import UTC_OFFSET_MIN, cached_moment_bytes, moment_bytes
from journeyman.formats.workq import (
    Command,
    encode_add,
    encode_event,
    encode_finished,
    pack_max_fails,
)
from journeyman.protocols.workq.commands import NO_LIMITS, Add, Complete, Lease
from journeyman.protocols.workq.replies import DONE, Leased, Reply
from journeyman.units import NS_PER_MS

_START, _COMPLETE = int(Command.START_ATTEMPT), int(Command.COMPLETE)
_UNUSUAL = IS_RUN | HAS_KEY
_leased = tuple.__new__  # a third of the time of Leased(...)

Encoded: TypeAlias = list[Any]  # records of a batch, of which some are bytes


def decide_usual(state: WorkqState, records: Encoded, command: Any) -> Reply | None:
    """The reply, and its record is in ``records``; None: nothing was done, it is not usual."""
    usual = _USUAL.get(type(command))
    if usual is None or not state.extensions.is_idle:
        return None
    return usual(state, command, records)


def _is_calm(state: WorkqState) -> bool:
    """Whether no job at all has expired."""
    return state.now_ns < state.jobs.calm_until_ns or state.now_ns < state.jobs.look_for_calm()


def _add(state: WorkqState, command: Add, records: Encoded) -> Reply | None:
    job_id, name, ttr_ms, ttl_ms, payload, priority, attempts, fails, delay_ms, options = command
    queue = state.queues.get(name)
    if options is not None or queue is None or not queue.is_used or queue.waiters.size:
        return None
    if state.jobs.get(job_id) is not None:
        return None
    if delay_ms:
        fails = pack_max_fails(fails, delay_ms)
    now_ns = state.now_ns = state.now_ns + 1
    moment = moment_bytes(now_ns, UTC_OFFSET_MIN)  # of its own
    records.append(
        encode_add(moment, job_id, payload, name, ttr_ms, ttl_ms, priority, attempts, fails)
    )
    spec = pack(
        job_id, queue.number, ttr_ms, ttl_ms, priority, attempts, fails, now_ns, None, 0, payload
    )
    state.jobs.add_ready(job_id, spec, queue, now_ns + ttl_ms * NS_PER_MS)
    return DONE


def _lease(state: WorkqState, command: Lease, records: Encoded) -> Reply | None:
    if len(command.names) > 1 or command.max_jobs or command.worker or not _is_calm(state):
        return None
    queue = state.queues.get(command.names[0])
    if queue is None or not queue.ready.size or queue.paused or queue.limits is not NO_LIMITS:
        return None
    spec = queue.ready.first()
    job_id, _, ttr_ms = lease_fields_of(spec)
    entry = state.jobs.get(job_id)
    if entry is None or flags_of(spec) & _UNUSUAL or queue.held_size:
        return None
    now_ns = state.now_ns
    records.append(encode_event(cached_moment_bytes(now_ns, UTC_OFFSET_MIN), _START, job_id))
    state.jobs.lease_ready(job_id, entry, begin_lease(entry, ttr_ms, now_ns), queue)
    return _leased(Leased, (job_id, queue.name, ttr_ms, shown_payload_of(spec)))


def _complete(state: WorkqState, command: Complete, records: Encoded) -> Reply | None:
    job_id, result = command.job_id, command.result
    entry = state.jobs.get(job_id)
    if not isinstance(entry, tuple) or entry[1] != LEASED or flags_of(entry[0]) & _UNUSUAL:
        return None
    queue = state.queues.by_number[queue_of(entry[0])]
    if queue.held_size or queue.limits is not NO_LIMITS or state.waiting.awaits(job_id):
        return None
    if (command.attempt and command.attempt != entry[2]) or not _is_calm(state):
        return None
    now_ns = state.now_ns
    records.append(
        encode_finished(cached_moment_bytes(now_ns, UTC_OFFSET_MIN), _COMPLETE, job_id, result)
    )
    state.jobs.end_lease(job_id, entry, keep_result(entry, COMPLETED, now_ns, result), queue)
    return DONE


_USUAL: dict[type, Callable[[WorkqState, Any, Encoded], Reply | None]] = {
    Add: _add,
    Lease: _lease,
    Complete: _complete,
}
