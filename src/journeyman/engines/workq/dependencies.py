"""Jobs that wait for other jobs: children. A child is no job yet; extensions.py has its record.

    add -after=A,B            A, B unfinished, or children themselves   the child waits
                              all have completed                        an ordinary add
                              one has failed                            added, and failed at once
                              one does not exist                        refused: Unknown parent
    the last parent ends      completed                                 an ordinary add
    a parent fails, is gone   added, and failed at once: it is dead, and can be requeued; so is
                              what waits for it in turn
    with -even-failed=1       added when all have ended, however they did

Children that a decision settles are added in that decision, up to SETTLE_LIMIT and STEP_LIMIT;
``WorkqDue`` goes on, at once. A start settles all children again, from what has become of their
parents.
"""

from __future__ import annotations

from journeyman.engines.workq.adding import enqueue, make_room
from journeyman.engines.workq.extensions import (
    MAX_CHILDREN,
    MAX_CHILDREN_BYTES,
    MAX_CHILDREN_OF_ONE,
    SETTLE_LIMIT,
    STEP_BYTES,
    STEP_LIMIT,
    Child,
    JobOptions,
    LoadedExtensions,
    ParentMark,
    child_body,
)
from journeyman.engines.workq.job import COMPLETED, FAILED, UNFINISHED, life_of, opened
from journeyman.engines.workq.messages import Client
from journeyman.engines.workq.state import WorkqState
from journeyman.formats.ledger import JobOptionsRemoved, JobOptionsSet, ParentForgotten
from journeyman.formats.workq import pack_max_fails
from journeyman.protocols.workq.commands import Add, Complaint, Delete, RefusedLine
from journeyman.protocols.workq.replies import DONE, NOT_FOUND, Finished, Reply, id_text

_UNKNOWN_PARENT = RefusedLine(Complaint.NO_PARENT)
_TOO_MANY = RefusedLine(Complaint.TOO_MANY_CHILDREN)
_GONE = -1


def add_child(state: WorkqState, job: Add) -> Reply:
    """A job that may have its id: see ``adding.refusal``."""
    child = _child_of(state, job)
    if child is None:
        return _UNKNOWN_PARENT
    extensions = state.extensions
    if child.is_settled:
        make_room(state, job.job_id)
        _settle(state, child)
        return DONE
    if (
        len(extensions.children) >= MAX_CHILDREN
        or extensions.child_bytes + child.size > MAX_CHILDREN_BYTES
        or any(
            len(extensions.children_of.get(parent, ())) >= MAX_CHILDREN_OF_ONE
            for parent in child.parents
        )
    ):
        return _TOO_MANY
    make_room(state, job.job_id)
    state.queues.use(job.name)
    extensions.add_child(child)
    extensions.drop(extensions.forgetting, job.job_id)
    extensions.drop(extensions.lingering, job.job_id)
    state.ledger.append(JobOptionsSet(state.instant, id_text(job.job_id), child_body(job)))
    if extensions.in_store:  # a start does not look for parents that have completed
        for parent in [each for each in child.parents if each not in child.left]:
            if _stage_of(state, parent) == COMPLETED:
                state.mark_parent(parent, succeeded=True)
    return DONE


def delete_child(state: WorkqState, command: Delete, _client: Client) -> Reply:
    job_id = command.job_id
    state.extensions.drop_child(job_id, state.now_ns)
    state.ledger.append(JobOptionsRemoved(state.instant, id_text(job_id)))
    state.tell(job_id, NOT_FOUND)
    state.note_end(job_id, FAILED, is_gone=True)
    return DONE


def settle(state: WorkqState, limit: int = SETTLE_LIMIT) -> int:
    """Add, or fail, children that wait no longer; how many they were."""
    extensions, done = state.extensions, 0
    most = extensions.steps + STEP_LIMIT
    while extensions.settling and done < limit and extensions.steps < most:
        job_id = next(iter(extensions.settling))
        extensions.drop(extensions.settling, job_id)
        child = extensions.children.get(job_id)
        if child is not None and child.is_settled:
            extensions.steps += len(child.job.payload) // STEP_BYTES
            extensions.drop_child(job_id, state.now_ns)
            if extensions.in_store:
                _settle(state, child)
                if job_id not in extensions.options:
                    state.forget_now(job_id)
            else:
                extensions.added_now[job_id] = child.job
                _settle(state, child)
                extensions.put(extensions.settled, job_id, None)
                if job_id not in extensions.options:
                    extensions.forget(job_id, state.now_ns)
            done += 1
    return done


