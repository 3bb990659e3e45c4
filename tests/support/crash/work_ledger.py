"""The outside ledger of the work queue: what it was told, and therefore what it may hold.

    producers   add and delete jobs, many sent ahead       one page each: answers come in its order
    workers     lease, complete, fail, forget, hang up     any job, so they share the book

Every job has a line in the book: what was sent about it, and what of that was answered. After a
kill the server is asked for every job, and each must be as the book allows:

    answered       must be so: added jobs are there, results stand, deleted jobs stay away
    sent only      may be so or not; of one page's adds, those that are there were sent first
    leased         counts as an attempt; not again before its TTR is over; never after its end

What is found is then what the next life begins with. No sockets and no clock here.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tests.support.crash.kill_loop import tell_wrong

__all__ = ["Found", "Line", "WorkBook"]

NEW, COMPLETED, FAILED, PENDING, LEASED = range(5)


@dataclass(frozen=True, slots=True)
class Found:
    """A job as the server shows it; ``result`` once it is completed or failed."""

    state: int
    attempts: int
    fails: int
    payload: str
    result: tuple[bool, bytes] | None


@dataclass(slots=True)
class Line:
    """One job."""

    page: int
    payload: str
    ttr_s: float
    max_fails: int
    ends_s: float  # when its TTL is over
    added: bool = False
    delete_sent: bool = False
    deleted: bool = False
    sent: list[tuple[bool, bytes]] = field(default_factory=list)  # results, not answered
    result: tuple[bool, bytes] | None = None  # the one that was taken
    failures: list[bytes] = field(default_factory=list)  # of fails that were taken
    fails_sent: int = 0
    fails: int = 0
    attempts: int = 0  # leases that somebody got
    leases: list[tuple[float, float]] = field(default_factory=list)  # sent, got: since a result
    over_s: float = math.inf  # when it was known to be deleted or finished


class WorkBook:
    """All jobs. Threads may write into it at the same time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lines: dict[str, Line] = {}
        self._unanswered: dict[int, list[str]] = {}  # adds of each page
        self.open_leases = 0  # that a kill or a hang-up cut off: an attempt of an unknown job each
        self.wrong: list[str] = []
        self.added = 0  # adds that were answered, ever

    def __len__(self) -> int:
        return len(self._lines)

    def ids(self) -> list[str]:
        with self._lock:
            return list(self._lines)

    def line(self, job_id: str) -> Line:
        return self._lines[job_id]

    # -- producers --

    def add_sent(self, job_id: str, line: Line) -> None:
        with self._lock:
            self._lines[job_id] = line
            self._unanswered.setdefault(line.page, []).append(job_id)

    def add_answered(self, job_id: str) -> None:
        with self._lock:
            self._lines[job_id].added = True
            self.added += 1
            self._unanswered[self._lines[job_id].page].remove(job_id)

    def delete_sent(self, job_id: str) -> None:
        with self._lock:
            self._lines[job_id].delete_sent = True

    def delete_answered(self, job_id: str, now_s: float) -> None:
        with self._lock:
            self._lines[job_id].deleted = True
            self._lines[job_id].over_s = now_s

    # -- workers --

    def lease_sent(self) -> None:
        with self._lock:
            self.open_leases += 1

    def lease_answered(self) -> None:
        with self._lock:
            self.open_leases -= 1

    def leased(self, job_id: str, payload: str, sent_s: float, got_s: float) -> None:
        """A lease that was sent at ``sent_s`` brought this job."""
        with self._lock:
            line = self._lines.get(job_id)
            if line is None:
                self.wrong.append(f"invented: {job_id} was leased and nobody sent it")
                return
            line.attempts += 1
            if line.payload != payload:
                self.wrong.append(f"invented: {job_id} came with {payload!r}")
            if sent_s > line.over_s:
                self.wrong.append(f"came back: {job_id} was leased after its end")
            # The server decided between the two moments, and threads tell it in any order.
            for other_sent_s, other_got_s in line.leases:
                if got_s < other_sent_s + line.ttr_s and other_got_s < sent_s + line.ttr_s:
                    self.wrong.append(f"leased twice: {job_id} within its TTR")
            line.leases.append((sent_s, got_s))

    def finish_sent(self, job_id: str, success: bool, result: bytes) -> None:
        with self._lock:
            line = self._lines[job_id]
            line.sent.append((success, result))
            line.leases.clear()  # it may be retried at once
            if not success:
                line.fails_sent += 1

    def finish_answered(
        self, job_id: str, success: bool, result: bytes, answer: str, now_s: float
    ) -> None:
        with self._lock:
            line = self._lines[job_id]
            if answer == "+OK":
                line.sent.remove((success, result))
                if not success:
                    line.fails += 1
                    line.failures.append(result)
                if success or line.fails >= max(line.max_fails, 1):
                    if line.result is not None:
                        self.wrong.append(f"finished twice: {job_id}")
                    line.result, line.over_s = (success, result), now_s
            elif answer == "-NOT-FOUND":
                if not line.delete_sent:
                    self.wrong.append(f"lost: {job_id} was not there to be finished")
            elif answer == "-CLIENT-ERROR Duplicate result":
                line.sent.remove((success, result))
                line.fails_sent -= not success
            else:
                self.wrong.append(f"{job_id} was finished and answered {answer}")

    # -- after a kill --

    def settle(self, found: Mapping[str, Found | None], now_s: float) -> int:
        """A new life begins with this; how many unanswered adds are in it."""
        wrong = list(self.wrong)
        for job_id, state in found.items():
            complaint = self._judge(self._lines[job_id], state, now_s)
            if complaint:
                wrong.append(f"{complaint}: {job_id}, found {state}, {self._lines[job_id]}")
        for page, unanswered in self._unanswered.items():
            there = [found[job_id] is not None for job_id in unanswered]
            if there != sorted(there, reverse=True) and not self._some_may_be_gone(
                unanswered, now_s
            ):
                wrong.append(f"overtaken: adds of page {page} are there in {there}")
        tell_wrong(wrong)
        survived = sum(found[i] is not None for ids in self._unanswered.values() for i in ids)
        self._adopt(found)
        return survived

    def _some_may_be_gone(self, ids: Iterable[str], now_s: float) -> bool:
        return any(self._lines[i].ends_s <= now_s or self._lines[i].delete_sent for i in ids)

    def _judge(self, line: Line, found: Found | None, now_s: float) -> str:
        if found is None:
            may_be_gone = not line.added or line.delete_sent or line.ends_s <= now_s + 1
            return "" if may_be_gone else "lost"
        if line.deleted or line.ends_s <= now_s - 1:
            return "came back"
        if found.payload != line.payload:
            return "invented"
        if found.attempts < line.attempts:
            return "lost an attempt"
        if found.attempts > line.attempts + self.open_leases:
            return "invented an attempt"
        if not line.fails <= found.fails <= line.fails_sent:
            return "fails do not add up"
        return self._judge_result(line, found)

    def _judge_result(self, line: Line, found: Found) -> str:
        if line.result is not None and line.result[0]:
            return "" if found.result == line.result else "lost its result"
        if line.result is not None:
            # Threads tell their fails in any order, so any of them may have been the last.
            possible = [(False, failure) for failure in line.failures]
            return "" if found.result in possible else "lost its result"
        if found.result is None:
            return "" if found.state not in (COMPLETED, FAILED) else "finished without a result"
        if found.result not in line.sent:
            return "invented a result"
        if not found.result[0] and found.fails != max(line.max_fails, 1):
            return "dead before its fails were used up"
        return ""

    def _adopt(self, found: Mapping[str, Found | None]) -> None:
        for job_id, state in found.items():
            line = self._lines[job_id]
            if state is None:
                del self._lines[job_id]
                continue
            line.added, line.delete_sent = True, False
            line.result = state.result
            if state.result is not None and not state.result[0]:
                line.failures = [state.result[1]]
            line.fails = line.fails_sent = state.fails
            line.attempts = state.attempts
            line.sent.clear()
            line.leases.clear()
        self._unanswered.clear()
        self.open_leases = 0
