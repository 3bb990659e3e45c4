"""One run: a broker, a worker and a sender of one peer, in a directory of their own."""

from __future__ import annotations

import os
import pwd
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from bench.compare.peers import PREAMBLE, Broker, ComparedPeer
from bench.compare.power import TRACE

START_LIMIT_S = 60.0
# Each number is written before it is sent and when the peer has acknowledged it. A send that fails
# is not repeated with the same number, since it may have worked.
SENDER = """
import os, sys, time
import peer
log = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
first, count, pause = int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
for number in range(first, first + count):
    os.write(log, b"send %d\\n" % number)
    try:
        peer.send(number)
        os.write(log, b"ack %d\\n" % number)
    except Exception as error:
        os.write(log, b"fail %d\\n" % number)
        sys.stderr.write(f"{number}: {error!r}\\n")
        time.sleep(0.2)
    time.sleep(pause)
"""


class World:
    """The processes of one peer and its files."""

    def __init__(self, peer: ComparedPeer, place: Path, data: Path, *, is_safest: bool) -> None:
        self.peer = peer
        self.place = place
        self.data = data
        place.chmod(0o755)
        self.traces: list[Path] = []
        self.sent = place / "sent"
        self.runs = place / "runs"
        self.sender: subprocess.Popen[bytes] | None = None
        self.clock: Path | None = None
        self._traced = False
        self._broker_process: subprocess.Popen[bytes] | None = None
        self._worker: subprocess.Popen[bytes] | None = None
        (place / "peer.py").write_text(PREAMBLE + peer.module)
        self.broker: Broker | None = peer.broker(self.data, is_safest) if peer.broker else None
        self._environment = os.environ | {
            "PEER_SETTING": "safest" if is_safest else "default",
            "PEER_URL": self.broker.url if self.broker else "",
            "PEER_RUNS": str(self.runs),
            "PEER_DATA": str(self.data),
            "PYTHONPATH": f"{place}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
        }

    def trace_from_now(self) -> None:
        """Trace every process that writes data and is started from now on, for a power cut."""
        self._traced = True

    # -- broker --

    def start_broker(self) -> bool:
        """Start the broker; False if it does not accept connections in time."""
        if self.broker is None:
            return True
        environment = dict(self._environment)
        if self.clock is not None:  # libfaketime reads the step from this file, each time
            library = next(Path("/usr/lib").rglob("libfaketime.so.1"))
            environment |= {"LD_PRELOAD": str(library), "FAKETIME_NO_CACHE": "1"}
            environment |= {"FAKETIME_TIMESTAMP_FILE": str(self.clock), "DONT_FAKE_MONOTONIC": "1"}
        self._broker_process = self._spawn(
            "broker", self.broker.command, environment, self.broker.user, writes_data=True
        )
        return self._wait_for_port()

    def stop_broker(self, how: signal.Signals = signal.SIGKILL) -> None:
        """End the broker, all of its processes."""
        _end(self._broker_process, how)
        self._broker_process = None

    def pause_broker(self, seconds: float) -> None:
        """Stop the broker for a while, or the worker where there is no broker."""
        _pause(self._broker_process or self._worker, seconds)

    # -- worker and sender --

    def prepare(self) -> None:
        """Create the tables of a peer that needs some."""
        if self.peer.prepare is not None:
            subprocess.run(
                self.peer.prepare,
                cwd=self.place,
                env=self._environment,
                check=True,
                capture_output=True,
            )

    def start_worker(self) -> None:
        words = [
            word.replace("$PEER_URL", self._environment["PEER_URL"]) for word in self.peer.worker
        ]
        writes = self.broker is None
        self._worker = self._spawn("worker", words, self._environment, None, writes_data=writes)

    def kill_worker(self) -> None:
        _end(self._worker, signal.SIGKILL)
        self._worker = None

    def pause_worker(self, seconds: float) -> None:
        _pause(self._worker, seconds)

    def start_sender(self, first: int, count: int, pause_s: float) -> None:
        words = [sys.executable, "-c", SENDER, str(self.sent), str(first), str(count), str(pause_s)]
        writes = self.broker is None
        self.sender = self._spawn("sender", words, self._environment, None, writes_data=writes)

    def kill_sender(self) -> None:
        _end(self.sender, signal.SIGKILL)
        self.sender = None

    def close(self) -> None:
        """End everything."""
        for process in (self.sender, self._worker, self._broker_process):
            _end(process, signal.SIGKILL)

    def output(self) -> str:
        """Return what broker and worker printed."""
        files = [self.place / f"{name}.out" for name in ("broker", "worker")]
        return "".join(file.read_text(errors="replace") for file in files if file.exists())

    def _spawn(
        self,
        name: str,
        command: list[str],
        environment: dict[str, str],
        user: str | None,
        *,
        writes_data: bool,
    ) -> subprocess.Popen[bytes]:
        if self._traced and writes_data:
            trace = self.place / f"trace-{len(self.traces)}"
            self.traces.append(trace)
            if user is not None:
                trace.touch()
                os.chown(trace, pwd.getpwnam(user).pw_uid, -1)
            command = [*TRACE, "-o", str(trace), *command]
        with (self.place / f"{name}.out").open("ab") as output:
            return subprocess.Popen(
                command,
                cwd=self.data if user else self.place,
                env=environment,
                stdout=output,
                stderr=output,
                start_new_session=True,
                user=user,
            )

    def _wait_for_port(self) -> bool:
        assert self.broker is not None
        assert self._broker_process is not None
        deadline = time.monotonic() + START_LIMIT_S
        while time.monotonic() < deadline and self._broker_process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", self.broker.port), 1.0).close()
            except OSError:
                time.sleep(0.05)
            else:
                time.sleep(0.5)  # a database may accept a connection before it is ready
                return True
        return False


def _end(process: subprocess.Popen[bytes] | None, how: signal.Signals) -> None:
    if process is not None and process.poll() is None:
        os.killpg(process.pid, how)
        try:
            process.wait(20.0)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _pause(process: subprocess.Popen[bytes] | None, seconds: float) -> None:
    if process is not None and process.poll() is None:
        os.killpg(process.pid, signal.SIGSTOP)
        time.sleep(seconds)
        os.killpg(process.pid, signal.SIGCONT)
