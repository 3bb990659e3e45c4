"""The spans of telemetry: a command from its arrival to its answer, and a run."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from journeyman.servers.ztick.runs import EndedRun


class RequestSpan(NamedTuple):
    """The time from the moment the writer takes a command up until its answer leaves, by the wall
    clock."""

    request_id: bytes
    command: str
    outcome: str
    begun_ns: int
    ended_ns: int


class RunSpan(NamedTuple):
    runner: str
    run: EndedRun


Span: TypeAlias = RequestSpan | RunSpan
