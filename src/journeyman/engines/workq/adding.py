"""Adding jobs: add, schedule, run, requeue of a dead job, and jobs that wait for other jobs.

    add, schedule   JobAdded; ready now or at its time, until TTL after its creation or its time
    run             nothing is written; ready now, its client waits for the result
    requeue         delete and JobAdded in one step: a failed or cancelled job starts over under its
                    old id,
                    without attempts or fails, with a full TTL, ready at once; the ledger has the
                    job first, in case a power cut comes between the two
    -replace        the same for an add with the id of a finished job; with -unique-for a completed
                    job is replaced only some time after it was added; with "different" a job with
                    the same payload is not replaced; with "unstarted" one that no worker has begun
                    is replaced too, and keeps its place in the ledger meanwhile, as with requeue;
                    -unless=ID refuses the add if that other job has not begun
    -key            also options in the ledger

The log has no record that restarts a failed job, and the original must accept every record. It
accepts delete and add.

A job that waits for others is a *child*, not a job yet; extensions.py has its record.

    add -after=A,B            A, B unfinished, or children themselves   the child waits
                              all have completed                        an ordinary add
                              one has failed                            added, and failed at once
                              one does not exist                        refused: Unknown parent
    the last parent ends      completed                                 an ordinary add
    a parent fails, is gone   added, and failed at once: it is dead, and can be requeued; so are
                              the jobs that wait for it
    the child is cancelled    added, and cancelled at once
    with -even-failed=1       added when all have ended, in any way

Children whose parents have ended are added in the same decision, up to ADD_LIMIT and EFFORT_LIMIT;
``WorkqDue`` continues at once. A start decides about all children again, by the states of their
parents.
"""

from __future__ import annotations

from typing import Final

from journeyman.engines.workq import packed, steps
from journeyman.engines.workq.extensions import EFFORT_BYTES, EFFORT_LIMIT
from journeyman.engines.workq.ledger_entries import (
    Child,
    LoadedExtensions,
    ParentMark,
    StoredJobOptions,
    child_body,
)
from journeyman.engines.workq.lifecycle import expire, give_up_run, match
from journeyman.engines.workq.messages import Client
from journeyman.engines.workq.queues import Waiter
from journeyman.engines.workq.state import WorkqState
from journeyman.formats import workq
from journeyman.formats.ledger import JobOptionsRemoved, JobOptionsSet, ParentForgotten
from journeyman.formats.timed_frame import Instant, to_unix_ns
from journeyman.protocols.workq import commands, replies
from journeyman.units import NS_PER_MS

MAX_CHILDREN: Final = 100_000
MAX_CHILDREN_BYTES: Final = 256 * 1024 * 1024  # payloads and parents of all children
MAX_CHILDREN_OF_ONE: Final = 1000  # children that wait for the same parent
ADD_LIMIT: Final = 100  # children that one decision adds
_ADD, _SCHEDULE = workq.Command.ADD, workq.Command.SCHEDULE  # to look a member up takes its time
_DUPLICATE = commands.RefusedLine(commands.Complaint.DUPLICATE_JOB)
_NOT_DEAD = commands.RefusedLine(commands.Complaint.NOT_DEAD)
_TOO_LATE = commands.RefusedLine(commands.Complaint.TIME)
_NO_LEDGER = commands.RefusedLine(commands.Complaint.NO_LEDGER)
_CANCELLED = commands.RefusedLine(commands.Complaint.CANCELLED)
REQUEUED_BYTES = 4 * 1024 * 1024  # the payloads that one requeue-all writes again
NO_TIME_NS = to_unix_ns(0, 0)  # how the log says that a job has no time


def add(state: WorkqState, command: commands.Add, _client: Client) -> replies.Reply:
    job_id, name, ttr_ms, ttl_ms, payload, priority, max_attempts, max_fails, delay_ms, options = (
        command
    )
    key = namespace = ""
    if options is not None or state.extensions.children or state.extensions.added_now:
        refused = refusal(state, job_id, payload, options)
        if refused is not None:
            return refused
        if options is not None and options.after:
            return _add_child(state, command)
        make_room(state, command)
        if options is not None:
            key, namespace = options.key, options.namespace
    elif state.jobs.get(job_id) is not None and not _is_free(state, job_id):
        return _DUPLICATE
    if delay_ms:
        max_fails = workq.pack_max_fails(max_fails, delay_ms)
    enqueue(
        state, job_id, name, ttr_ms, ttl_ms, priority, max_attempts, max_fails, None, payload, key,
        namespace=namespace,
    )  # fmt: skip
    return replies.DONE


