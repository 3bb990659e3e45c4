"""Parts of the HTTP port without a server: idempotency keys, records of others' jobs."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import web

from journeyman.config import WorkqPersistence
from journeyman.formats.framing import Entry
from journeyman.formats.workq import Command, Instant, JobFinished
from journeyman.servers.http import records, routes
from journeyman.servers.http.errors import ApiError
from journeyman.servers.http.v1.log import LogRoutes


class Request(dict[str, Any]):
    path = "/v1/work/lease"


class SlowRoutes(routes.Routes):
    """The request with the body b"slow" fails when it is let go; all others are answered."""

    def __init__(self) -> None:
        super().__init__([])
        self.let_go = asyncio.Event()

    async def _answer(
        self, route: routes.Route, request: web.Request, data: bytes
    ) -> web.StreamResponse:
        if data == b"slow":
            await self.let_go.wait()
            raise ApiError(503, "no")
        return web.Response(body=data)


def test_a_request_whose_key_was_crowded_out_fails_as_itself(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(routes, "MAX_KEPT_ANSWERS", 1)

    async def run() -> None:
        own = SlowRoutes()
        request, route = cast(web.Request, Request(token=None)), cast(routes.Route, None)
        first, second = (
            asyncio.create_task(own._answer_once(route, request, b"slow", "k")) for _ in range(2)
        )
        await asyncio.sleep(0)
        await own._answer_once(route, request, b"", "another key")
        own.let_go.set()
        for task in (first, second):
            with pytest.raises(ApiError, match="no"):
                await asyncio.wait_for(task, 20)

    asyncio.run(run())


def test_records_whose_queue_is_not_known_are_for_tokens_of_all_namespaces(
    monkeypatch: pytest.MonkeyPatch,
):
    """A cleaning may have taken the add of a job, which names its queue, and left its result."""
    job_id = bytes.fromhex("00000000000040008000000000000001")
    finished = JobFinished(Instant(1), job_id, Command.COMPLETE, b"of another team")
    placed = records.PlacedRecord("file", Entry(0, 1, finished), b"")
    monkeypatch.setattr(records, "of_work_job", lambda *_: [placed])
    work = SimpleNamespace(enabled=True, persistence=WorkqPersistence.LOG, cmdlog_path="log")
    own = LogRoutes(cast(Any, SimpleNamespace(settings=SimpleNamespace(workq=work), disk=None)))

    def ask(namespace: str) -> Any:
        request = cast(web.Request, Request(namespace=namespace))
        call = routes.RouteCall(request, {"job": job_id.hex()}, None, None)
        return asyncio.run(own.work_history(call))

    assert len(ask("*").records) == 1
    with pytest.raises(ApiError, match="no such job"):
        ask("team.")
