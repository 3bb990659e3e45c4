"""The exchanges recorded with the original, replayed against a real server, answer by answer.

Times are moved to now, numbers of clients are not compared, and where the recording had a pause the
question is asked again until the answer fits. Every other difference is listed in DEVIATIONS with
its reason: an answer that differs without being listed fails, and so does one that is listed and
does not differ.
"""

from __future__ import annotations

import contextlib
import math
import re
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.support.runner_world import wait_until
from tests.support.servers.workq_process import WorkqClient, WorkqProcess
from tests.support.servers.workq_transcript import Step, read_transcript

PATIENCE_S = 60.0
SILENCE_S = 0.2

ID = b"00000000-0000-4000-8000-000000000%03d"
SHORT_TTR = (
    "run: leased, never finished, TTR < wait-timeout -- document says TIMEOUT at TTR; "
    "real: job is queued again, client waits for wait-timeout"
)
DUE_ORDER = "schedule: a due scheduled job sorts after every plain job of the same priority"
TIMED_OUT, NOT_FOUND = b"-TIMEOUT\r\n", b"-NOT-FOUND\r\n"

# (section, number of the step in it): the answer of ours, and why it is another one.
DEVIATIONS: dict[tuple[str, int], tuple[bytes, str]] = {
    ("add: payload limits", 3): (
        b"-CLIENT-ERROR Invalid payload size\r\n",
        "a refused command takes its payload with it",
    ),
    ("add: payload limits", 7): (
        b"-CLIENT-ERROR Invalid payload size\r\n",
        "a payload is never taken for a command: nothing is deleted",
    ),
    ("add: payload limits", 9): (b"+OK 1\r\n" + ID % 1 + b" 12\r\n", "see the step before"),
    ("framing: terminator split over TCP segments", 7): (
        b"+OK\r\n",
        "CR and LF may come apart",
    ),
    ("max-fails: not implemented; first fail is final", 7): (
        b"state 3\r\n",
        "max-fails retries: the document says so",
    ),
    ("max-fails: not implemented; first fail is final", 9): (
        b"+OK 1\r\n" + ID % 71 + b" mf 1000 1\r\nx\r\n",
        "the job is queued again",
    ),
    ("max-fails: not implemented; first fail is final", 11): (TIMED_OUT, "it has no result yet"),
    ("fail: errors", 11): (
        b"-CLIENT-ERROR Invalid result size\r\n",
        "a refused command takes its payload with it",
    ),
    ("result: two waiters, only one is woken", 7): (
        b"+OK 1\r\n" + ID % 88 + b" 1 4\r\ndone\r\n",
        "everyone who waits is answered",
    ),
    ("result: waiter of a deleted job is not told", 5): (NOT_FOUND, "who waits is told"),
    (SHORT_TTR, 4): (NOT_FOUND, "the client is answered at the TTR, and its job ends"),
    ("run: a result waiter steals the answer", 6): (
        b"+OK 1\r\n" + ID % 102 + b" 1 4\r\npong\r\n",
        "everyone who waits is answered",
    ),
    (DUE_ORDER, 5): (
        b"+OK 2\r\n" + ID % 119 + b" 13\r\n",
        "first come, first served: it was due before the other was added",
    ),
    (DUE_ORDER, 7): (
        b"+OK 1\r\n" + ID % 119 + b" scho 60000 5\r\nsched\r\n",
        "see the step before",
    ),
    (DUE_ORDER, 9): (
        b"+OK 1\r\n" + ID % 120 + b" scho 60000 4\r\nadd2\r\n",
        "see the step before",
    ),
    ("delete: errors", 3): (NOT_FOUND, "there is no such job"),
    ("delete: errors", 5): (NOT_FOUND, "there is no such job"),
    ("lease: several names", 11): (
        b"split 2\r\nready-len 2\r\nscheduled-len 0\r\n",
        "the add whose CR and LF came apart was taken",
    ),
    ("inspect: lists", 27): (
        b"+OK 2\r\nl1 2\r\nready-len 0\r\nscheduled-len 0\r\nl2 2\r\n",
        "a queue that only a lease has named goes with it; what made fifo is not in the recording",
    ),
}
# Differences that come again and again.
EVERYWHERE = [
    (b"server 2\r\n", b"server 3\r\n"),  # it sends three keys, so it says three
]