def schedule(state: WorkqState, command: commands.ScheduleJob, _client: Client) -> replies.Reply:
    job_id, name, ttr_ms, ttl_ms, time_ns, payload, priority, attempts, fails, delay_ms, options = (
        command
    )
    is_scheduled = time_ns != NO_TIME_NS
    if is_scheduled and time_ns + ttl_ms * NS_PER_MS <= state.now_ns:
        return _TOO_LATE
    refused = refusal(state, job_id, payload, options)
    if refused is not None:
        return refused
    make_room(state, command)
    enqueue(
        state,
        job_id,
        name,
        ttr_ms,
        ttl_ms,
        priority,
        attempts,
        workq.pack_max_fails(fails, delay_ms),
        time_ns if is_scheduled else None,
        payload,
        "" if options is None else options.key,
        namespace="" if options is None else options.namespace,
    )
    return replies.DONE


def run(state: WorkqState, command: commands.RunJob, client: Client) -> replies.Reply | None:
    job_id, name, ttr_ms, wait_ms, payload, priority = command
    if job_id in state.extensions.children or not _is_free(state, job_id):
        return _DUPLICATE
    queue = state.queues.use(name)
    created_ns = state.moment_of_its_own().unix_ns
    spec = packed.pack(
        job_id, queue.number, ttr_ms, 0, priority, 0, 0, created_ns, None, packed.IS_RUN, payload
    )
    state.jobs.replace(job_id, None, spec)
    match(state, queue)
    entry = state.jobs.get(job_id)
    assert entry is not None
    if not wait_ms and packed.opened(entry)[1] != packed.LEASED:
        give_up_run(state, job_id, entry)
        return replies.TIMED_OUT
    until_ns = state.now_ns + wait_ms * NS_PER_MS
    number = state.waiting.next_number()
    state.waiting.add(Waiter(number, client, until_ns, job_id=job_id, is_run=True))
    return None


def requeue(state: WorkqState, command: commands.Requeue, _client: Client) -> replies.Reply:
    job_id = command.job_id
    entry = state.find(job_id)
    if entry is None:
        return replies.NOT_FOUND
    if packed.opened(entry)[1] not in (*packed.DEAD, packed.CANCELLED):
        return _NOT_DEAD
    _begin_again(state, job_id, entry)
    return replies.DONE


def requeue_all(state: WorkqState, command: commands.RequeueAll, _client: Client) -> replies.Reply:
    """The oldest of the highest priority first; as many as are asked for, or fit a write."""
    queue = state.queues.get(command.name)
    if queue is None:
        return replies.NOT_FOUND
    done = size = 0
    most = state.extensions.effort + EFFORT_LIMIT
    for spec in queue.dead.page(0, command.limit):
        job_id = packed.job_id_of(spec)
        entry = state.find(job_id)
        if entry is None:
            continue
        size += packed.payload_bytes_of(spec)
        if done and (size > REQUEUED_BYTES or state.extensions.effort > most):
            break
        _begin_again(state, job_id, entry)
        done += 1
    return replies.Requeued(command.name, done)


def _begin_again(state: WorkqState, job_id: bytes, entry: packed.Entry) -> None:
    """A power cut may leave the delete in the log without the add. So the ledger has the job first,
    as one that waits for nothing (a child): a start that does not find it adds it."""
    fields = packed.fields_of(packed.opened(entry)[0])
    extensions, name = state.extensions, state.queues.by_number[fields.queue].name
    before = extensions.options.get(job_id, StoredJobOptions())
    begun_ns, first_ns = steps.begin_again(state, job_id), before.first_ns or fields.created_ns
    job = commands.Add(
        job_id,
        name,
        fields.ttr_ms,
        fields.ttl_ms,
        fields.payload,
        fields.priority,
        fields.max_attempts,
        workq.max_fails_of(fields.max_fails),
        workq.delay_ms_of(fields.max_fails),
        commands.AddOptions(
            fields.key, namespace=before.namespace, begun_ns=begun_ns, first_ns=first_ns
        ),
    )
    is_kept = extensions.is_allowed and len(fields.payload) <= commands.MAX_CHILD_BYTES
    if is_kept:
        extensions.added_now[job_id] = job
    if extensions.is_allowed:
        kept = before._replace(key=fields.key, begun_ns=begun_ns, first_ns=first_ns, given_back=0)
        state.set_options(job_id, kept)
    state.jobs.replace(job_id, entry, None)
    state.record_event(job_id, workq.Command.DELETE)
    state.tell_children(job_id, packed.FAILED, is_gone=True, was=entry)
    enqueue(
        state,
        job_id,
        name,
        fields.ttr_ms,
        fields.ttl_ms,
        fields.priority,
        fields.max_attempts,
        fields.max_fails,
        None,
        fields.payload,
        fields.key,
    )
    if is_kept:
        extensions.put(extensions.added_children, job_id, None)