def load(state: WorkqState, loaded: LoadedExtensions, completed: set[bytes]) -> None:
    """The children of a ledger; ``completed`` are parents that expired after they completed."""
    extensions, children = state.extensions, loaded.children
    waiting = {job_id: job for job_id, job in children.items() if state.jobs.get(job_id) is None}
    for job_id in children.keys() - waiting.keys():
        extensions.settled[job_id] = None
        if job_id not in extensions.options:  # it was added, and has no key
            extensions.forget(job_id, state.now_ns)
    for job in waiting.values():
        state.queues.use(job.name)
        extensions.add_child(Child.of(job))
    stages = {parent: _stage_of(state, parent) for parent in extensions.children_of}
    stages |= dict.fromkeys(completed & stages.keys(), COMPLETED)
    undone = {parent for parent, mark in loaded.marked.items() if _is_undone(state, parent, mark)}
    for job_id in waiting:
        child, ended = extensions.children[job_id], loaded.ended.get(job_id, {})
        for parent in child.parents:
            if parent in ended and parent not in undone:
                child = child.without(parent, succeeded=ended[parent].succeeded)
            elif stages[parent] not in UNFINISHED:
                child = child.without(parent, succeeded=stages[parent] == COMPLETED)
        extensions.put(extensions.children, job_id, child)
        if child.is_settled:
            extensions.put(extensions.settling, job_id, None)
    for parent in loaded.marked:
        if parent in undone:  # before it ends in another way
            state.unsaid.append(ParentForgotten(state.instant, id_text(parent)))
        elif parent in extensions.children_of:
            extensions.marked[parent] = loaded.marked[parent].succeeded
        else:
            extensions.forget_parent(parent, state.now_ns)
    for parent in completed & extensions.children_of.keys() - loaded.marked.keys():
        state.mark_parent(parent, succeeded=True)  # the log may be cleaned of them
    state.unsaid, state.ledger = state.unsaid + state.ledger, []


def _is_undone(state: WorkqState, parent: bytes, mark: ParentMark) -> bool:
    """Whether the log has the job that the ledger says has ended: the log counts."""
    entry = state.jobs.get(parent)
    return mark.life != 0 and life_of(entry) == mark.life


def _child_of(state: WorkqState, job: Add) -> Child | None:
    assert job.options is not None
    child = Child.of(job)
    for parent in job.options.after:
        stage = _stage_of(state, parent)
        if stage == _GONE or parent == job.job_id:  # which makes room for it
            return None
        if stage not in UNFINISHED:
            child = child.without(parent, succeeded=stage == COMPLETED)
    return child


def _stage_of(state: WorkqState, job_id: bytes) -> int:
    if job_id in state.extensions.children:
        return UNFINISHED[0]
    entry = state.find(job_id)
    if entry is not None:
        return opened(entry)[1]
    _, expires_ns = state.extensions.elsewhere.get(job_id, ("", 0))
    return COMPLETED if expires_ns > state.now_ns else _GONE


def _settle(state: WorkqState, child: Child) -> None:
    """It waits no longer: an ordinary add; and a failure at once, if a parent has failed."""
    job, extensions = child.job, state.extensions
    why = f"parent {id_text(child.failed)} failed or is gone".encode() if child.failed else None
    key = "" if job.options is None else job.options.key
    if key and job.job_id in extensions.added_now:
        extensions.put(extensions.options, job.job_id, JobOptions(key))  # the ledger has it
    elif key:
        state.set_options(job.job_id, JobOptions(key))
    enqueue(
        state,
        job.job_id,
        job.name,
        job.ttr_ms,
        job.ttl_ms,
        job.priority,
        job.max_attempts,
        pack_max_fails(job.max_fails, job.retry_delay_ms),
        None,
        job.payload,
        key,
        why,
    )
    if why is not None:
        state.tell(job.job_id, Finished(job.job_id, False, why))
        state.note_end(job.job_id, FAILED)