# A TTR of a second passes in no exchange, and a busy machine shall not make it pass: in commands,
# of a lease, and shown. (That of the run with the id 100 does; it and its like are in RUNS.)
_TTR = re.compile(
    rb"\b1000(?= 60000 | 5000 )|(?<=\nttr )1000(?=\r)|(?<=\n)(?!\S+100 )([\w-]{36} \w+ )1000(?= )"
)
# Runs that were recorded with little time: a worker is there in time on a busy machine too.
RUNS = [
    (b"100 rn 1000 300 ", b"100 rn 4000 3000 "),  # TTR and wait; the TTR must pass
    (b"100 rn 1000 ", b"100 rn 4000 "),
    (b"101 rn 300 1500 ", b"101 rn 300 60000 "),
    (b"102 rn 500 1200 ", b"102 rn 600000 60000 "),
    (b"102 rn 500 ", b"102 rn 600000 "),
    (b"lease rn 500\r\n", b"lease rn 60000\r\n"),
]
_AWAITED_RUN = ID % 102  # another client asks for its result at once

_TIME = re.compile(rb"2026-11-15T18:[0-9:]{5}Z")
_CREATED = re.compile(rb"created (\S+)Z\r\n")
_CLIENTS = re.compile(rb"active-clients \d+\r\n")
_STARTED = re.compile(rb"started \S+Z\r\n")


