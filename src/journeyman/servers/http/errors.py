"""A request that cannot be done: the status, a stable code, and words for people.

Paths of version 1 answer with ``application/problem+json``, the paths of ztick with
``{"error": "..."}``. Codes never change their meaning; docs/protocols/http.md lists them.
"""

from __future__ import annotations

from typing import Final

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
    421: "wrong_host",
    422: "unprocessable",
    500: "internal",
    503: "unavailable",
}


class ApiError(Exception):
    """A request that cannot be done, and the status that says so."""

    def __init__(self, status: int, message: str, code: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code or CODES.get(status, "error")
