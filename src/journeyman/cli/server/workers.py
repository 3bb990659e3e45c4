"""``journeyman workers``: the workers that the server knows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from journeyman.cli.server.connection import server_options, show
from journeyman.cli.server.http_port import pages
from journeyman.cli.server.jobs import whole_seconds

_MEGABYTE = 1024 * 1024


@click.group()
def workers() -> None:
    """List the workers that the server knows."""


@workers.command("ls")
@server_options
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="At most.")
def list_workers(server: str | None, as_json: bool, limit: int) -> None:
    """List the workers: where they run, what they run, and when they were seen last."""
    found = list(pages(server, "/v1/work/workers", "workers", {}, limit))
    show(found if as_json else [_row(worker) for worker in found], as_json)
    if not found and not as_json:
        click.echo("no workers are known", err=True)


def _row(worker: Mapping[str, Any]) -> dict[str, Any]:
    facts, jobs = worker["facts"], worker["jobs"]
    memory = facts.get("memory")
    return {
        "name": worker["name"],
        "host": facts.get("host", ""),
        "version": facts.get("version", ""),
        "queues": " ".join(facts.get("queues", ())),
        "running": f"{len(jobs)} of {facts.get('slots', 0)}",
        "oldest": whole_seconds(min((job["started"] for job in jobs), default="")),
        "load": facts.get("load", ""),
        "memory": "" if memory is None else f"{memory // _MEGABYTE} MB",
        "seen": whole_seconds(worker["seen"]),
    }
