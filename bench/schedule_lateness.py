"""How late do runs start? Seen from outside: by the one whom the runs call.

    due time ---- "triggered" made durable ---- run started ---- connection accepted by the sink
    |<----------------------------------- lateness ------------------------------------------>|

The rule is an http rule, and its address is a sink in a process of its own that notes the time at
which it accepts each connection. That is the first thing of a run that anyone outside can see, so
the figure holds everything the server does, and a little more: the way of the connection. A program
(``direct``) starts as early, but takes a process to tell, which would be the larger part of the
figure. Times of the jobs are random, not evenly spaced: some are due together.

    python -m bench.schedule_lateness COUNT     is the sink: it prints its port, then latenesses
"""

from __future__ import annotations

import json
import random
import re
import selectors
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from bench import peers

__all__ = ["Lateness", "measure_lateness"]

BEGIN_S = 1.0  # the first job is due so long after it is sent
SINK_LIMIT_S = 60.0
SETTINGS = {"database.compression_interval": 0, "log.level": "warn"}
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
EXECUTION = re.compile(rb'"execution":(\d+)\}$')


@dataclass(frozen=True, slots=True)
class Lateness:
    jobs: int
    per_second: int
    p50_ms: float
    p90_ms: float
    p99_ms: float
    worst_ms: float


def measure_lateness(
    directory: Path, *, per_second: int, seconds: float, durable: bool = True
) -> Lateness:
    """One run. ``durable`` False: the same without syncs, to tell the disk's part from ours."""
    count = int(per_second * seconds)
    command = [sys.executable, "-m", "bench.schedule_lateness", str(count)]
    root = Path(__file__).parent.parent
    settings = SETTINGS | {"database.fsync_on_persist": str(durable).lower()}
    with (
        subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) as sink,
        peers.journeyman(directory, settings) as server,
    ):
        assert sink.stdout is not None
        sink_port = int(sink.stdout.readline())
        _plan(server.port, sink_port, count, seconds)
        late_ns: list[int] = sorted(json.loads(sink.stdout.readline() or "[]"))
    if len(late_ns) != count:
        raise SystemExit(f"{len(late_ns)} of {count} runs reached the sink")

    def at(part: float) -> float:
        return round(late_ns[min(int(part * count), count - 1)] / 1e6, 2)

    return Lateness(count, per_second, at(0.5), at(0.9), at(0.99), at(1.0))


def _plan(port: int, sink_port: int, count: int, seconds: float) -> None:
    begin_ns = time.time_ns() + int(BEGIN_S * 1e9)
    moments = random.Random(count)
    lines = [b"r RULE SET rule late. http POST http://127.0.0.1:%d/\n" % sink_port]
    for number in range(count):
        execution_ns = begin_ns + int(moments.uniform(0, seconds) * 1e9)
        lines.append(b"r SET late.%d %d\n" % (number, execution_ns))
    with socket.create_connection(("127.0.0.1", port), SINK_LIMIT_S) as client:
        client.sendall(b"".join(lines))
        missing = len(lines)
        while missing:
            answers = client.recv(65536)
            if not answers or b"ERROR" in answers:
                raise SystemExit(f"the jobs were not taken: {answers[:200]!r}")
            missing -= answers.count(b"\n")
    if time.time_ns() > begin_ns:
        raise SystemExit("planning took longer than the time until the first job")


def sink(count: int) -> list[int]:
    """Accept ``count`` requests; how late each was, in nanoseconds."""
    late_ns: list[int] = []
    selector = selectors.EpollSelector()
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    print(listener.getsockname()[1], flush=True)
    selector.register(listener, selectors.EVENT_READ)
    deadline = time.monotonic() + SINK_LIMIT_S
    while len(late_ns) < count and time.monotonic() < deadline:
        for key, _ in selector.select(1.0):
            if key.fileobj is listener:
                accepted, _ = listener.accept()
                selector.register(accepted, selectors.EVENT_READ, [time.time_ns(), b""])
                continue
            client, state = key.fileobj, key.data
            assert isinstance(client, socket.socket)
            data = client.recv(65536)
            state[1] += data
            if match := EXECUTION.search(state[1]):
                late_ns.append(state[0] - int(match[1]))
                client.sendall(OK)
            if match or not data:
                selector.unregister(client)
                client.close()
    return late_ns


if __name__ == "__main__":
    print(json.dumps(sink(int(sys.argv[1]))))
