"""Answers kept for idempotency keys: bounded, and none waits for an answer that is gone."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from aiohttp import web

from journeyman.servers.http import routes
from journeyman.servers.http.errors import ApiError


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
