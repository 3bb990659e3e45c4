"""What the engine replied -> bytes of the ztick protocol.

Short answers are bytes. Lists may be as long as the schedule, so they are iterators of bytes, to
be sent slice by slice; each slice is made when it is asked for, from a listing that shows the
moment of the command. The OK behind a list goes with its last slice, in one write: clients that
take a single read for the whole answer get all of a short list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sized
from dataclasses import dataclass
from itertools import islice
from typing import Literal, TypeAlias

from journeyman.clock import Clock
from journeyman.engines.ztick.messages import (
    Accepted,
    JobListing,
    JobNotFound,
    OutOfScope,
    Reply,
    Reserved,
    RuleListing,
    RuleNotFound,
    ScheduledJobState,
    ScheduleStats,
)
from journeyman.protocols.ztick import (
    Command,
    Metrics,
    auth_denied,
    job_lines,
    job_not_found,
    job_state,
    metric_lines,
    ok,
    reserved,
    rule_line,
    rule_not_found,
)

Answer: TypeAlias = bytes | Iterator[bytes]

RULES_A_SLICE = 100


def answer(
    command: Command, reply: Reply | None, metrics: Callable[[ScheduleStats], Metrics]
) -> Answer:
    """``metrics`` adds to the engine's figures those of the server."""
    request_id = command.request_id
    if isinstance(reply, Accepted):
        return ok(request_id)
    if isinstance(reply, ScheduledJobState):
        return job_state(request_id, reply.status, reply.execution_ns)
    if isinstance(reply, JobNotFound):
        return job_not_found(request_id, reply.identifier)
    if isinstance(reply, Reserved):
        return reserved(request_id, reply.identifier)
    if isinstance(reply, RuleNotFound):
        return rule_not_found(request_id, reply.identifier)
    if isinstance(reply, OutOfScope):
        return auth_denied(request_id)
    if isinstance(reply, JobListing):
        return _jobs(request_id, reply)
    if isinstance(reply, RuleListing):
        return _rules(request_id, reply)
    if isinstance(reply, ScheduleStats):
        return metric_lines(request_id, metrics(reply)) + ok(request_id)
    raise AssertionError(f"no client can be told {reply!r}")


def _jobs(request_id: bytes, listing: JobListing) -> Iterator[bytes]:
    return _with_ok(request_id, (job_lines(request_id, rows) for rows in listing))


def _rules(request_id: bytes, listing: RuleListing) -> Iterator[bytes]:
    rules = iter(listing.rules)
    slices = iter(lambda: list(islice(rules, RULES_A_SLICE)), [])
    return _with_ok(
        request_id,
        (
            b"".join(rule_line(request_id, r.identifier, r.pattern, r.runner) for r in some)
            for some in slices
        ),
    )


def _with_ok(request_id: bytes, slices: Iterator[bytes]) -> Iterator[bytes]:
    """The slices, the last one with the final OK: a short list is a single write."""
    held_back = b""
    for each in slices:
        yield held_back
        held_back = each
    yield held_back + ok(request_id)


# ----------------------------------------
# What STAT tells: the engine's figures together with those that only the server knows.


@dataclass(slots=True)
class ServerFacts:
    """Made once a server; ``compression`` is asked each time, it changes in another thread."""

    clock: Clock
    started_ns: int  # monotonic
    connections: Sized
    persistence: Literal["logfile", "memory"]
    compression: Callable[[], Literal["idle", "running", "success", "failure"]]
    auth_enabled: bool
    tls_enabled: bool
    framerate: int

    def metrics(self, stats: ScheduleStats) -> Metrics:
        return Metrics(
            uptime_ns=self.clock.monotonic_ns() - self.started_ns,
            connections=len(self.connections),
            jobs_total=stats.jobs_total,
            jobs_planned=stats.jobs_planned,
            jobs_triggered=stats.jobs_triggered,
            jobs_executed=stats.jobs_executed,
            jobs_failed=stats.jobs_failed,
            rules_total=stats.rules_total,
            executions_pending=stats.executions_pending,
            executions_inflight=stats.executions_inflight,
            persistence=self.persistence,
            compression=self.compression(),
            auth_enabled=self.auth_enabled,
            tls_enabled=self.tls_enabled,
            framerate=self.framerate,
        )
