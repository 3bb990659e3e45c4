"""Results: given by workers, waited for by others.

    complete, fail   the result is kept until the TTL, and all who wait for it have it now
    fail, retried    back to the queue, at once or after a delay; nobody is told
    result, run      answered at once, or when the job is finished, or told that it is gone

Neither complete nor fail asks for a lease; both are taken once. A fail is retried if max-fails
allows another one and max-attempts another attempt; that is written as the fail and a
timeout-attempt of the same moment (folds.workq). Nothing is left of a ``run`` that is finished.
"""

from __future__ import annotations

from journeyman.engines.workq.job import (
    COMPLETED,
    EXHAUSTED,
    FAILED,
    LEASED,
    Entry,
    Spec,
    is_run,
    limits_of,
    opened,
)
from journeyman.engines.workq.leasing import queue_again
from journeyman.engines.workq.messages import Client
from journeyman.engines.workq.queues import Waiter
from journeyman.engines.workq.state import State
from journeyman.folds.workq import retry_of
from journeyman.formats.workq import Command, JobFinished
from journeyman.formats.workq.retry import max_fails_of
from journeyman.protocols.workq.commands import AwaitResult, Complaint, Complete, Fail, RefusedLine
from journeyman.protocols.workq.replies import DONE, NOT_FOUND, TIMED_OUT, Finished, Reply
from journeyman.units import NS_PER_MS

_COMPLETE, _FAIL = Command.COMPLETE, Command.FAIL  # to look a member up takes its time
_FINISHED = (COMPLETED, FAILED, EXHAUSTED)
_DUPLICATE = RefusedLine(Complaint.DUPLICATE_RESULT)


def complete(state: State, command: Complete, _client: Client) -> Reply:
    job_id = command.job_id
    entry = state.find(job_id)
    if entry is None:
        return NOT_FOUND
    if opened(entry)[1] in _FINISHED:
        return _DUPLICATE
    finished = JobFinished(state.instant, job_id, _COMPLETE, command.result)
    _finish(state, entry, finished, COMPLETED)
    return DONE


def fail(state: State, command: Fail, _client: Client) -> Reply:
    job_id = command.job_id
    entry = state.find(job_id)
    if entry is None:
        return NOT_FOUND
    spec, stage, attempts, fails, _, _, _ = opened(entry)
    if stage in _FINISHED:
        return _DUPLICATE
    if _may_retry(spec, attempts, fails):
        retried = JobFinished(state.instant, job_id, _FAIL, command.result, hidden=True)
        state.records += (retried, retry_of(retried, is_leased=stage == LEASED))
        queue_again(state, job_id, entry, fails + 1)
    else:
        finished = JobFinished(state.instant, job_id, _FAIL, command.result)
        _finish(state, entry, finished, FAILED)
    return DONE


def exhaust(state: State, job_id: bytes, entry: Entry) -> None:
    """The TTR of the last attempt is over. Its timeout-attempt is recorded by the caller."""
    spec, _, attempts, fails, started_ns, _, _ = opened(entry)
    dead = (spec, EXHAUSTED, attempts, fails, started_ns, state.now_ns, b"")
    state.jobs.replace(job_id, entry, dead)
    state.tell(job_id, Finished(job_id, False, b""))


def result(state: State, command: AwaitResult, client: Client) -> Reply | None:
    job_id = command.job_id
    entry = state.find(job_id)
    if entry is None:
        return NOT_FOUND
    _, stage, _, _, _, _, outcome = opened(entry)
    if outcome is not None:
        return Finished(job_id, stage == COMPLETED, outcome)
    if not command.wait_ms:
        return TIMED_OUT
    until_ns = state.now_ns + command.wait_ms * NS_PER_MS
    number = state.waiting.next_number()
    state.waiting.add(Waiter(number, client, until_ns, job_id=job_id))
    return None


def _finish(state: State, entry: Entry, finished: JobFinished, stage: int) -> None:
    job_id = finished.job_id
    spec, _, attempts, fails, started_ns, _, _ = opened(entry)
    if is_run(spec):
        state.jobs.replace(job_id, entry, None)
    else:
        done = (spec, stage, attempts, fails, started_ns, state.now_ns, finished.result)
        state.jobs.replace(job_id, entry, done)
        state.records.append(finished)
    if state.waiting.awaits(job_id):
        state.tell(job_id, Finished(job_id, stage == COMPLETED, finished.result))


def _may_retry(spec: Spec, attempts: int, fails: int) -> bool:
    max_attempts, max_fails = limits_of(spec)
    return fails + 1 < max_fails_of(max_fails) and not 0 < max_attempts <= attempts
