"""Run the shop, and kill its worker and its server in the middle: python run.py [DIRECTORY]

Starts `journeyman serve`, `journeyman worker` and Flask, orders mails and reports over HTTP, and
checks what a user may expect. The exit code is 1 if something does not hold.

    python run.py --serve [DIRECTORY]     leaves all three running until Ctrl-C, and kills nothing
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent.resolve()
PATIENCE_S = 60.0


class Shop:
    """The three programs, each of which can be killed and started again."""

    def __init__(self, place: Path, *, usual_ports: bool = False) -> None:
        """``usual_ports``: the default ones, as far as they are free."""
        self._place = place
        usual = (9922, 5678, 5000, 5679) if usual_ports else (0, 0, 0, 0)
        self._ports = [port if port and not _answers(port) else _free_port() for port in usual]
        queue, schedule, self.web_port, self.http_port = self._ports
        url = f"journeyman://127.0.0.1:{queue}?schedule={schedule}"
        self._environment = {
            **os.environ,
            "JOURNEYMAN_URL": url,
            "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]),
        }
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str) -> None:
        queue, schedule, web, http = (f"127.0.0.1:{port}" for port in self._ports)
        words = {
            "server": [
                "journeyman", "serve", "--data", "data", "--workq-listen", queue,
                "--listen", schedule, "--kestrel-listen", "off", "--http-listen", http,
            ],
            "worker": ["journeyman", "worker", "tasks:app", "-c", "4"],
            "web": ["flask", "--app", "web", "run", "-p", web.rpartition(":")[2]],
        }[name]  # fmt: skip
        print(f"$ {' '.join(words)}", flush=True)
        with (self._place / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                [sys.executable, "-m", *words],
                cwd=self._place, env=self._environment, stdout=log, stderr=log,
            )  # fmt: skip
        if name != "worker":
            port = self.web_port if name == "web" else self._ports[0]
            _wait(lambda: _answers(port), f"the {name} answers")

    def kill(self, name: str) -> None:
        print(f"$ kill -9 the {name}", flush=True)
        process = self._running.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def stop(self) -> None:
        for name in ("web", "worker", "server"):
            if name in self._running:
                self._running[name].terminate()
                self._running[name].wait(PATIENCE_S)

    def ask(self, method: str, path: str) -> Any:
        request = urllib.request.Request(f"http://127.0.0.1:{self.web_port}{path}", method=method)
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            found = json.load(answer)
        print(f"{method} {path} -> {found}", flush=True)
        return found


def main() -> int:
    words = [word for word in sys.argv[1:] if word != "--serve"]
    act = serve if "--serve" in sys.argv else run
    if words:
        place = Path(words[0]).resolve()
        place.mkdir(parents=True, exist_ok=True)
        return act(place)
    with tempfile.TemporaryDirectory() as directory:
        return act(Path(directory))


def serve(place: Path) -> int:
    """Leave the shop running, and say where it is."""
    shop = Shop(place, usual_ports=True)
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    try:
        for name in ("server", "web", "worker"):
            shop.start(name)
        shop.ask("POST", "/signup/ann@example.com")
        print(
            f"""
The console:   http://127.0.0.1:{shop.http_port}
Order a mail:  curl -X POST http://127.0.0.1:{shop.web_port}/signup/you@example.com
A report:      curl -X POST http://127.0.0.1:{shop.web_port}/reports/7
Data and logs: {place}
Ctrl-C stops the server, the worker and the web application.""",
            flush=True,
        )
        ended.wait()
    finally:
        shop.stop()
    return 0


def run(place: Path) -> int:
    shop = Shop(place)
    claims: dict[str, bool] = {}
    try:
        for name in ("server", "web", "worker"):
            shop.start(name)
        mail = shop.ask("POST", "/signup/ann@example.com")["job"]
        result = shop.ask("GET", f"/jobs/{mail}")["result"]
        claims["a mail that failed at first was tried again"] = result == "sent to ann@example.com"
        first = shop.ask("POST", "/reports/7")
        again = shop.ask("POST", "/reports/7")
        claims["one report per customer is built at a time"] = first["job"] == again["job"]
        shop.kill("worker")
        shop.kill("server")
        shop.start("server")
        shop.start("worker")
        report = shop.ask("GET", f"/jobs/{first['job']}")["result"]
        claims["the report is built, though worker and server were killed"] = report == 700
        counts = place / "counts"
        _wait(lambda: counts.exists() and len(counts.read_text().split()) >= 2, "a timetable fires")
        claims["something happens every two seconds"] = True
    finally:
        shop.stop()
    for claim, holds in claims.items():
        print(f"{'ok    ' if holds else 'BROKEN'} {claim}")
    return 0 if all(claims.values()) else 1


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _wait(is_over: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_over():
        if time.monotonic() > deadline:
            raise SystemExit(f"waited {PATIENCE_S:.0f} s in vain: {what}")
        time.sleep(0.02)


if __name__ == "__main__":
    sys.exit(main())
