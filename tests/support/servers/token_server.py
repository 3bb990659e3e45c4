"""A server with all services whose ports ask for tokens, and a certificate for it."""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Mapping
from pathlib import Path

from journeyman.client import KestrelClient, Schedule, WorkQueue
from tests.support.servers.schedule_process import ALL_SERVICES, ScheduleProcess

DATA = Path(__file__).parents[2] / "integration" / "data"
TOKENS = """
[token.deploy]
secret = "sk_deploy"
namespace = "deploy-"

[token.admin]
secret = "sk admin"
namespace = "*"
"""
LISTENS = {
    "schedule": r"the schedule listens on [^\s]+?:(\d+)",
    "work queue": r"the work queue listens on [^\s]+?:(\d+)",
    "fan-out": r"the fan-out queues listen on [^\s]+?:(\d+)",
    "http": r"HTTP listens on [^\s]+?:(\d+)",
}
CHAIN, KEY, ROOT = DATA / "server_chain.pem", DATA / "server_key.pem", DATA / "root.pem"


class Server(ScheduleProcess):
    """All four ports, with tokens."""

    def __init__(
        self,
        directory: Path,
        tokens: str = TOKENS,
        settings: Mapping[str, object] | None = None,
        **more: object,
    ) -> None:
        path = directory / "tokens"
        path.write_text(tokens)
        path.chmod(0o600)
        own = ALL_SERVICES | {"controller.auth_file": "tokens"}
        named = {name.replace("__", "."): value for name, value in more.items()}
        given = {**(settings or {}), **named}
        super().__init__(directory, settings={**own, **given})

    def port_of(self, name: str) -> int:
        return int(self.wait_for_line(LISTENS[name])[1])

    def work_queue(self, token: str | None = "sk admin", **more: object) -> WorkQueue:
        return WorkQueue("localhost", self.port_of("work queue"), token=token, **more)  # type: ignore[arg-type]

    def fan_out(self, token: str | None = "sk admin", **more: object) -> KestrelClient:
        return KestrelClient("localhost", self.port_of("fan-out"), token=token, **more)  # type: ignore[arg-type]

    def schedule(self, token: str | None = "sk admin", **more: object) -> Schedule:
        return Schedule("localhost", self.port_of("schedule"), token=token, **more)  # type: ignore[arg-type]

    def http_status(self, secret: str, tls: ssl.SSLContext | None = None) -> int:
        port = self.port_of("http")
        if tls is None:
            connection = http.client.HTTPConnection("localhost", port, timeout=30)
        else:
            connection = http.client.HTTPSConnection("localhost", port, timeout=30, context=tls)
        try:
            connection.request("GET", "/jobs", headers={"Authorization": f"Bearer {secret}"})
            return connection.getresponse().status
        finally:
            connection.close()