class Replay:
    """Connections by their letters, and the moment to which the recording is moved."""

    def __init__(self, server: WorkqProcess) -> None:
        self._server = server
        self._clients: dict[str, WorkqClient] = {}
        self._sent: dict[str, bytes] = {}
        self._recorded_s = 0
        self._shift_s = 0
        self.deviated: set[tuple[str, int]] = set()

    def begin_section(self, steps: list[Step]) -> None:
        created = [m for step in steps if (m := _CREATED.search(step.data))]
        if created:
            self._recorded_s = _seconds(created[0][1] + b"Z")
        self._shift_s = math.ceil(time.time()) - self._recorded_s
        self._forget("N")

    def send(self, step: Step) -> None:
        client = self._clients.get(step.connection)
        if client is None:
            client = self._clients[step.connection] = self._server.worker()
        data = self._moved(step.data)
        self._sent[step.connection] = data
        client.send(data)
        if data.startswith(b"run " + _AWAITED_RUN):
            with contextlib.closing(self._server.worker()) as other:
                question = f"inspect job {_AWAITED_RUN.decode()}"
                wait_until(lambda: other.ask(question).startswith("+"), "the run is known")

    def receive(self, step: Step) -> None:
        name = step.connection
        place = (step.section, step.number)
        original = step.data
        for theirs, ours in EVERYWHERE:
            original = original.replace(theirs, ours)
        expected = self._moved(original)
        if place in DEVIATIONS:
            self.deviated.add(place)
            part = self._moved(DEVIATIONS[place][0])
            found = self._receive_part(name, part)
            assert _comparable(found) != _comparable(expected), "the deviation is none"
            self._forget("N")
        elif step.end == "silent":
            self._expect_silence(name, expected)
        else:
            self._receive_exactly(name, expected)
            if step.end == "closed":
                assert self._clients[name].read_to_the_end() == b""
                self._forget(name)

    def _receive_exactly(self, name: str, expected: bytes) -> None:
        question = self._sent[name]
        again = question.startswith(b"inspect ") or question.endswith(b" 0\r\n")
        deadline = time.monotonic() + PATIENCE_S
        while True:
            found = self._read_at_most(name, len(expected), SILENCE_S if again else PATIENCE_S)
            if _comparable(found) == _comparable(expected):
                return
            assert again, (question, found, expected)
            assert time.monotonic() < deadline, (question, found, expected)
            self._forget(name)  # and whatever is left of that answer
            self._clients[name] = self._server.worker()
            self._clients[name].send(question)

    def _read_at_most(self, name: str, size: int, patience_s: float) -> bytes:
        client = self._clients[name]
        begin = client.read_exactly(min(size, 1))  # an answer comes, however busy the machine is
        client.socket.settimeout(patience_s)
        try:
            return begin + client.read_exactly(size - len(begin))
        except TimeoutError:
            return b"<shorter>"
        finally:
            client.socket.settimeout(PATIENCE_S)

    def _receive_part(self, name: str, part: bytes) -> bytes:
        """An answer of ours that holds ``part``."""
        deadline = time.monotonic() + PATIENCE_S
        while part not in (found := self._read_until_quiet(name)):
            question = self._sent[name]
            assert question.startswith(b"inspect "), (question, found)
            assert time.monotonic() < deadline, (question, found)
            self._clients[name].send(question)
        return found

    def _read_until_quiet(self, name: str) -> bytes:
        client = self._clients[name]
        found = client.read_exactly(1)
        client.socket.settimeout(SILENCE_S)
        try:
            while byte := client.read_exactly(1):
                found += byte
        except TimeoutError:
            client.socket.settimeout(PATIENCE_S)
        return found

    def _expect_silence(self, name: str, expected: bytes) -> None:
        assert expected == b""
        client = self._clients[name]
        client.socket.settimeout(SILENCE_S)
        with pytest.raises(TimeoutError):
            client.read_exactly(1)
        client.socket.settimeout(PATIENCE_S)
        self._forget("N")

    def _moved(self, data: bytes) -> bytes:
        def moved(match: re.Match[bytes]) -> bytes:
            moment = datetime.fromtimestamp(_seconds(match[0]) + self._shift_s, UTC)
            return moment.strftime("%Y-%m-%dT%H:%M:%SZ").encode()

        for recorded, longer in RUNS:
            data = data.replace(recorded, longer)
        return _TTR.sub(lambda match: (match[1] or b"") + b"600000", _TIME.sub(moved, data))

    def _forget(self, name: str) -> None:
        client = self._clients.pop(name, None)
        if client is not None:
            client.close()

    def close(self) -> None:
        for name in list(self._clients):
            self._forget(name)


def _seconds(text: bytes) -> int:
    return int(datetime.fromisoformat(text.decode()).timestamp())


def _comparable(data: bytes) -> bytes:
    """Without what depends on the clock and on how many are connected."""
    data = _CREATED.sub(b"created then\r\n", data)
    return _STARTED.sub(b"started then\r\n", _CLIENTS.sub(b"active-clients n\r\n", data))


def test_recorded_exchanges_are_answered_as_the_original_did(tmp_path: Path):
    steps = read_transcript()
    sections = list(dict.fromkeys(step.section for step in steps))
    with WorkqProcess(tmp_path) as server:
        replay = Replay(server)
        for section in sections:
            own = [step for step in steps if step.section == section]
            replay.begin_section(own)
            for step in own:
                if step.is_sent:
                    replay.send(step)
                else:
                    replay.receive(step)
        replay.close()
        assert server.stop() == 0
    assert replay.deviated == set(DEVIATIONS)


def test_transcript_is_read_whole():
    steps = read_transcript()
    assert len(steps) > 350
    assert sum(step.is_sent for step in steps) > 180
    assert all(step.data.endswith(b"\r\n") or step.end for step in steps if not step.is_sent)
    assert {step.end for step in steps} == {"", "closed", "silent"}
