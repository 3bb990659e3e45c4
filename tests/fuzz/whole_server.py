"""Bytes that no client sends, to whole servers: the three line protocols in a simulation, and HTTP.

    python -m tests.fuzz.whole_server --inputs 1000000

An input is a few commands that a client might send, with bytes changed, cut out, doubled or moved,
and cut into pieces at random places; the connection may end at any point. The server must neither
stop nor stumble (an exception that nothing caught), and answers a well-behaved client afterwards.
"""

from __future__ import annotations

import argparse
import random
import socket
import sys
import tempfile
import time
from pathlib import Path

from journeyman.config.loading import load
from journeyman.testing.simulation.machine import Machine
from journeyman.testing.simulation.network import ConnectionCut, Network, Weather
from journeyman.testing.simulation.world import World
from tests.support.servers.schedule_process import ScheduleProcess

_ID = b"%08x-0000-4000-8000-000000000001"
SEEDS = {
    5678: (
        b"1 SET job 4000000000000000000\n",
        b"1 GET job\n",
        b"1 REMOVE job\n",
        b'1 RULE SET r job shell "echo hi"\n',
        b"1 RULE SET q j queue name -priority=3\n",
        b"1 QUERY j\n1 LISTRULES\n1 STAT\n",
        b'1 TIMETABLE SET t cron "0 2 * * *" tz=Asia/Tokyo catch_up=all\n',
        b"1 TIMETABLE NEXT t 5\n1 TIMETABLE LIST\n1 TIMETABLE REMOVE t\n",
        b"AUTH secret\n",
    ),
    9922: (
        b"add " + _ID % 1 + b" q 1000 60000 4 -priority=1 -max-fails=3\r\nabcd\r\n",
        b"schedule " + _ID % 2 + b" q 1000 60000 2030-01-01T00:00:00Z 2\r\nab\r\n",
        b"lease q 0\r\n",
        b"lease q r 0 -max=3 -worker=w\r\n",
        b"complete " + _ID % 1 + b" 2\r\nok\r\n",
        b"fail " + _ID % 1 + b" 2 -delay=5\r\nno\r\n",
        b"delete " + _ID % 1 + b"\r\n",
        b"inspect jobs q 0 10\r\ninspect server\r\ninspect queues 0 10\r\n",
        b"limit q -rate=10/m -concurrency=2\r\npause q\r\nresume q\r\n",
        b"add " + _ID % 3 + b" q 1000 60000 1 -after=" + _ID % 1 + b"\r\nx\r\n",
    ),
    22133: (
        b"set q 0 0 5\r\nhello\r\n",
        b"get q/open\r\n",
        b"get q/close/open/t=1\r\n",
        b"get q+r/peek\r\nget q/abort\r\n",
        b"monitor q 1 5\r\nconfirm q 1\r\n",
        b"stats\r\ndump_stats\r\nversion\r\nstatus\r\n",
        b"flush q\r\nflush_all_expired\r\ndelete q\r\n",
    ),
}
ODD = (b"\0", b"\r\n", b"\n", b" ", b'"', b"\\", b"-", b"=", b"/", b"+", b"\xff\xfe", b"9" * 30)
INPUTS_A_CONNECTION = 8


def mutated(chance: random.Random, seeds: tuple[bytes, ...]) -> bytes:
    data = bytearray(b"".join(chance.choices(seeds, k=chance.randint(1, 3))))
    for _ in range(chance.choice((0, 1, 1, 2, 5))):
        at = chance.randrange(len(data) + 1)
        kind = chance.randrange(5)
        if kind == 0:
            data[at : at + 1] = bytes((chance.randrange(256),))
        elif kind == 1:
            del data[at : at + chance.randint(1, 8)]
        elif kind == 2:
            data[at:at] = chance.choice(ODD)
        elif kind == 3:
            data[at:at] = data[at : at + chance.randint(1, 40)]
        else:
            data[at:at] = str(chance.choice((0, -1, 2**31, 2**63, 2**64, 10**30))).encode()
    return bytes(data)


