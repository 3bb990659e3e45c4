"""Errors of the HTTP API: a status and a code that never changes its meaning (RFC 9457).

docs/protocols/http.md lists the codes. Paths without a version answer errors with
``{"error": "..."}``.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

import msgspec
from aiohttp import web

PROBLEM: Final = "application/problem+json"
CODES: Final = {
    400: "bad_request",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    408: "request_timeout",
    409: "conflict",
    413: "body_too_large",
    415: "unsupported_media_type",
    417: "expectation_failed",
    421: "wrong_host",
    422: "unprocessable",
    500: "internal",
    503: "unavailable",
}


class Problem(msgspec.Struct):
    """Why a request was not done (RFC 9457). ``code`` is stable; ``detail`` is for people."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    # The states of services, for GET /v1/ready.
    services: dict[str, str] | msgspec.UnsetType = msgspec.UNSET


def problem(error: ApiError) -> web.Response:
    body = Problem(
        f"urn:journeyman:problem:{error.code}",
        HTTPStatus(error.status).phrase,
        error.status,
        error.code,
        error.message,
        error.services or msgspec.UNSET,
    )
    status = error.status
    return web.Response(
        body=msgspec.json.encode(body), status=status, headers={"Content-Type": PROBLEM}
    )


class ApiError(Exception):
    """A request that cannot be done, and the status that says so."""

    def __init__(
        self,
        status: int,
        message: str,
        code: str = "",
        *,
        services: Mapping[str, str] | None = None,
    ) -> None:
        """``services``: the state of each, if that is the reason."""
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code or CODES.get(status, "error")
        self.services = dict(services or {})
