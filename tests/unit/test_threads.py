"""Threads of the machine: what the writer's one promises."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from journeyman.threads import OneThread, WorkerThread
from tests.simulation.world import PoolWorker


@pytest.mark.parametrize("make", [OneThread, lambda _: PoolWorker(ThreadPoolExecutor(1))])
def test_a_worker_does_one_thing_after_another_and_says_what_was_raised(make):
    worker: WorkerThread = make("journeyman-test")
    did: list[object] = []
    broken = ValueError("no")

    def fail() -> None:
        raise broken

    for number in range(3):
        worker.submit((partial(did.append, number), did.append))
    worker.submit((fail, did.append))
    worker.submit((lambda: did.append(threading.current_thread()), did.append))
    worker.close()
    assert did[:7] == [0, None, 1, None, 2, None, broken]
    assert did[7] is not threading.main_thread()
    assert did[8] is None