def refusal(
    state: WorkqState, job_id: bytes, payload: bytes, options: commands.AddOptions | None
) -> replies.Reply | None:
    """Why a job cannot have this id and these options; None: it can, after ``make_room``."""
    extensions = state.extensions
    if job_id in extensions.children:
        return _DUPLICATE
    if options is not None:
        is_extended = options.key or options.after or options.replaces_unstarted
        if is_extended and not extensions.is_allowed:
            return _NO_LEDGER
        if options.unless and _is_unstarted(state.find(options.unless)):
            return _DUPLICATE
    if options is not None and options.follows and _is_cancelled(state, options.follows):
        return _CANCELLED
    if _is_free(state, job_id):
        return None
    entry = state.jobs.get(job_id)
    assert entry is not None
    stage = packed.opened(entry)[1]
    if options is not None and options.replaces_unstarted and _is_unstarted(entry):
        return None
    if options is None or not options.replaces_finished or stage in packed.UNFINISHED:
        return _DUPLICATE
    former = packed.fields_of(packed.spec_of(entry))
    unique_ns = options.unique_ms * NS_PER_MS if stage == packed.COMPLETED else 0
    is_early = unique_ns > 0 and state.now_ns < former.created_ns + unique_ns
    is_same = options.unless_same and former.payload == payload
    return _DUPLICATE if is_early or is_same else None


def make_room(state: WorkqState, job: commands.Add | commands.ScheduleJob) -> None:
    """The job of this id goes, if there is one: this one takes its place, for certain."""
    job_id = job.job_id
    entry = state.jobs.get(job_id)
    state.extensions.added_now.pop(job_id, None)  # the ledger has a former job
    if entry is None:
        return
    if _is_unstarted(entry):
        _keep_in_ledger(state, job)
    state.jobs.replace(job_id, entry, None)
    state.record_event(job_id, workq.Command.DELETE)
    if not _is_unstarted(entry):
        state.note_end(job_id, packed.opened(entry)[1], is_gone=True, was=entry)


def _keep_in_ledger(state: WorkqState, job: commands.Add | commands.ScheduleJob) -> None:
    """The job takes the place of one that has not begun, which other jobs and clients go on waiting
    for. A power cut may leave the delete of that one in the log without the add of this one: a
    start that finds neither adds what the ledger has, without its time."""
    extensions, job_id, given = state.extensions, job.job_id, job.options
    assert given is not None
    extensions.added_now[job_id] = commands.Add(
        *(job_id, job.name, job.ttr_ms, job.ttl_ms, job.payload, job.priority),
        *(job.max_attempts, job.max_fails, job.retry_delay_ms),
        commands.AddOptions(given.key, namespace=given.namespace),
    )
    extensions.end_steps(job_id, state.now_ns)  # a requeued job may have had other arguments
    options = StoredJobOptions(given.key, namespace=given.namespace)
    state.set_options(job_id, options)
    if not any(options):
        extensions.drop(extensions.options, job_id)
        extensions.forget(job_id, state.now_ns)
    extensions.put(extensions.added_children, job_id, None)


def _is_unstarted(entry: packed.Entry | None) -> bool:
    """Return whether no worker has begun this job."""
    if entry is None or packed.is_run(packed.spec_of(entry)):
        return False
    return packed.opened(entry)[1] == packed.NEW


def _is_cancelled(state: WorkqState, job_id: bytes) -> bool:
    entry = state.find(job_id)
    return entry is not None and packed.opened(entry)[1] == packed.CANCELLED


def _is_free(state: WorkqState, job_id: bytes) -> bool:
    """Return whether a job may have this id. One whose TTL is over makes room."""
    entry = state.jobs.get(job_id)
    if entry is None:
        return True
    if not state.is_expired(entry):
        return False
    expire(state, job_id, entry)
    return True


