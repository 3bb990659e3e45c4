"""The load on the server between two kills: writers that keep a page each, and an observer.

    writer     bursts of SET, REMOVE, RULE SET, REMOVERULE, many of them unanswered at a time
    observer   lists what is there, and says if that cannot be

They end when the connection does, or when told to. What goes wrong is kept for the main thread:
an answer that should have been another one, a list that shows no moment of a page.
"""

from __future__ import annotations

import random
import socket
import threading
import time
from collections import deque
from typing import TypeAlias

from tests.support.crash.kill_loop import LoadThread
from tests.support.crash.schedule_ledger import Change, Key, Page, RunBook, Value

__all__ = ["FAR_AWAY_NS", "RUN_RULE", "Jobs", "Moments", "Observer", "Wire", "Writer"]

KEPT_JOBS = 400  # identifiers a page; few, so that commands supersede one another
RUN_JOBS = 30
RULES = 40
WEIGHTS = (78, 12, 7, 3)  # SET, REMOVE, RULE SET, REMOVERULE
MAX_BURST = 150
MAX_UNANSWERED = 300
RUN_EVERY_S = 0.08  # each page sets a job that is soon due this often
MAX_AHEAD_S = 0.4
DROPPED_RUNS = 0.1  # the part of these that is a REMOVE of one instead
FAR_AWAY_NS = 4_000_000_000_000_000_000  # no job that is kept becomes due

RUN_RULE = (
    'RULE SET the.rule run. direct /bin/sh -c "echo $LEDGER_LIFE $JOURNEYMAN_JOB_ID '
    '$JOURNEYMAN_EXECUTION_NS >> runs; sleep 0.1"'
)  # it sleeps so that kills come between the line and the end of the run

ANSWER_TIMEOUT_S = 60.0

Jobs: TypeAlias = dict[str, tuple[str, int]]  # identifier: status, execution_ns


class Wire:
    """A connection that may end in the middle of a line: then EOFError is raised."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), ANSWER_TIMEOUT_S)
        self._lines: deque[str] = deque()
        self._rest = ""

    def send(self, *lines: str) -> None:
        self._socket.sendall("".join(line + "\n" for line in lines).encode())

    def line(self) -> str:
        while not self._lines:
            data = self._socket.recv(256 * 1024)
            if not data:
                raise EOFError
            *lines, self._rest = (self._rest + data.decode("ascii")).split("\n")
            self._lines.extend(lines)
        return self._lines.popleft()

    def ask(self, line: str) -> str:
        self.send(line)
        return self.line()

    def jobs(self, prefix: str = "") -> Jobs:
        jobs: Jobs = {}
        for row in self._list(f"QUERY {prefix}".rstrip()):
            identifier, status, execution_ns = row.split(" ")
            assert identifier not in jobs, f"{identifier} is listed twice"
            jobs[identifier] = (status, int(execution_ns))
        return jobs

    def rules(self) -> dict[str, str]:
        rules: dict[str, str] = {}
        for row in self._list("LISTRULES"):
            identifier, rest = row.split(" ", 1)
            assert identifier not in rules, f"{identifier} is listed twice"
            rules[identifier] = rest
        return rules

    def close(self) -> None:
        self._socket.close()

    def _list(self, command: str) -> list[str]:
        self.send(f"q {command}")
        rows = []
        while (line := self.line()) != "q OK":
            assert line.startswith("q "), line
            rows.append(line[2:])
        return rows


class Moments:
    """Times for SETs, no two the same."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last_ns = 0
        self._far_ns = FAR_AWAY_NS

    def soon(self, ahead_s: float) -> int:
        with self._lock:
            self._last_ns = max(self._last_ns + 1, time.time_ns() + int(ahead_s * 1e9))
            return self._last_ns

    def far_away(self) -> int:
        with self._lock:
            self._far_ns += 1
            return self._far_ns


class _Loader(LoadThread):
    client: Wire

    def __init__(self, port: int, name: str) -> None:
        super().__init__(name)
        self.client = Wire(port)


