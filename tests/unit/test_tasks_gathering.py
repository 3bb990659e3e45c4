"""Sends of several threads: none is lost or overtaken, whatever breaks, and few go alone."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from journeyman.tasks import server as server_module
from journeyman.tasks.server import LANES, MAX_JOBS, Gathering

LIMIT_S = 60


class Server:
    """Answers a batch when it is allowed to."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.begun = threading.Semaphore(0)
        self.go = threading.Semaphore(0)
        self.broken: set[int] = set()

    def send(self, jobs: Sequence[int]) -> list[int]:
        self.batches.append(list(jobs))
        self.begun.release()
        assert self.go.acquire(timeout=LIMIT_S)
        if self.broken & set(jobs):
            raise ConnectionError(f"lost {sorted(jobs)}")
        return [job * 10 for job in jobs]


def wait_for(gathered: Gathering[int, int], count: int) -> None:
    event = threading.Event()
    for _ in range(LIMIT_S * 200):
        if len(gathered._waiting) >= count:
            return
        event.wait(0.005)
    raise AssertionError(f"{len(gathered._waiting)} wait, not {count}")


def test_what_waits_goes_together_and_everyone_gets_its_own_outcome():
    server = Server()
    gathered = Gathering(server.send)
    with ThreadPoolExecutor(LANES + 5) as threads:
        first = [threads.submit(gathered.add, job) for job in range(LANES)]
        for _ in first:
            assert server.begun.acquire(timeout=LIMIT_S)
        later = [threads.submit(gathered.add, 100 + job) for job in range(5)]
        wait_for(gathered, 5)
        server.go.release()
        assert server.begun.acquire(timeout=LIMIT_S)
        server.go.release(LANES)
        assert [each.result(LIMIT_S) for each in first] == [job * 10 for job in range(LANES)]
        assert [each.result(LIMIT_S) for each in later] == [(100 + job) * 10 for job in range(5)]
    assert sorted(map(len, server.batches)) == [1] * LANES + [5]
    assert sorted(server.batches[-1]) == [100, 101, 102, 103, 104]
    assert gathered._turns == 0


def test_broken_batch_is_raised_in_each_thread_of_it_and_the_next_one_goes():
    server = Server()
    server.broken = {100}
    gathered = Gathering(server.send)
    with ThreadPoolExecutor(LANES + 2) as threads:
        first = [threads.submit(gathered.add, job) for job in range(LANES)]
        for _ in first:
            assert server.begun.acquire(timeout=LIMIT_S)
        later = [threads.submit(gathered.add, 100 + job) for job in range(2)]
        wait_for(gathered, 2)
        server.go.release()  # one of the first; its turn takes both of the later ones along
        assert server.begun.acquire(timeout=LIMIT_S)
        server.go.release(LANES)
        assert [each.result(LIMIT_S) for each in first] == [job * 10 for job in range(LANES)]
        for each in later:
            with pytest.raises(ConnectionError, match="lost"):
                each.result(LIMIT_S)
    server.go.release()
    assert gathered.add(7) == 70


def test_batches_are_bounded():
    server = Server()
    gathered = Gathering(server.send)
    count = MAX_JOBS + 10
    with ThreadPoolExecutor(LANES + count) as threads:
        jobs = [threads.submit(gathered.add, job) for job in range(LANES)]
        for _ in jobs:
            assert server.begun.acquire(timeout=LIMIT_S)
        jobs += [threads.submit(gathered.add, LANES + job) for job in range(count)]
        wait_for(gathered, count)
        server.go.release(LANES + count)
        assert [each.result(LIMIT_S) for each in jobs] == [n * 10 for n in range(LANES + count)]
    assert max(map(len, server.batches)) == MAX_JOBS


def test_forked_child_begins_without_the_threads_of_its_parent(monkeypatch: pytest.MonkeyPatch):
    server = Server()
    gathered = Gathering(server.send)
    with ThreadPoolExecutor(LANES) as threads:
        jobs = [threads.submit(gathered.add, job) for job in range(LANES)]
        for _ in jobs:
            assert server.begun.acquire(timeout=LIMIT_S)
        monkeypatch.setattr(os, "getpid", lambda: -1)
        assert gathered._turns == LANES
        server.go.release(LANES + 1)
        assert gathered.add(5) == 50
        monkeypatch.undo()


@pytest.mark.parametrize("has_turn", [False, True])
def test_interrupted_thread_leaves_and_the_others_go_on(has_turn: bool):
    server = Server()
    gathered = Gathering(server.send)
    gathered._turns = LANES  # all on their way

    class Interrupted:
        def __init__(self, waiting: server_module._Waiting[int, int]) -> None:
            self.waiting = waiting

        def acquire(self) -> None:
            if has_turn:
                gathered._pass_on()
                assert self.waiting.has_turn
            raise KeyboardInterrupt

        def release(self) -> None:
            pass

    waiting: server_module._Waiting[int, int] = server_module._Waiting(1)
    waiting.woken = Interrupted(waiting)  # type: ignore[assignment]
    gathered._waiting.append(waiting)
    with pytest.raises(KeyboardInterrupt):
        gathered._wait(waiting)
    assert not gathered._waiting
    assert gathered._turns == (LANES - 1 if has_turn else LANES)
