"""Requests of tokens, for parts of the HTTP port without a server."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from aiohttp import web

from journeyman.servers.http.routes import RouteCall
from journeyman.servers.http.shares import WaitingRequests


class TokenRequest(dict[str, Any]):
    """A request as the handlers see it. ``headers`` is empty."""

    path = "/v1/work/lease"
    method = "POST"

    def __init__(self, token: str | None = None, **more: Any) -> None:
        named = None if token is None else SimpleNamespace(name=token)
        own = {"waits": WaitingRequests(100), "is_active": lambda: True}
        super().__init__({"token": named, **own, **more})
        self.headers: dict[str, str] = {}


def call_of(token: str, **more: Any) -> RouteCall:
    request = cast(web.Request, TokenRequest(token, **more))
    return RouteCall(request, {}, None, None)
