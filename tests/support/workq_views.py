"""What a WorkQueue holds, and what a fold says that it should hold, in the same words."""

from __future__ import annotations

from collections.abc import Iterable

from journeyman.engines.workq.engine import WorkqEngine
from journeyman.engines.workq.packed import (
    CANCELLED,
    EXHAUSTED,
    FAILED,
    FAR,
    IS_SCHEDULE,
    LEASED,
    PARKED,
    PENDING,
    Entry,
    fields_of,
    is_run,
    moment_key,
    opened,
    queue_of,
    spec_of,
)
from journeyman.folds import workq as fold
from journeyman.formats.workq import Record
from journeyman.units import NS_PER_MS


def facts(entry: Entry, names: dict[int, str]) -> tuple[object, ...]:
    """What the fold knows too."""
    spec, stage, attempts, fails, started_ns, moment_ns, waits_or_result = opened(entry)
    fields = fields_of(spec)
    result = None if stage == PARKED else waits_or_result
    is_finished = result is not None
    return (
        *fields._replace(queue=0, flags=0)[:-3],  # not the key: the ledger has it
        None if fields.begins_ns == FAR else fields.begins_ns,
        fields.parks,
        waits_or_result if stage == PARKED else None,
        names[fields.queue],
        {CANCELLED: FAILED, EXHAUSTED: FAILED, PARKED: PENDING}.get(stage, stage),
        attempts,
        fails,
        result,
        started_ns,
        moment_ns if is_finished else None,
        stage == EXHAUSTED,
    )


def folded_facts(job: fold.FoldedJob) -> tuple[object, ...]:
    added = job.added
    return (
        added.job_id,
        0,
        added.ttr_ms,
        added.ttl_ms,
        added.priority,
        added.max_attempts,
        added.max_fails,
        added.created.unix_ns,
        None if added.time is None else added.time.unix_ns,
        0,
        added.payload,
        None if job.begins is None else job.begins.unix_ns,
        job.parks,
        job.parked,
        added.name,
        int(job.state),
        job.attempts,
        job.fails,
        job.result,
        0 if job.started is None else job.started.unix_ns,
        None if job.finished is None else job.finished.unix_ns,
        job.exhausted,
    )


def jobs_of(queue: WorkqEngine) -> dict[bytes, tuple[object, ...]]:
    """All that is in the log."""
    state = queue._state
    names = {queue.number: queue.name for queue in state.queues.by_number}
    return {
        job_id: facts(entry, names) for job_id, entry in state.jobs if not is_run(spec_of(entry))
    }


def folded(records: Iterable[Record], now_ns: int) -> dict[bytes, tuple[object, ...]]:
    """The jobs that are there at this moment."""
    states = fold.replay(records)
    return {
        job_id: folded_facts(job)
        for job_id, job in states.items()
        if isinstance(job, fold.FoldedJob) and fold.visible(job, now_ns)
    }


def orders_of(queue: WorkqEngine) -> dict[str, object]:
    """What stands in which order, by name; empty ones left out."""
    state = queue._state
    found: dict[str, object] = {
        "expiries": list(state.jobs.expiries),
        "leases": list(state.jobs.leases),
        "due": list(state.jobs.due),
        "waits": sorted(state.waiting._by_number),
        "deadlines": list(state.waiting.deadlines),
        "paused": queue.paused,
        "evicted": state.evicted,
        "jobs": dict(state.jobs),
        "names": list(state.queues._names),
    }
    for each in state.queues.page(0, len(state.queues)):
        found[f"{each.name} ready"] = list(each.ready)
        found[f"{each.name} scheduled"] = list(each.scheduled)
        found[f"{each.name} dead"] = list(each.dead)
        found[f"{each.name} waiters"] = list(each.waiters)
    return found


def expected_orders(queue: WorkqEngine) -> dict[str, list[bytes]]:
    """Of each job, from what it is."""
    state = queue._state
    found: dict[str, list[bytes]] = {"expiries": [], "leases": [], "due": []}
    for each in state.queues.page(0, len(state.queues)):
        for kind in ("ready", "scheduled", "dead"):
            found[f"{each.name} {kind}"] = []
    for job_id, entry in state.jobs:
        spec, stage, _, _, _, moment_ns, result = opened(entry)
        name = state.queues.by_number[queue_of(spec)].name
        if not is_run(spec):
            fields = fields_of(spec)
            begins_ns = fields.created_ns
            if fields.flags & IS_SCHEDULE and fields.time_ns is not None:
                begins_ns = fields.time_ns
            if fields.begins_ns is not None:
                begins_ns = fields.begins_ns
            ends_ns = begins_ns if begins_ns == FAR else begins_ns + fields.ttl_ms * NS_PER_MS
            ends_ns = ends_ns if fields.begins_ns is None else min(ends_ns, FAR)
            found["expiries"] += [] if stage == PARKED else [moment_key(ends_ns, job_id)]
        if stage == LEASED:
            found["leases"].append(moment_key(moment_ns, job_id))
        elif stage == PARKED:
            found["due"] += [moment_key(moment_ns, job_id)] if moment_ns else []
        elif stage in (FAILED, EXHAUSTED):
            found[f"{name} dead"].append(spec)
        elif result is None and moment_ns:
            found[f"{name} scheduled"].append(spec)
            found["due"].append(moment_key(moment_ns, job_id))
        elif result is None:
            found[f"{name} ready"].append(spec)
    return {kind: sorted(items) for kind, items in found.items()}
