"""Unruly readers and writers of one fan-out queue: whatever they do, every reader gets every item.

Writers note what was answered STORED. Readers take, leave open, give back, wait, monitor, hang up
in the middle of everything, and note what they have confirmed, or been given for good. In the end
the rest is read in peace: together that must be every item, for each of the two names.
"""

from __future__ import annotations

import random
import socket
import struct
import threading
from collections.abc import Callable
from pathlib import Path

from tests.support.servers.fanout_process import FanOutClient, FanOutProcess

READERS = ("a", "b")
ROUNDS = 120
CONFIG = """
[kestrel]
sync = "interval"
window_items = 50
segment_bytes = 4096
checkpoint_interval_ms = 20
[kestrel.default]
max_open = 5
"""


class Notes:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.stored: set[bytes] = set()
        self.done: dict[str, set[bytes]] = {reader: set() for reader in READERS}
        self.problems: list[str] = []

    def add(self, to: set[bytes], *items: bytes) -> None:
        with self._lock:
            to.update(items)


def hang_up(client: FanOutClient) -> None:
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


def write(server: FanOutProcess, notes: Notes, number: int) -> None:
    chance = random.Random(number)
    for turn in range(ROUNDS):
        with server.reader() as client:
            items = [
                b"%d/%d/%d " % (number, turn, each) * 3 for each in range(chance.randint(1, 8))
            ]
            sent = b"".join(b"set q 0 0 %d\r\n%b\r\n" % (len(each), each) for each in items)
            if chance.random() < 0.2:
                client.send(sent[: chance.randrange(len(sent))])  # and no more
                hang_up(client)
                continue
            client.send(sent)
            for item in items:
                assert client.read_line() == "STORED"
                notes.add(notes.stored, item)


def read(server: FanOutProcess, notes: Notes, number: int) -> None:
    chance = random.Random(number)
    reader = READERS[number % len(READERS)]
    done = notes.done[reader]
    for _ in range(ROUNDS):
        with server.reader() as client:
            match chance.randrange(6):
                case 0:  # a few, each opened and confirmed with the next
                    item = client.get(f"q+{reader}/open")
                    while item is not None and chance.random() < 0.9:
                        following = client.get(f"q+{reader}/close/open/t=20")
                        notes.add(done, item)
                        item = following
                case 1:  # all that it may have open, of which some are confirmed
                    opened = [client.get(f"q+{reader}/open") for _ in range(5)]
                    found = [item for item in opened if item is not None]
                    if len(found) > 1:
                        assert client.ask(f"confirm q+{reader} {len(found) - 1}") == "END"
                        notes.add(done, *found[:-1])
                case 2:  # given back
                    client.get(f"q+{reader}/open")
                    client.get(f"q+{reader}/abort")
                case 3:  # gone while it waits, or while it is answered
                    client.send(f"get q+{reader}/open/t=50\r\n" * chance.randint(1, 5))
                    hang_up(client)
                case 4:
                    client.send(f"monitor q+{reader} 1 3\r\n")
                    if chance.random() < 0.5:
                        hang_up(client)
                    else:
                        client.half_close()
                        client.read_to_the_end()
                case _:
                    while (item := client.get(f"q+{reader}")) is not None:
                        notes.add(done, item)
                        if chance.random() < 0.1:
                            break


def run_all(server: FanOutProcess, notes: Notes) -> None:
    def noting(work: Callable[[FanOutProcess, Notes, int], None], number: int) -> None:
        try:
            work(server, notes, number)
        except Exception as error:  # noqa: BLE001 - told at the end
            notes.problems.append(f"{work.__name__} {number}: {error!r}")

    threads = [threading.Thread(target=noting, args=(write, number)) for number in range(3)]
    threads += [threading.Thread(target=noting, args=(read, number)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_every_reader_gets_every_item(tmp_path: Path):
    notes = Notes()
    with FanOutProcess(tmp_path, config=CONFIG) as server:
        with server.reader() as client:
            for reader in READERS:
                assert client.get(f"q+{reader}") is None
        run_all(server, notes)
        assert notes.problems == []
        assert server.stop() == 0
        assert not [line for line in server.lines if "unexpected" in line or " ERROR " in line]
    with FanOutProcess(tmp_path, config=CONFIG) as server, server.reader() as client:
        for reader in READERS:
            left = []
            while (item := client.get(f"q+{reader}")) is not None:
                left.append(item)
            assert len(left) == len(set(left))
            assert not set(left) & notes.done[reader]
            assert notes.stored <= set(left) | notes.done[reader]
        assert client.stats()["queue_q+a_items"] == "0"
