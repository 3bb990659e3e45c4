"""Real servers for the integration lane: a Redis, a RabbitMQ and a PostgreSQL of our own.

    Redis       redis-server, without persistence
    RabbitMQ    epmd (the name server of Erlang) and the broker, with users and vhosts from a file
    PostgreSQL  a new cluster; as the user postgres if we are root, for it refuses to run as root

Each runs on free loopback ports with everything it writes in one directory, beside whatever else
runs on the machine and without touching it. ``start`` returns when the server answers; ``stop``
ends its processes, and their children with them. Nothing is shut down gently: the data is thrown
away. Sharing one among several test workers, and its end, is in keeper.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path

from tests.support.ports import free_port
from tests.support.programs import find_program

START_LIMIT_S = 120.0  # a cold disk and two busy cores
POLL_S = 0.05

USERS = {"guest": "guest", "bob": "p@ss/w:rd%", "reader": "reader"}
VHOSTS = ["/", "orders", "a/b", "übung"]
# reader may look at everything and write nothing.
PERMISSIONS = [
    {"user": user, "vhost": vhost, "configure": rights, "write": rights, "read": ".*"}
    for user, rights in (("guest", ".*"), ("bob", ".*"), ("reader", ""))
    for vhost in VHOSTS
]


class Service(ABC):
    """One server: its processes, its directory, its port."""

    name: str
    program: str  # without it the service cannot be started

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = 0
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        self.directory.mkdir(parents=True)
        self.launch()
        self._wait_until(self.answers)

    def stop(self) -> None:
        for process in reversed(self._processes):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self._processes.clear()
        shutil.rmtree(self.directory, ignore_errors=True)

    @abstractmethod
    def launch(self) -> None:
        """Choose ports and start the processes."""

    @abstractmethod
    def answers(self) -> bool:
        """Whether it is ready for use."""

    def spawn(
        self, *command: str, env: dict[str, str] | None = None, user: str | None = None
    ) -> None:
        with (self.directory / "output").open("ab") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self.directory if user is None else "/",
                env={**os.environ, **(env or {})},
                start_new_session=True,
                user=user,
            )
        self._processes.append(process)

    def exchange(self, request: bytes, answer: bytes) -> bool:
        """Whether the port gives this answer to this request."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                connection.sendall(request)
                return connection.recv(len(answer)) == answer
        except OSError:
            return False

    def _wait_until(self, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_LIMIT_S
        while not ready():
            dead = [p.args for p in self._processes if p.poll() is not None]
            if dead or time.monotonic() > deadline:
                said = (self.directory / "output").read_text(errors="replace")[-4000:]
                raise RuntimeError(f"{self.name} did not start: {said or dead or 'too slow'}")
            time.sleep(POLL_S)


class RedisService(Service):
    name = "redis"
    program = "redis-server"

    def launch(self) -> None:
        self.port = free_port()
        self.spawn(
            find_program("redis-server"),
            *("--port", str(self.port), "--bind", "127.0.0.1"),
            *("--save", "", "--appendonly", "no", "--dir", str(self.directory)),
        )

    def answers(self) -> bool:
        return self.exchange(b"PING\r\n", b"+PONG\r\n")


class RabbitService(Service):
    name = "rabbitmq"
    program = "rabbitmq-server"

    def launch(self) -> None:
        self.port = free_port()
        epmd_port = str(free_port())
        home = self.directory
        env = {
            "HOME": str(home),  # the cookie is written there
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": epmd_port,
            "RABBITMQ_NODENAME": f"journeyman-{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_MNESIA_BASE": str(home / "mnesia"),
            "RABBITMQ_LOG_BASE": str(home / "log"),
            "RABBITMQ_CONFIG_FILE": str(home / "rabbitmq.conf"),
            "RABBITMQ_CONF_ENV_FILE": str(home / "rabbitmq-env.conf"),  # not the machine's
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(home / "advanced.config"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(home / "plugins"),
            "RABBITMQ_PID_FILE": str(home / "pid"),
        }
        (home / "plugins").write_text("[].\n")
        (home / "rabbitmq-env.conf").write_text("")
        (home / "advanced.config").write_text("[].\n")
        (home / "definitions.json").write_text(json.dumps(_definitions()))
        (home / "rabbitmq.conf").write_text(
            f"load_definitions = {home / 'definitions.json'}\n"
            "log.console = true\nlog.console.level = warning\nlog.file = false\n"
        )
        # One that the broker started by itself would go on when the broker is gone.
        self.spawn(find_program("epmd"), "-port", epmd_port, env=env)
        self.spawn(find_program("rabbitmq-server"), env=env)

    def answers(self) -> bool:
        # The listener is opened last, when users and vhosts are there.
        return self.exchange(b"AMQP\x00\x00\x09\x01", b"\x01\x00\x00")


class PostgresService(Service):
    name = "postgres"
    program = "initdb"

    def launch(self) -> None:
        self.port = free_port()
        user = self._user
        # Another user may not look into the directory of the tests.
        self._data = Path(tempfile.mkdtemp(prefix="journeyman-postgres-"))
        if user is not None:
            shutil.chown(self._data, user)
        cluster = str(self._data / "cluster")
        subprocess.run(
            [find_program("initdb"), "--no-sync", "-A", "trust", "-U", "journeyman", "-D", cluster],
            check=True,
            capture_output=True,
            user=user,
            cwd="/",
        )
        self._run()

    @property
    def _user(self) -> str | None:
        return "postgres" if os.geteuid() == 0 else None

    def _run(self) -> None:
        cluster = str(self._data / "cluster")
        self.spawn(
            find_program("postgres"),
            *("-D", cluster, "-p", str(self.port), "-h", "127.0.0.1", "-k", str(self._data)),
            *("-F", "-c", "shared_buffers=16MB", "-c", "max_connections=50"),
            user=self._user,
        )

    def halt(self, how: int = signal.SIGINT) -> None:
        """Stop it, to be started again: SIGINT in order, SIGQUIT at once."""
        process = self._processes.pop()
        process.send_signal(how)
        process.wait(START_LIMIT_S)

    def resume(self) -> None:
        self._run()
        self._wait_until(self.answers)

    def answers(self) -> bool:
        asked = [find_program("pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        return subprocess.run(asked, check=False).returncode == 0

    def stop(self) -> None:
        super().stop()
        shutil.rmtree(self._data, ignore_errors=True)


def _definitions() -> dict[str, object]:
    return {
        "users": [{"name": u, "password": p, "tags": ""} for u, p in USERS.items()],
        "vhosts": [{"name": vhost} for vhost in VHOSTS],
        "permissions": PERMISSIONS,
    }


SERVICES: dict[str, type[Service]] = {
    each.name: each for each in (RedisService, RabbitService, PostgresService)
}
