"""``journeyman queues`` (of the work queue) and ``journeyman fan-out``."""

from __future__ import annotations

from typing import Any

import click

from journeyman import client as clients
from journeyman.cli.server.connection import (
    connected,
    server_option,
    server_options,
    show,
)
from journeyman.cli.server.status import queue_rows


@click.group()
def queues() -> None:
    """List, pause, resume and limit queues of the work queue."""


@queues.command("ls")
@server_options
def list_queues(server: str | None, as_json: bool) -> None:
    """List the queues."""
    show(queue_rows(server), as_json)


@queues.command()
@server_option
@click.argument("names", nargs=-1, required=True, metavar="QUEUE...")
def pause(server: str | None, names: tuple[str, ...]) -> None:
    """Lease no jobs from these queues until they are resumed."""
    with connected(clients.WorkQueue, server) as client:
        for name in names:
            client.pause(name)


@queues.command()
@server_option
@click.argument("names", nargs=-1, required=True, metavar="QUEUE...")
def resume(server: str | None, names: tuple[str, ...]) -> None:
    """Lease jobs from these queues again."""
    with connected(clients.WorkQueue, server) as client:
        for name in names:
            client.resume(name)


def _weights(_context: Any, _option: Any, texts: tuple[str, ...]) -> dict[str, int]:
    pairs = [text.partition("=") for text in texts]
    if not all(number.isdecimal() for _, _, number in pairs):
        raise click.BadParameter("write for example --weight gold=3")
    return {key: int(number) for key, _, number in pairs}


@queues.command()
@server_option
@click.argument("name", metavar="QUEUE")
@click.option("--rate", default="", metavar="N/TIME", help="Starts per time: 10/m, 1/30s.")
@click.option("--concurrency", type=click.IntRange(0), default=0, metavar="N",
              help="Jobs that run at once.")  # fmt: skip
@click.option("--key-rate", default="", metavar="N/TIME", help="Starts per time of each key.")
@click.option("--key-concurrency", type=click.IntRange(0), default=0, metavar="N",
              help="Jobs of one key that run at once.")  # fmt: skip
@click.option("--fair", is_flag=True, help="Keys take turns.")
@click.option("--weight", "weights", multiple=True, metavar="KEY=N", callback=_weights,
              help="Jobs in one turn of this key.")  # fmt: skip
def limit(server: str | None, name: str, **limits: Any) -> None:
    """Replace the limits of a queue; without options, remove them."""
    if limits["weights"] and not limits["fair"]:
        raise click.UsageError("--weight needs --fair")
    with connected(clients.WorkQueue, server) as client:
        client.limit(name, **limits)


@click.group("fan-out")
def fan_out() -> None:
    """List fan-out queues."""


@fan_out.command("ls")
@server_options
def list_fan_out(server: str | None, as_json: bool) -> None:
    """List the fan-out queues and their readers."""
    with connected(clients.KestrelClient, server) as client:
        found = client.dump_stats()
    rows = [_fan_out_row(name, stats) for name, stats in sorted(found.items())]
    show(rows, as_json)


def _fan_out_row(name: str, stats: dict[str, str]) -> dict[str, Any]:
    return {
        "queue": name,
        "items": int(stats.get("items", 0)),
        "bytes": int(stats.get("bytes", 0)),
        "open": int(stats.get("open_transactions", 0)),
        "waiters": int(stats.get("waiters", 0)),
    }