def enqueue(
    state: WorkqState,
    job_id: bytes,
    name: str,
    ttr_ms: int,
    ttl_ms: int,
    priority: int,
    max_attempts: int,
    max_fails: int,
    time_ns: int | None,
    payload: bytes,
    key: str = "",
    failed_with: bytes | None = None,
    namespace: str = "",
    stage: int = packed.FAILED,
) -> None:
    """A job begins; ``max_fails`` is as in the log. ``failed_with``: and has failed already, or was
    cancelled, as ``stage`` says."""
    queue = state.queues.use(name)
    created = state.moment_of_its_own()
    if (key or namespace) and job_id not in state.extensions.options:
        state.set_options(job_id, StoredJobOptions(key, namespace=namespace))
    elif not (
        key or namespace or job_id in state.extensions.added_now
    ) and state.extensions.is_to_be_forgotten(job_id):
        state.forget_now(job_id)
    created_ns = created.unix_ns
    flags, command, time, begins_ns = 0, _ADD, None, created_ns
    if time_ns is not None:
        flags, command, time, begins_ns = packed.IS_SCHEDULE, _SCHEDULE, Instant(time_ns), time_ns
    spec = packed.pack(
        job_id,
        queue.number,
        ttr_ms,
        ttl_ms,
        priority,
        max_attempts,
        max_fails,
        created_ns,
        time_ns,
        flags,
        payload,
        key,
    )
    if failed_with is not None:
        state.jobs.replace(job_id, None, (spec, stage, 0, 0, 0, created_ns, failed_with))
    elif begins_ns <= created_ns:
        state.jobs.add_ready(job_id, spec, queue, begins_ns + ttl_ms * NS_PER_MS)
    else:
        state.jobs.replace(job_id, None, (spec, packed.NEW, 0, 0, 0, begins_ns, None))
    state.records.append(
        workq.JobAdded(
            created,
            job_id,
            name,
            ttr_ms,
            ttl_ms,
            priority,
            max_attempts,
            max_fails,
            payload,
            time,
            created,
            command,
        )
    )
    if failed_with is not None:
        state.records.append(workq.JobFinished(created, job_id, workq.Command.FAIL, failed_with))
    elif queue.waiters.size:
        match(state, queue)


_UNKNOWN_PARENT = commands.RefusedLine(commands.Complaint.NO_PARENT)
_TOO_MANY = commands.RefusedLine(commands.Complaint.TOO_MANY_CHILDREN)
_NO_JOB = -1


def _add_child(state: WorkqState, job: commands.Add) -> replies.Reply:
    """A job that may have its id: see ``refusal``."""
    child = _child_of(state, job)
    if child is None:
        return _UNKNOWN_PARENT
    extensions = state.extensions
    if child.is_to_be_added:
        make_room(state, job)
        _add_or_fail(state, child)
        return replies.DONE
    if (
        len(extensions.children) >= MAX_CHILDREN
        or extensions.child_bytes + child.size > MAX_CHILDREN_BYTES
        or any(
            len(extensions.children_of.get(parent, ())) >= MAX_CHILDREN_OF_ONE
            for parent in child.parents
        )
    ):
        return _TOO_MANY
    make_room(state, job)
    state.queues.use(job.name)
    extensions.add_child(child)
    extensions.drop(extensions.forgetting, job.job_id)
    extensions.drop(extensions.lingering, job.job_id)
    state.ledger.append(JobOptionsSet(state.instant, replies.id_text(job.job_id), child_body(job)))
    return replies.DONE


def delete_child(state: WorkqState, command: commands.Delete, _client: Client) -> replies.Reply:
    job_id = command.job_id
    state.extensions.drop_child(job_id, state.now_ns)
    state.ledger.append(JobOptionsRemoved(state.instant, replies.id_text(job_id)))
    state.tell(job_id, replies.NOT_FOUND)
    state.note_end(job_id, packed.FAILED, is_gone=True)
    return replies.DONE


def cancel_child(state: WorkqState, command: commands.Cancel, _client: Client) -> replies.Reply:
    _end_child(state, state.extensions.children[command.job_id], is_cancelled=True)
    return replies.DONE


def add_ready_children(state: WorkqState) -> int:
    """Add, or fail, children that wait no longer. Returns how many."""
    extensions, done = state.extensions, 0
    most = extensions.effort + EFFORT_LIMIT
    while extensions.ready_children and done < ADD_LIMIT and extensions.effort < most:
        job_id = next(iter(extensions.ready_children))
        extensions.drop(extensions.ready_children, job_id)
        child = extensions.children.get(job_id)
        if child is not None and child.is_to_be_added:
            _end_child(state, child)
            done += 1
    return done


def _end_child(state: WorkqState, child: Child, *, is_cancelled: bool = False) -> None:
    """Make a child an ordinary job; the ledger has it as a child until the log has the job."""
    extensions, job_id = state.extensions, child.job.job_id
    extensions.effort += len(child.job.payload) // EFFORT_BYTES
    extensions.drop_child(job_id, state.now_ns)
    extensions.added_now[job_id] = child.job
    _add_or_fail(state, child, is_cancelled=is_cancelled)
    extensions.put(extensions.added_children, job_id, None)
    if job_id not in extensions.options:
        extensions.forget(job_id, state.now_ns)


