"""``journeyman tail``: what becomes durable, live, from the HTTP port of a server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import click

from journeyman.cli.output import Output, json_line
from journeyman.cli.server.connection import server_options
from journeyman.cli.server.over_http import answer_of
from journeyman.client.service import ServerUrl, parse_url

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
