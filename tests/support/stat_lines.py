"""Figures of a server, as STAT gives them."""

from __future__ import annotations

from journeyman.protocols.ztick.replies import Metrics

STAT = Metrics(
    uptime_ns=1_500_000_000,
    connections=3,
    jobs_total=100,
    jobs_planned=40,
    jobs_triggered=30,
    jobs_executed=20,
    jobs_failed=10,
    rules_total=7,
    executions_pending=5,
    executions_inflight=25,
    persistence="logfile",
    compression="running",
    auth_enabled=False,
    tls_enabled=False,
    framerate=512,
)
