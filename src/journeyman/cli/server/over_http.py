"""What commands ask the HTTP port of a server: what the other ports have no words for."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlencode

from journeyman.cli.server.connection import HTTP_PORT
from journeyman.client.service import ServerUrl, parse_url, tls_context
from journeyman.errors import JourneymanError

PATIENCE_S = 60.0  # an event stream has a sign of life four times in this
STARTS_S = 3.0


@contextmanager
def answer_of(url: ServerUrl, path: str, accept: str) -> Iterator[http.client.HTTPResponse]:
    """The reply to a GET. Raises JourneymanError, also for what goes wrong while it is read."""
    context = tls_context(url.tls_setting())
    port = url.ports.get("http", HTTP_PORT)
    where = f"{url.host}:{port}"
    if context is None:
        connection = http.client.HTTPConnection(url.host, port, timeout=PATIENCE_S)
    else:
        connection = http.client.HTTPSConnection(
            url.host, port, timeout=PATIENCE_S, context=context
        )
    headers = {"Accept": accept}
    if url.token:
        headers["Authorization"] = f"Bearer {url.token}"
    try:
        _connect(connection)
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        if answer.status != http.client.OK:
            raise JourneymanError(f"{where} refuses {path}: {answer.status} {answer.reason}")
        yield answer
    except (OSError, http.client.HTTPException) as error:
        raise JourneymanError(
            f"cannot ask {where}: {str(error) or type(error).__name__}; is this its HTTP port?"
            " Name another with ?http=PORT in the URL"
        ) from None
    finally:
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
