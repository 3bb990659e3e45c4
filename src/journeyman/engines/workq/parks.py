"""Parked jobs: they wait without a lease, for a time, an event or other jobs, and then go on.

    park ID    of a leased job, by its present attempt   its lease ends; or the wait is over already
    emit       an event happens, once                    jobs that wait for it are woken
    due        the time has come                         the job is woken
    a job ends                                           jobs that wait for it, and for no other
                                                         that has not ended, are woken

    log      park, timeout-attempt     the first park: the original is shown a job in its queue
             park                      every later one
             wake                      hidden, as parks and all later starts are
    ledger   step-done                 what the wait came to, before the wake: nothing for a time or
                                       for jobs, the value of an event; by another name if the event
                                       did not come in time (TIMED_OUT)
             event-set, event-forgotten

The log says whether a job is parked. So a job is woken exactly once for each park, and a start
finds out again what is over. Many jobs may wait for one event, so a decision wakes some of them and
``WorkqDue`` continues. An event is forgotten when its retention ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Final

import msgspec
from msgspec import structs

from journeyman.engines.workq import packed, steps
from journeyman.engines.workq.extensions import EFFORT_BYTES, EVENT_BYTES
from journeyman.engines.workq.messages import Client
from journeyman.engines.workq.state import WorkqState
from journeyman.engines.workq.step_table import StepKey, StepValue, text_of
from journeyman.formats.ledger import EventForgotten, EventSet
from journeyman.formats.workq import Command, JobEvent, JobFinished
from journeyman.protocols.workq import commands, replies
from journeyman.protocols.workq.commands import Complaint, JobWait, RefusedLine
from journeyman.protocols.workq.readers import read_id, read_wait
from journeyman.units import NS_PER_MS

TIMED_OUT: Final = "!timeout"  # behind the name of a step; no name of a client has the first sign
WAKE_LIMIT: Final = 100  # jobs that one decision wakes
WAKE_EFFORT: Final = 25  # for a job that is woken, as of extensions.EFFORT_LIMIT
WAKE_BYTES: Final = 16 * 1024  # writing so much of a value takes as long as waking a job
MAX_EVENT_BYTES: Final = 128 * 1024 * 1024  # the largest size of all events together

_NO_LEDGER = RefusedLine(Complaint.NO_LEDGER)
_HAS_MAX_ATTEMPTS = RefusedLine(Complaint.HAS_MAX_ATTEMPTS)
_TOO_MANY_STEPS = RefusedLine(Complaint.TOO_MANY_STEPS)
_TOO_MANY_EVENTS = RefusedLine(Complaint.TOO_MANY_EVENTS)
_DIFFERS = RefusedLine(Complaint.EVENT_DIFFERS)
_encode = msgspec.json.Encoder().encode
_UNREADABLE: Final = JobWait("unreadable", until_ns=1)


def park(state: WorkqState, command: commands.Park, _client: Client) -> replies.Reply:
    job_id, wait = command.job_id, command.wait
    entry = state.find(job_id)
    if entry is not None and command.attempt == packed.opened(entry)[2] and is_parked(entry):
        return replies.DONE  # sent again: the reply was lost
    refused = steps.refusal(state, job_id, command.attempt)
    if refused is not None:
        return refused
    assert entry is not None
    spec = packed.spec_of(entry)
    if packed.limits_of(spec)[0]:  # the original counts starts, and so does the fold
        return _HAS_MAX_ATTEMPTS
    if not state.extensions.steps.has_room(job_id, b""):
        return _TOO_MANY_STEPS
    if wait.within_ms:
        until_ns = state.now_ns + wait.within_ms * NS_PER_MS
        wait = structs.replace(wait, until_ns=until_ns, within_ms=0)
    if (ended := _outcome(state, job_id, wait)) is not None:
        steps.keep(state, job_id, *ended)
        return replies.StepList((replies.RecordedStep(*ended[0], *ended[1]),))
    reason = _encode(wait)
    state.records.append(JobFinished(state.instant, job_id, Command.PARK, reason, hidden=True))
    if not packed.was_parked(spec):
        state.record_timeout(job_id, spec)
    state.jobs.replace(job_id, entry, packed.park(entry, reason, wait.until_ns))
    state.extensions.drop(state.extensions.workers, job_id)
    if wait.jobs:
        _watch(state, job_id, wait)
    return replies.DONE


def emit(state: WorkqState, command: commands.Emit, _client: Client) -> replies.Reply:
    extensions, name, value = state.extensions, command.name, command.value
    if not extensions.is_allowed:
        return _NO_LEDGER
    before = extensions.events.get(name)
    if before is not None:
        return replies.DONE if before.value == value else _DIFFERS
    size = len(value) + EVENT_BYTES
    free = MAX_EVENT_BYTES - extensions.event_bytes - size
    if not extensions.events_of_namespaces.may_have(command.namespace, size, free):
        return _TOO_MANY_EVENTS
    extensions.add_event(name, StepValue(value, state.now_ns))
    state.ledger.append(EventSet(state.instant, name, *text_of(value)))
    extensions.put(extensions.ringing, name, None)
    return replies.DONE


def inspect_event(
    state: WorkqState, command: commands.InspectEvent, _client: Client
) -> replies.Reply:
    found = state.extensions.events.get(command.name)
    if found is None:
        return replies.NOT_FOUND
    return replies.StepList((replies.RecordedStep(command.name, 1, *found),))


def is_parked(entry: packed.Entry) -> bool:
    return packed.opened(entry)[1] == packed.PARKED


def wait_of(entry: packed.Entry) -> JobWait:
    """Return the wait of a parked job; one that cannot be read is over."""
    return read_wait(packed.opened(entry)[6] or b"") or _UNREADABLE


def wake_some(state: WorkqState, limit: int) -> int:
    """Wake jobs whose event has happened, or whose jobs have ended. Returns how many. Each gets
    the value of its event, so one with a large value counts as many."""
    extensions, done = state.extensions, 0
    while done < limit and (extensions.waking or extensions.ringing):
        if extensions.waking:
            job_id = next(iter(extensions.waking))
            extensions.drop(extensions.waking, job_id)
        else:
            name = next(iter(extensions.ringing))
            found = state.jobs.waiting_for(name, 1)
            if not found:
                extensions.drop(extensions.ringing, name)
                continue
            job_id = found[0]
        entry = state.find(job_id)
        if entry is not None and is_parked(entry):
            wait = wait_of(entry)
            extensions.effort += WAKE_EFFORT + len(wait.jobs)
            if (ended := _outcome(state, job_id, wait)) is not None:
                _wake(state, job_id, entry, ended)
                size = len(ended[1].value)
                extensions.effort += size // EFFORT_BYTES
                done += size // WAKE_BYTES
            elif wait.jobs:
                _watch(state, job_id, wait)
        done += 1
    return done


def time_has_come(state: WorkqState, job_id: bytes, entry: packed.Entry) -> None:
    """A parked job has waited for as long as it would."""
    ended = _outcome(state, job_id, wait_of(entry))
    assert ended is not None
    _wake(state, job_id, entry, ended)


def forget_events(state: WorkqState, limit: int) -> None:
    """Forget events whose retention has ended, and that have woken all jobs that waited
    for them."""
    extensions = state.extensions
    if extensions.waking or extensions.ringing:
        return
    for name, event in list(islice(extensions.events.items(), limit)):
        if event.done_ns + extensions.retention_ns > state.now_ns:
            break
        extensions.drop_event(name)
        state.ledger.append(EventForgotten(state.instant, name))


def load(state: WorkqState, parked: Sequence[tuple[bytes, JobWait]]) -> None:
    """Watch what these parked jobs wait for, after everything else is loaded. All others are in the
    order of their times or of their events."""
    for job_id, wait in parked:
        if _outcome(state, job_id, wait) is not None:
            state.extensions.waking[job_id] = None
        elif wait.jobs:
            _watch(state, job_id, wait)


def _wake(
    state: WorkqState, job_id: bytes, entry: packed.Entry, ended: tuple[StepKey, StepValue]
) -> None:
    steps.keep(state, job_id, *ended)
    state.records.append(JobEvent(state.instant, job_id, Command.WAKE, hidden=True))
    state.jobs.replace(job_id, entry, packed.wake(entry, state.now_ns))
    state.jobs.freed.append(state.queues.by_number[packed.queue_of(packed.spec_of(entry))])


def _outcome(state: WorkqState, job_id: bytes, wait: JobWait) -> tuple[StepKey, StepValue] | None:
    """The step that the wait has come to; None: it goes on."""
    recorded = state.extensions.steps.steps_of(job_id)
    key, late = (StepKey(wait.step + end, wait.number) for end in ("", TIMED_OUT))
    goes_on = bool(wait.jobs) and _unfinished_in(state, wait) is not None
    for known in (key, late):
        # The ledger is written first: a crash may have lost the end of a job, and kept this.
        if known in recorded and not (known == key and goes_on):
            return known, recorded[known]
    event = state.extensions.events.get(wait.event) if wait.event else None
    if event is not None:
        return key, StepValue(event.value, state.now_ns)
    if wait.jobs and not goes_on:
        return key, StepValue(b"", state.now_ns)
    if wait.until_ns and wait.until_ns <= state.now_ns:
        is_late = wait.event or wait.jobs
        return (late if is_late else key), StepValue(b"", state.now_ns)
    return None


def _unfinished_in(state: WorkqState, wait: JobWait) -> bytes | None:
    """The first of the jobs that has not ended."""
    for text in wait.jobs:
        job_id = read_id(text.encode())
        if job_id is None:
            continue
        if job_id in state.extensions.children:
            return job_id
        entry = state.find(job_id)
        if entry is not None and packed.opened(entry)[1] in packed.UNFINISHED:
            return job_id
    return None


def _watch(state: WorkqState, job_id: bytes, wait: JobWait) -> None:
    """Have it woken when the next of its jobs ends; then the others are looked at."""
    parent, watched = _unfinished_in(state, wait), state.extensions.watched
    if parent is None:
        state.extensions.put(state.extensions.waking, job_id, None)
        return
    if parent not in watched:
        state.extensions.put(watched, parent, {})
    state.extensions.put(watched[parent], job_id, None)
