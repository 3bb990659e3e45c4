"""What commands ask the HTTP port, since the other ports have no words for it; ``tail``."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlencode

import click

from journeyman.cli.output import Output, json_line
from journeyman.cli.server.connection import HTTP_PORT, server_options
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


_SERVICES = ["schedule", "work", "fan-out"]


@click.command()
@server_options
@click.option("--service", type=click.Choice(_SERVICES), help="Only records of this service.")
@click.option("--queue", metavar="NAME", help="Only records of this queue.")
@click.option("--count", type=click.IntRange(1), metavar="N", help="Stop after N records.")
def tail(
    server: str | None, as_json: bool, service: str | None, queue: str | None, count: int | None
) -> None:
    """Print records as they become durable, until Ctrl-C; on a busy server a sample of them."""
    shown = 0
    with Output(prompt=True) as out:
        for told in _events(parse_url(server)):
            for record in told["records"]:
                if service not in (None, record["service"]) or queue not in (
                    None, record.get("queue"),
                ):  # fmt: skip
                    continue
                out.line(json_line(record) if as_json else _line(record))
                shown += 1
                if shown == count:
                    return
            if told["more"] and not as_json:
                out.line(f"... and {told['more']} more")


def _events(url: ServerUrl) -> Iterator[dict[str, Any]]:
    """The data of every event of the stream."""
    with answer_of(url, "/v1/log/tail", "text/event-stream") as answer:
        while line := answer.readline():
            if line.startswith(b"data: "):
                found = json.loads(line[6:])
                if "records" in found:
                    yield found


def _line(record: dict[str, Any]) -> str:
    words = (record.get(name) for name in ("time", "service", "kind", "queue", "key", "text"))
    return " ".join(word for word in words if word)
