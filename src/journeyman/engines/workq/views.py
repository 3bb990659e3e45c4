"""What ``inspect`` shows: jobs and queues as they are at this moment.

A job whose TTL is over is not shown. ``fails`` counts every failure that a worker has reported, so
one more than the fold's for a job that has failed for good.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from heapq import nlargest

from journeyman.engines.sorted_set import SortedSet
from journeyman.engines.workq.browsing import oldest_ns
from journeyman.engines.workq.extensions import Child
from journeyman.engines.workq.job import (
    EXHAUSTED,
    FAILED,
    LEASED,
    NEW,
    Entry,
    fields_of,
    job_id_of,
    opened,
    payload_bytes_of,
    queue_of,
    spec_of,
)
from journeyman.engines.workq.messages import Client, QueueFigures, WorkqStats
from journeyman.engines.workq.queues import JobQueue
from journeyman.engines.workq.state import WorkqState
from journeyman.formats.workq import max_fails_of
from journeyman.protocols.workq.commands import (
    NO_LIMITS,
    InspectDeadJobs,
    InspectJob,
    InspectJobs,
    InspectPausedQueues,
    InspectQueue,
    InspectQueues,
    InspectScheduledJobs,
    InspectServer,
    InspectToken,
)
from journeyman.protocols.workq.replies import (
    NOT_FOUND,
    JobList,
    JobView,
    JobViews,
    QueueList,
    QueueView,
    Reply,
    ServerView,
    TokenView,
)


def job(state: WorkqState, command: InspectJob, _client: Client) -> Reply:
    entry = state.find(command.job_id)
    if entry is not None:
        return _job_list(state, (entry,))
    child = state.extensions.children.get(command.job_id)
    return NOT_FOUND if child is None else JobList((_child_view(child),))


def jobs(state: WorkqState, command: InspectJobs, _client: Client) -> Reply:
    queue = state.queues.get(command.name)
    if queue is None:
        return NOT_FOUND
    return _listed(state, queue.waiting_page(command.offset, command.limit))


def scheduled_jobs(state: WorkqState, command: InspectScheduledJobs, _client: Client) -> Reply:
    queue = state.queues.get(command.name)
    return NOT_FOUND if queue is None else _page(state, queue.scheduled, command)


def dead_jobs(state: WorkqState, command: InspectDeadJobs, _client: Client) -> Reply:
    queue = state.queues.get(command.name)
    return NOT_FOUND if queue is None else _page(state, queue.dead, command)


def queue(state: WorkqState, command: InspectQueue, _client: Client) -> Reply:
    found = state.queues.get(command.name)
    return NOT_FOUND if found is None else _queue_list((found,))


def queues(state: WorkqState, command: InspectQueues, _client: Client) -> Reply:
    page = state.queues.page(command.offset, command.limit, command.prefix)
    return _queue_list(page, with_counts=command.with_counts)


def paused_queues(state: WorkqState, command: InspectPausedQueues, _client: Client) -> Reply:
    found = state.queues.paused_page(command.offset, command.limit, command.prefix)
    return _queue_list(found)


def server(state: WorkqState, _command: InspectServer, _client: Client) -> Reply:
    """The server knows the rest."""
    return ServerView(0, state.evicted, 0)


def token(_state: WorkqState, _command: InspectToken, _client: Client) -> Reply:
    """The server knows the token."""
    return TokenView()


def stats(state: WorkqState) -> WorkqStats:
    ready = scheduled = failed = 0
    for queue in state.queues.by_number:
        ready += queue.ready_size
        scheduled += len(queue.scheduled)
        failed += len(queue.dead)
    leased = len(state.jobs.leases)
    completed = len(state.jobs) - ready - scheduled - failed - leased
    return WorkqStats(
        ready,
        scheduled,
        leased,
        completed,
        failed,
        len(state.queues),
        len(state.waiting),
        state.evicted,
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
        queue.name, queue.ready_size, len(queue.scheduled), len(queue.dead), oldest_ns(queue.ready)
    )


def _page(
    state: WorkqState,
    order: SortedSet[bytes],
    command: InspectScheduledJobs | InspectDeadJobs,
) -> JobList:
    return _listed(state, order.page(command.offset, command.limit))


def _listed(state: WorkqState, specs: Iterable[bytes]) -> JobList:
    entries = (state.find(job_id_of(spec)) for spec in specs)
    return _job_list(state, [entry for entry in entries if entry is not None])


def _job_list(state: WorkqState, entries: Sequence[Entry]) -> JobList:
    """As they are now, whenever the views are made: entries do not change."""
    makers = []
    for entry in entries:
        name = state.queues.by_number[queue_of(spec_of(entry))].name
        worker = state.extensions.workers.get(job_id_of(spec_of(entry)), "")
        makers.append(partial(_job_view, name, entry, worker))
    return JobList(JobViews(makers, sum(payload_bytes_of(spec_of(entry)) for entry in entries)))


def _job_view(queue: str, entry: Entry, worker: str) -> JobView:
    spec, stage, attempts, fails, _, _, _ = opened(entry)
    fields = fields_of(spec)
    return JobView(
        fields.job_id,
        queue,
        fields.ttr_ms,
        fields.ttl_ms,
        fields.payload,
        fields.max_attempts,
        attempts,
        max_fails_of(fields.max_fails),
        fails + (stage == FAILED),
        fields.priority,
        FAILED if stage == EXHAUSTED else stage,
        fields.created_ns,
        fields.time_ns,
        worker if stage == LEASED else "",
        fields.key,
    )


def _child_view(child: Child) -> JobView:
    """A job that waits for others: new, created when the time comes."""
    job = child.job
    return JobView(
        job.job_id,
        job.name,
        job.ttr_ms,
        job.ttl_ms,
        job.payload,
        job.max_attempts,
        0,
        job.max_fails,
        0,
        job.priority,
        NEW,
        0,
        None,
        key="" if job.options is None else job.options.key,
        after=len(child.left),
    )


def _queue_list(queues: Iterable[JobQueue], *, with_counts: bool = False) -> QueueList:
    return QueueList(
        tuple(
            QueueView(
                *(q.name, q.ready_size, q.scheduled.size, q.paused, q.leased),
                None if q.limits is NO_LIMITS else q.limits,
                q.dead.size if with_counts else None,
            )
            for q in queues
        )
    )
