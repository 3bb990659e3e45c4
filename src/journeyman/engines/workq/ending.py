"""How jobs go: by delete, by their TTL, or, of a run, with its client.

Who waits for a job that goes hears NOT_FOUND; of a run that is given up, its own client TIMED_OUT.
Of ``run`` jobs nothing is written.
"""

from __future__ import annotations

from journeyman.engines.workq.job import LEASED, NEW, PENDING, Entry, is_run, opened, spec_of
from journeyman.engines.workq.messages import Client, WorkqGone
from journeyman.engines.workq.state import State
from journeyman.formats.workq import Command
from journeyman.protocols.workq.commands import Delete
from journeyman.protocols.workq.replies import DONE, NOT_FOUND, TIMED_OUT, Reply

_UNFINISHED = (NEW, PENDING, LEASED)


def delete(state: State, command: Delete, _client: Client) -> Reply:
    job_id = command.job_id
    entry = state.find(job_id)
    if entry is None:
        return NOT_FOUND
    state.jobs.replace(job_id, entry, None)
    if not is_run(spec_of(entry)):
        state.record_event(job_id, Command.DELETE)
    state.tell(job_id, NOT_FOUND)
    return DONE


def expire(state: State, job_id: bytes, entry: Entry) -> None:
    """Its TTL is over."""
    state.jobs.replace(job_id, entry, None)
    state.record_event(job_id, Command.EXPIRE)
    state.tell(job_id, NOT_FOUND)
    if opened(entry)[1] in _UNFINISHED:
        state.evicted += 1


def give_up_run(state: State, job_id: bytes, entry: Entry) -> None:
    """Nobody has finished it in time."""
    state.jobs.replace(job_id, entry, None)
    for waiter in state.waiting.of_job(job_id):
        state.answer(waiter, TIMED_OUT if waiter.is_run else NOT_FOUND)


def gone(state: State, command: WorkqGone, _client: Client) -> Reply:
    """The client waits no longer. A run of it that no worker has begun goes as well; one that is
    under way does not, for others may wait for its result."""
    waiter = state.waiting.of_client(command.client)
    if waiter is None:
        return NOT_FOUND
    state.waiting.remove(waiter)
    if waiter.is_run:
        entry = state.jobs.get(waiter.job_id)
        if entry is not None and opened(entry)[1] != LEASED:
            give_up_run(state, waiter.job_id, entry)
    return DONE