class Writer(_Loader):
    def __init__(
        self, port: int, number: int, page: Page, book: RunBook, life: int, moments: Moments
    ) -> None:
        super().__init__(port, f"writer {number}")
        self._number = number
        self._page = page
        self._book = book
        self._life = life
        self._moments = moments
        self._random = random.Random(f"{life}.{number}")
        self._next_run = time.monotonic()

    def step(self) -> None:
        burst = [self._change() for _ in range(self._random.randint(1, MAX_BURST))]
        first = len(self._page.sent) - len(burst)
        lines = [f"{first + i} {change.line}" for i, change in enumerate(burst)]
        self.client.send(*lines)
        self._read_answers(self._random.randint(0, MAX_UNANSWERED))

    def finish(self) -> None:
        self._read_answers(0)

    def _read_answers(self, leave: int) -> None:
        page = self._page
        while len(page.sent) - page.answered > leave:
            answer = self.client.line()
            change = page.sent[page.answered]
            good = f"{page.answered} OK" if change.succeeds else f"{page.answered} ERROR not_found "
            rest = answer.removeprefix(good)
            assert rest != answer, f"{change.line!r} was answered {answer!r}"
            assert not rest or not change.succeeds, answer
            page.answered += 1

    def _change(self) -> Change:
        if time.monotonic() >= self._next_run:
            self._next_run = time.monotonic() + RUN_EVERY_S
            return self._drop_run() if self._random.random() < DROPPED_RUNS else self._set_run()
        kinds = (self._keep, self._drop, self._rule, self._drop_rule)
        return self._random.choices(kinds, WEIGHTS)[0]()

    def _keep(self) -> Change:
        identifier = self._pick("keep", KEPT_JOBS)
        execution_ns = self._moments.far_away()
        return self._page.put(("job", identifier), execution_ns, f"SET {identifier} {execution_ns}")

    def _drop(self) -> Change:
        identifier = self._pick("keep", KEPT_JOBS)
        return self._page.remove(("job", identifier), f"REMOVE {identifier}")

    def _drop_run(self) -> Change:
        identifier = self._pick("run", RUN_JOBS)
        return self._page.remove(("job", identifier), f"REMOVE {identifier}")

    def _set_run(self) -> Change:
        identifier = self._pick("run", RUN_JOBS)
        execution_ns = self._moments.soon(self._random.uniform(0, MAX_AHEAD_S))
        self._book.sent(self._life, (identifier, execution_ns))
        return self._page.put(("job", identifier), execution_ns, f"SET {identifier} {execution_ns}")

    def _rule(self) -> Change:
        identifier = self._pick("rule", RULES)
        rest = f"never.{self._random.randint(0, 99)}. direct /bin/true {self._moments.far_away()}"
        return self._page.put(("rule", identifier), rest, f"RULE SET {identifier} {rest}")

    def _drop_rule(self) -> Change:
        identifier = self._pick("rule", RULES)
        return self._page.remove(("rule", identifier), f"REMOVERULE {identifier}")

    def _pick(self, kind: str, count: int) -> str:
        return f"{kind}.{self._number}.{self._random.randrange(count)}"


class Observer(_Loader):
    """Reads while others write: what it is shown must survive the kill, too."""

    def __init__(self, port: int, pages: dict[int, Page], book: RunBook) -> None:
        super().__init__(port, "observer")
        self._pages = pages
        self._book = book
        self._random = random.Random(port)
        self.lists = 0

    def step(self) -> None:
        number = self._random.choice(list(self._pages))
        page = self._pages[number]
        answered = page.answered
        # Of one page jobs of two prefixes; each list is of one moment, and they may differ.
        for prefix in (f"keep.{number}.", f"run.{number}."):
            found = self.client.jobs(prefix)
            for identifier, (status, execution_ns) in found.items():
                page.saw(("job", identifier), execution_ns)
                if status == "executed":
                    self._book.told_executed((identifier, execution_ns))
            self._check(page, prefix, found, answered)
            self.lists += 1
        time.sleep(self._random.uniform(0, 0.05))

    def _check(self, page: Page, prefix: str, found: Jobs, answered: int) -> None:
        def ours(key: Key) -> bool:
            return key[0] == "job" and key[1].startswith(prefix)

        part = Page()
        part.known = {key: value for key, value in page.known.items() if ours(key)}
        sent = page.sent[:]
        part.sent = [change for change in sent if ours(change.key)]
        at_least = sum(1 for change in sent[:answered] if ours(change.key))
        values: dict[Key, Value] = {("job", name): ns for name, (_, ns) in found.items()}
        assert part.cut(values, at_least) is not None, "\n".join(part.explain(values, at_least))
