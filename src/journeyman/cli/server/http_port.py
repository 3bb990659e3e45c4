"""Questions to the HTTP port, for what the other ports have no words.

Commands import this when they need it: http.client takes as long to import as a client does.
"""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from typing import Any
from urllib.parse import urlencode

from journeyman.cli.server.connection import HTTP_PORT
from journeyman.client.service import ServerUrl, parse_url, tls_context
from journeyman.errors import JourneymanError
from journeyman.local_access import has_token, socket_path, token_for

PATIENCE_S = 60.0  # an event stream has a sign of life four times in this
STARTS_S = 3.0
MAX_TRIES, RETRY_S = 3, 1.0  # if a token could not be checked, or a server is busy
READY_LIMIT_S = 5.0


def readiness_problem(server: str | None) -> dict[str, Any]:
    """Why the server says that it is not ready; empty: it does not say so, or has no HTTP port."""
    url = parse_url(server)
    connection, _ = _http_connection(url, min(url.timeout_s, READY_LIMIT_S))
    # The other ports say what else is wrong.
    with closing(connection), suppress(OSError, ValueError, http.client.HTTPException):
        connection.request("GET", "/v1/ready")
        answer = connection.getresponse()
        if answer.status != http.client.OK:
            problem = json.load(answer)
            return problem if isinstance(problem, dict) else {}
    return {}


@contextmanager
def answer_of(url: ServerUrl, path: str, accept: str) -> Iterator[http.client.HTTPResponse]:
    """The reply to a GET. Raises JourneymanError, also for what goes wrong while it is read."""
    connection, where = _http_connection(url, PATIENCE_S)
    try:
        answer = _answer(connection, url, path, accept)
        if answer.status != http.client.OK:
            raise JourneymanError(f"{where} refuses {path}: {answer.status} {answer.reason}")
        yield answer
    except ConnectionRefusedError:
        raise JourneymanError(
            f"cannot ask {where}: connection refused; is journeyman serve running there?"
            " Name another HTTP port with ?http=PORT in the URL"
        ) from None
    except (OSError, http.client.HTTPException) as error:
        raise JourneymanError(
            f"cannot ask {where}: {str(error) or type(error).__name__}; is this its HTTP port?"
            " Name another with ?http=PORT in the URL"
        ) from None
    finally:
        connection.close()


class _SocketConnection(http.client.HTTPConnection):
    """Over a Unix socket."""

    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _http_connection(url: ServerUrl, timeout_s: float) -> tuple[http.client.HTTPConnection, str]:
    """Not connected yet; and where it leads."""
    host, named = url.place("http")
    port = HTTP_PORT if named is None else named
    if path := socket_path(host):
        return _SocketConnection(path, timeout_s), host
    context = tls_context(url.tls_setting())
    where = f"{host}:{port}"
    if context is None:
        return http.client.HTTPConnection(host, port, timeout=timeout_s), where
    return http.client.HTTPSConnection(host, port, timeout=timeout_s, context=context), where


def _answer(
    connection: http.client.HTTPConnection, url: ServerUrl, path: str, accept: str
) -> http.client.HTTPResponse:
    """The reply; asked again with the user's token, or if the server could not check the token."""
    token, tries = url.token, 0
    host, port = url.place("http")
    while True:
        headers = {"Accept": accept}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        _connect(connection)
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        if answer.status == http.client.UNAUTHORIZED and not token and has_token():
            token = token_for(host, HTTP_PORT if port is None else port)
            if token is None:
                return answer
        elif answer.status == http.client.SERVICE_UNAVAILABLE and tries < MAX_TRIES:
            tries += 1
            time.sleep(RETRY_S)
        else:
            return answer
        connection.close()


def _connect(connection: http.client.HTTPConnection) -> None:
    """A server that has just started opens its HTTP port a little after the others."""
    until = time.monotonic() + STARTS_S
    while True:
        try:
            connection.connect()
            return
        except ConnectionRefusedError:
            if time.monotonic() >= until:
                raise
        time.sleep(0.1)


def pages(
    server: str | None, path: str, name: str, query: Mapping[str, Any], limit: int
) -> Iterator[dict[str, Any]]:
    """Up to ``limit`` members of the list called ``name``, page by page."""
    url = parse_url(server)
    cursor = ""
    while limit > 0:
        asked = {**query, "limit": min(limit, 500), **({"cursor": cursor} if cursor else {})}
        with answer_of(url, f"{path}?{urlencode(asked)}", "application/json") as answer:
            page = json.load(answer)
        yield from page[name]
        limit -= len(page[name])
        cursor = page.get("next") or ""
        if not cursor:
            return
