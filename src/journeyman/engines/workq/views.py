"""The answers of ``inspect``: jobs and queues as they are at this moment.

A job whose TTL is over is not shown. The views themselves are made in browsing.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from heapq import nlargest

from msgspec import structs

from journeyman.engines.sorted_set import SortedSet
from journeyman.engines.workq import browsing, forks, packed
from journeyman.engines.workq.messages import Client, QueueFigures, WorkqStats
from journeyman.engines.workq.progress import NOTHING
from journeyman.engines.workq.queues import JobQueue
from journeyman.engines.workq.state import WorkqState
from journeyman.protocols.workq import commands, replies


def job(state: WorkqState, command: commands.InspectJob, _client: Client) -> replies.Reply:
    entry = state.find(command.job_id)
    if entry is not None:
        job_id = command.job_id
        found = _job_list(state, (entry,), state.extensions.progress.progress_of(job_id))
        if job_id not in state.extensions.steps:
            return found
        origin, step = forks.origin_of(state, job_id)
        forked = forks.forks_of(state, job_id)
        view = found.jobs[0]
        return replies.JobList(
            (structs.replace(view, forked_from=origin, forked_at=step, forks=forked),)
        )
    child = state.extensions.children.get(command.job_id)
    if child is None:
        return replies.NOT_FOUND
    return replies.JobList((browsing.view_of_child(child),))


def progress(
    state: WorkqState, command: commands.InspectProgress, _client: Client
) -> replies.Reply:
    if state.find(command.job_id) is None and command.job_id not in state.extensions.children:
        return replies.NOT_FOUND
    return state.extensions.progress.progress_of(command.job_id) or NOTHING


def jobs(state: WorkqState, command: commands.InspectJobs, _client: Client) -> replies.Reply:
    queue = state.queues.get(command.name)
    if queue is None:
        return replies.NOT_FOUND
    return _listed(state, queue.waiting_page(command.offset, command.limit))


def scheduled_jobs(
    state: WorkqState, command: commands.InspectScheduledJobs, _client: Client
) -> replies.Reply:
    queue = state.queues.get(command.name)
    return replies.NOT_FOUND if queue is None else _page(state, queue.scheduled, command)


def dead_jobs(
    state: WorkqState, command: commands.InspectDeadJobs, _client: Client
) -> replies.Reply:
    queue = state.queues.get(command.name)
    return replies.NOT_FOUND if queue is None else _page(state, queue.dead, command)


def queue(state: WorkqState, command: commands.InspectQueue, _client: Client) -> replies.Reply:
    found = state.queues.get(command.name)
    return replies.NOT_FOUND if found is None else _queue_list(state, (found,))


def queues(state: WorkqState, command: commands.InspectQueues, _client: Client) -> replies.Reply:
    page = state.queues.page(command.offset, command.limit, command.prefix)
    return _queue_list(state, page, with_counts=command.with_counts)


def paused_queues(
    state: WorkqState, command: commands.InspectPausedQueues, _client: Client
) -> replies.Reply:
    found = state.queues.paused_page(command.offset, command.limit, command.prefix)
    return _queue_list(state, found)


def server(state: WorkqState, _command: commands.InspectServer, _client: Client) -> replies.Reply:
    """The server knows the rest."""
    return replies.ServerView(0, state.evicted, 0)


def token(_state: WorkqState, _command: commands.InspectToken, _client: Client) -> replies.Reply:
    """The server knows the token."""
    return replies.TokenView()


def stats(state: WorkqState) -> WorkqStats:
    ready = scheduled = failed = 0
    for queue in state.queues.by_number:
        ready += queue.ready_size
        scheduled += len(queue.scheduled)
        failed += len(queue.dead)
    leased = len(state.jobs.leases)
    cancelled = state.jobs.cancelled
    waiting = ready + scheduled + state.jobs.parked
    completed = len(state.jobs) - waiting - failed - leased - cancelled
    return WorkqStats(
        ready,
        scheduled,
        leased,
        completed,
        failed,
        len(state.queues),
        len(state.waiting),
        state.evicted,
        cancelled,
    )


def largest_queues(state: WorkqState, most: int) -> tuple[list[QueueFigures], QueueFigures]:
    """The queues with most jobs, by name; and all others together, nameless."""
    queues = list(state.queues.by_number)
    shown = nlargest(most, queues, key=lambda queue: (_waiting_in(queue), queue.number))
    figures = [_figures(queue) for queue in sorted(shown, key=lambda queue: queue.name)]
    ready, scheduled, dead = (
        sum(sizes) - sum(getattr(figure, part) for figure in figures)
        for part, sizes in (
            ("ready", [queue.ready_size for queue in queues]),
            ("scheduled", [queue.scheduled.size for queue in queues]),
            ("dead", [queue.dead.size for queue in queues]),
        )
    )
    return figures, QueueFigures("", ready, scheduled, dead, None)


def _waiting_in(queue: JobQueue) -> int:
    return queue.ready_size + len(queue.scheduled) + len(queue.dead)


def _figures(queue: JobQueue) -> QueueFigures:
    return QueueFigures(
        queue.name,
        queue.ready_size,
        len(queue.scheduled),
        len(queue.dead),
        browsing.oldest_ns(queue.ready),
    )


def _page(
    state: WorkqState,
    order: SortedSet[bytes],
    command: commands.InspectScheduledJobs | commands.InspectDeadJobs,
) -> replies.JobList:
    return _listed(state, order.page(command.offset, command.limit))


def _listed(state: WorkqState, specs: Iterable[bytes]) -> replies.JobList:
    entries = (state.find(packed.job_id_of(spec)) for spec in specs)
    return _job_list(state, [entry for entry in entries if entry is not None])


def _job_list(
    state: WorkqState,
    entries: Sequence[packed.Entry],
    progress: replies.JobProgress | None = None,
) -> replies.JobList:
    """List jobs as they are now, whenever the views are made: entries do not change."""
    makers = []
    for entry in entries:
        name = state.queues.by_number[packed.queue_of(packed.spec_of(entry))].name
        job_id = packed.job_id_of(packed.spec_of(entry))
        worker = state.extensions.worker_of(job_id)
        options = state.extensions.options.get(job_id)
        given_back, first_ns = (0, 0) if options is None else (options.given_back, options.first_ns)
        more = (worker, given_back, progress, first_ns)
        makers.append(partial(browsing.view_of_entry, entry, name, *more))
    size = sum(packed.payload_bytes_of(packed.spec_of(entry)) for entry in entries)
    return replies.JobList(replies.JobViews(makers, size))


def _queue_list(
    state: WorkqState, queues: Iterable[JobQueue], *, with_counts: bool = False
) -> replies.QueueList:
    found = (browsing.view_of_queue(queue, state.now_ns) for queue in queues)
    return replies.QueueList(tuple(found), with_counts)
