"""What STAT tells: the engine's figures together with those that only the server knows."""

from __future__ import annotations

from collections.abc import Callable, Sized
from dataclasses import dataclass
from typing import Literal

from journeyman.clock import Clock
from journeyman.engines.ztick.messages import ScheduleStats
from journeyman.protocols.ztick import Metrics


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