def load_children(state: WorkqState, loaded: LoadedExtensions, completed: set[bytes]) -> None:
    """The children of a ledger; ``completed`` are parents that expired after they completed."""
    extensions, children = state.extensions, loaded.children
    waiting = {job_id: job for job_id, job in children.items() if state.jobs.get(job_id) is None}
    for job_id in children.keys() - waiting.keys():
        extensions.added_children[job_id] = None
        if job_id not in extensions.options:  # it was added, and has no key
            extensions.forget(job_id, state.now_ns)
    for job in waiting.values():
        state.queues.use(job.name)
        extensions.add_child(Child.of_add(job))
    stages = {parent: _stage_of(state, parent) for parent in extensions.children_of}
    stages |= dict.fromkeys(completed & stages.keys(), packed.COMPLETED)
    undone = {parent for parent, mark in loaded.marked.items() if _is_undone(state, parent, mark)}
    for job_id in waiting:
        child, ended = extensions.children[job_id], loaded.ended.get(job_id, {})
        for parent in child.parents:
            if parent in ended and parent not in undone:
                child = child.without(parent, succeeded=ended[parent].succeeded)
            elif stages[parent] not in packed.UNFINISHED:
                child = child.without(parent, succeeded=stages[parent] == packed.COMPLETED)
        extensions.put(extensions.children, job_id, child)
        if child.is_to_be_added:
            extensions.put(extensions.ready_children, job_id, None)
    for parent in loaded.marked:
        if parent in undone:  # before it ends in another way
            state.unsaid.append(ParentForgotten(state.instant, replies.id_text(parent)))
        elif parent in extensions.children_of:
            extensions.marked[parent] = loaded.marked[parent].succeeded
        else:
            extensions.forget_parent(parent, state.now_ns)
    for parent in completed & extensions.children_of.keys() - loaded.marked.keys():
        state.mark_parent(parent, succeeded=True)  # the log may be cleaned of them
    state.unsaid, state.ledger = state.unsaid + state.ledger, []


def _is_undone(state: WorkqState, parent: bytes, mark: ParentMark) -> bool:
    """Return whether the log has the job that the ledger says has ended: the log counts."""
    entry = state.jobs.get(parent)
    return mark.life != 0 and packed.life_of(entry) == mark.life


def _child_of(state: WorkqState, job: commands.Add) -> Child | None:
    assert job.options is not None
    child = Child.of_add(job)
    for parent in job.options.after:
        stage = _stage_of(state, parent)
        if stage == _NO_JOB or parent == job.job_id:  # leaving makes room for it
            return None
        if stage not in packed.UNFINISHED:
            child = child.without(parent, succeeded=stage == packed.COMPLETED)
    return child


def _stage_of(state: WorkqState, job_id: bytes) -> int:
    if job_id in state.extensions.children:
        return packed.UNFINISHED[0]
    entry = state.find(job_id)
    return _NO_JOB if entry is None else packed.opened(entry)[1]


def _add_or_fail(state: WorkqState, child: Child, *, is_cancelled: bool = False) -> None:
    """It waits no longer: an ordinary add; and a failure at once, if a parent has failed or the
    child was cancelled."""
    job, extensions = child.job, state.extensions
    why = (
        f"parent {replies.id_text(child.failed)} failed or is gone".encode()
        if child.failed
        else None
    )
    given = job.options or commands.AddOptions()
    key = given.key
    lives = {"begun_ns": given.begun_ns, "first_ns": given.first_ns}
    options = StoredJobOptions(key, namespace=given.namespace, **lives)
    if is_cancelled:
        why = workq.CANCELLATION
        # The add, and the failure with it, take the next moment.
        state.set_options(job.job_id, options._replace(cancelled_ns=state.now_ns + 1))
    elif any(options) and job.job_id in extensions.added_now:
        extensions.put(extensions.options, job.job_id, options)  # the ledger has it
    elif any(options):
        state.set_options(job.job_id, options)
    enqueue(
        state,
        job.job_id,
        job.name,
        job.ttr_ms,
        job.ttl_ms,
        job.priority,
        job.max_attempts,
        workq.pack_max_fails(job.max_fails, job.retry_delay_ms),
        None,
        job.payload,
        key,
        why,
        stage=packed.CANCELLED if is_cancelled else packed.FAILED,
    )
    if why is not None:
        state.tell(job.job_id, replies.Finished(job.job_id, False, why))
        state.note_end(job.job_id, packed.FAILED)
