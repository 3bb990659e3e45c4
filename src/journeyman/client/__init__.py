"""Clients of the server, blocking and for asyncio, with the same calls.

    Schedule        AsyncSchedule        the schedule, port 5678, ztick protocol
    WorkQueue       AsyncWorkQueue       the work queue, port 9922, workq protocol
    KestrelClient   AsyncKestrelClient   the fan-out queues, port 22133, kestrel protocol

All work with the original servers too. Every error is a ``ClientError``; what a rule runs is one of
the runners (``Shell``, ``Http``, ...). See docs/client.md.

    <dialect>/calls.py    what can be asked: requests and replies, without a socket
    conversation.py       steps of an exchange; what is repeated after a broken connection
    blocking.py           the steps over sockets, for threads      awaiting.py   over asyncio
    service.py            addresses, tokens, URLs               async_clients.py   asyncio's clients
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from journeyman.lazy_names import lazy_names

if TYPE_CHECKING:
    from journeyman.client.async_clients import AsyncKestrelClient, AsyncSchedule, AsyncWorkQueue
    from journeyman.client.errors import (
        AccessDenied,
        AnswerLost,
        BadAnswer,
        CannotConnect,
        ClientError,
        ConnectionFailed,
        InvalidRequest,
        LoginBusy,
        NotFound,
        Refused,
        TimedOut,
    )
    from journeyman.client.kestrel import KestrelClient
    from journeyman.client.service import ServerUrl, parse_url
    from journeyman.client.workq import (
        JobInfo,
        LeasedJob,
        NewJob,
        QueueInfo,
        Result,
        WorkJobState,
        WorkQueue,
    )
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
    "AsyncKestrelClient",
    "AsyncSchedule",
    "AsyncWorkQueue",
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
    "LoginBusy",
    "NewJob",
    "NotFound",
    "QueueInfo",
    "Redis",
    "Refused",
    "Result",
    "Rule",
    "Runner",
    "Schedule",
    "ServerUrl",
    "Shell",
    "Status",
    "TimedOut",
    "WorkJobState",
    "WorkQueue",
    "WorkQueueRunner",
    "parse_url",
]

__getattr__ = lazy_names(
    __name__,
    __all__,
    (
        *("journeyman.client.errors", "journeyman.client.service", "journeyman.client.workq"),
        *("journeyman.formats.ztick", "journeyman.client.ztick", "journeyman.client.kestrel"),
        "journeyman.client.async_clients",
    ),
)
