"""How much memory does a very long queue take? Items go through the door; one reader stands still.

    filled       all items were put, the reader has read none of them
    restarted    the same folder, opened anew: time from exec to the first item, and memory then

What is resident is what the whole server has, interpreter and libraries included. The journal was
written just before, so it comes out of the page cache: this is the time of the program.
"""

from __future__ import annotations

import shutil
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from bench.fanout_load import ITEM
from bench.fanout_peers import journeyman
from bench.peers import START_LIMIT_S, Peer

__all__ = ["LongQueue", "measure_long_queue"]

BURST = 500
AHEAD = 8  # bursts that are not answered yet
READ = 1000  # items, after the restart


@dataclass(frozen=True, slots=True)
class LongQueue:
    items: int
    fill_s: float
    filled_mb: float
    filled_peak_mb: float
    first_item_s: float
    restarted_mb: float
    restarted_peak_mb: float


def measure_long_queue(directory: Path, items: int) -> LongQueue:
    with journeyman(directory, "interval") as server, _connect(server) as client:
        _get(client)
        begin = time.perf_counter()
        _fill(client, items)
        fill_s = time.perf_counter() - begin
        filled, filled_peak = server.memory_bytes()
    again = journeyman(directory, "interval")
    begin = time.perf_counter()
    with again, _connect(again) as client:
        first = _get(client)
        first_item_s = time.perf_counter() - begin
        if not first.endswith(b"%012d\r\nEND\r\n" % 0):
            raise SystemExit(f"the restarted server answers {first[:200]!r}")
        for _ in range(READ):
            _get(client)
        now, peak = again.memory_bytes()
    shutil.rmtree(directory)
    return LongQueue(
        items,
        round(fill_s, 1),
        round(filled / 1e6, 1),
        round(filled_peak / 1e6, 1),
        round(first_item_s, 2),
        round(now / 1e6, 1),
        round(peak / 1e6, 1),
    )


def _connect(server: Peer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), START_LIMIT_S)


def _fill(client: socket.socket, items: int) -> None:
    answered = sent = 0
    received = b""
    while answered < items:
        while sent < items and sent - answered < AHEAD * BURST:
            numbers = range(sent, min(sent + BURST, items))
            client.sendall(b"".join(map(_set, numbers)))
            sent = numbers.stop
        received += client.recv(1 << 16)
        whole = len(received) // len(b"STORED\r\n")
        if received[: whole * 8] != b"STORED\r\n" * whole:
            raise SystemExit(f"an item was not stored: {received[:200]!r}")
        answered += whole
        received = received[whole * 8 :]


def _set(number: int) -> bytes:
    data = ITEM[:-12] + b"%012d" % number
    return b"set long 0 0 %d\r\n%b\r\n" % (len(data), data)


def _get(client: socket.socket) -> bytes:
    client.sendall(b"get long+r\r\n")
    answer = b""
    while not answer.endswith(b"END\r\n"):
        answer += client.recv(1 << 16)
    return answer
