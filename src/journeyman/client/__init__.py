"""Blocking clients of the server, for programs and for the pipeline.

    Schedule        the schedule, port 5678, ztick protocol
    WorkQueue       the work queue, port 9922, workq protocol
    KestrelClient   the fan-out queues, port 22133, kestrel protocol

All three work with the original servers too. They need only the standard library. One client is
one connection, for one thread. Every error is a ``ClientError``; what a rule runs is one of the
runners (``Shell``, ``Http``, ...). See docs/client.md.
"""

from __future__ import annotations

from journeyman.client.errors import (
    AccessDenied,
    AnswerLost,
    BadAnswer,
    CannotConnect,
    ClientError,
    ConnectionFailed,
    InvalidRequest,
    NotFound,
    Refused,
    TimedOut,
)
from journeyman.client.kestrel import KestrelClient
from journeyman.client.workq import NewJob, WorkQueue
from journeyman.client.workq_lines import JobInfo, LeasedJob, QueueInfo, Result, WorkJobState
from journeyman.client.ztick import Job, Rule, Schedule
from journeyman.formats.ztick import (
    Amqp,
    Awf,
    Direct,
    FanOutRunner,
    Http,
    Redis,
    Runner,
    Shell,
    Status,
    WorkQueueRunner,
)

__all__ = [
    "AccessDenied",
    "Amqp",
    "AnswerLost",
    "Awf",
    "BadAnswer",
    "CannotConnect",
    "ClientError",
    "ConnectionFailed",
    "Direct",
    "FanOutRunner",
    "Http",
    "InvalidRequest",
    "Job",
    "JobInfo",
    "KestrelClient",
    "LeasedJob",
    "NewJob",
    "NotFound",
    "QueueInfo",
    "Redis",
    "Refused",
    "Result",
    "Rule",
    "Runner",
    "Schedule",
    "Shell",
    "Status",
    "TimedOut",
    "WorkJobState",
    "WorkQueue",
    "WorkQueueRunner",
]