async def _send(network: Network, outside: object, chance: random.Random, inputs: int) -> None:
    sent = 0
    while sent < inputs:
        port = chance.choice(list(SEEDS))
        wire = network.connect(outside, port)  # type: ignore[arg-type]
        try:
            for _ in range(chance.randint(1, INPUTS_A_CONNECTION)):
                wire.send(mutated(chance, SEEDS[port]))
                sent += 1
            await _pause(outside, 0.01)
        except ConnectionCut:
            continue
        wire.cut()


async def _pause(outside: object, seconds: float) -> None:
    mine = outside.create_future()  # type: ignore[attr-defined]
    outside.call_later(seconds, mine.set_result, None)  # type: ignore[attr-defined]
    await mine


async def _is_well(network: Network, outside: object) -> None:
    for port, ask, answer in (
        (5678, b"1 SET fine 4000000000000000000\n", b"1 OK"),
        (9922, b"delete 00000000-0000-4000-8000-00000000000f\r\n", b"-NOT-FOUND"),
        (22133, b"set fine 0 0 1\r\nx\r\n", b"STORED"),
    ):
        wire = network.connect(outside, port)  # type: ignore[arg-type]
        wire.send(ask)
        assert await wire.read_line() == answer
        wire.cut()


def fuzz_lines(seed: int, inputs: int) -> None:
    """AssertionError: the server stumbled."""
    world = World(seed)
    outside, network = world.loop(), Network(world, Weather(split=0.3))
    options = {"data.directory": "/data", "http.enabled": "false", "history.enabled": "false"}
    configuration = load(environ={}, options=options)
    machine = Machine(world, network, configuration, outside, lambda: 0)
    machine.start()
    world.run_until(lambda: machine.is_ready)
    world.run(outside, _send(network, outside, world.random, inputs))
    world.run(outside, _is_well(network, outside))
    assert not machine.mistakes, (seed, machine.mistakes[:3])
    assert machine.is_running, (seed, machine.lines[-5:])


REQUESTS = (
    b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /v1/queues?limit=5 HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n",
    (
        b"PUT /v1/schedule/jobs/a HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b'Content-Length: 34\r\n\r\n{"at": "2030-01-01T00:00:00Z"}    '
    ),
    (
        b"POST /v1/queues/q/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b'Transfer-Encoding: chunked\r\n\r\n10\r\n{"payload": "aa"}\r\n0\r\n\r\n'
    ),
)


def fuzz_http(directory: Path, seed: int, inputs: int) -> None:
    chance = random.Random(seed)
    settings = {
        "http.listen": "127.0.0.1:0",
        "workq.enabled": "true",
        "workq.listen": "127.0.0.1:0",
    }
    settings |= {"workq.cmdlog_path": "cmdlog", "ledger.path": "ledger"}
    with ScheduleProcess(directory, settings=settings) as server:
        for _ in range(inputs):
            with socket.create_connection(("127.0.0.1", server.http_port), timeout=60) as client:
                try:
                    client.sendall(mutated(chance, REQUESTS))
                    client.shutdown(socket.SHUT_WR)
                    while client.recv(65536):
                        pass
                except ConnectionError:
                    continue
        with socket.create_connection(("127.0.0.1", server.http_port), timeout=60) as client:
            client.sendall(REQUESTS[0])
            assert client.recv(12) == b"HTTP/1.1 200"
        stumbles = [line for line in server.lines if "unexpected" in line or "Traceback" in line]
        assert not stumbles, stumbles[:3]


def main() -> int:
    parser = argparse.ArgumentParser(description="Fuzz whole servers.")
    parser.add_argument(
        "--inputs", type=int, default=100_000, help="of the line protocols (100000)"
    )
    parser.add_argument("--http", type=int, default=1_000, help="of HTTP (1000)")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    begun = time.process_time()
    for number in range(0, options.inputs, 20_000):
        fuzz_lines(options.seed + number, min(20_000, options.inputs - number))
    with tempfile.TemporaryDirectory() as directory:
        fuzz_http(Path(directory), options.seed, options.http)
    sys.stdout.write(
        f"{options.inputs} inputs to the line protocols and {options.http} to HTTP in "
        f"{time.process_time() - begun:.0f} s of CPU: no server stumbled\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
