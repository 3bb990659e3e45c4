"""Many workers, short TTRs, disconnects: at the end every job is accounted for, exactly.

What the clients were told, what the server shows, and what stands in the log must be one story:
no job is lost, none is finished twice, and every attempt is a lease that somebody asked for.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeAlias

from journeyman.folds.workq import FoldedJob, JobState, replay, visible
from journeyman.formats.workq import Command, Record
from tests.support.servers.cmdlogs import records
from tests.support.servers.soak import QUEUES, TTR_MS, Ledger, UnrulyWorker
from tests.support.servers.workq_process import WorkqClient, WorkqProcess

WORKERS = 30
PRODUCERS = 4
JOBS_EACH = 150
RUNS = 40
LIMIT_S = 120.0

EXPIRING = 40

COMPLETED, FAILED = "1", "2"

Outcomes: TypeAlias = dict[str, tuple[bool, bytes] | str]


def produce(server: WorkqProcess, seed: int) -> list[str]:
    """Add jobs of all kinds; their ids."""
    chance = random.Random(1000 + seed)
    added = []
    with server.worker() as client:
        for _ in range(JOBS_EACH):
            flags = chance.choice(
                ("", "-max-attempts=3", "-max-fails=3", "-max-fails=2 -max-attempts=2")
            )
            flags += chance.choice(("", "", " -retry-delay=20", " -priority=5"))
            added.append(
                client.add(
                    chance.choice(QUEUES),
                    chance.randbytes(chance.randint(0, 300)),
                    ttr=TTR_MS,
                    flags=flags,
                )
            )
    return added


def wait_for_results(server: WorkqProcess, jobs: list[str]) -> list[tuple[bool, bytes] | str]:
    with server.worker() as client:
        return [client.result(job, wait=60_000) for job in jobs]


def run_in_the_foreground(server: WorkqProcess, number: int) -> tuple[str, object]:
    job = f"00000000-0000-4000-8000-{number:012x}"
    with server.worker() as client:
        head = client.ask(f"run {job} {QUEUES[number % 3]} {TTR_MS} 5000 1", b"r")
        return job, client.read_result(head)


def unfinished(client: WorkqClient, jobs: list[str]) -> list[str]:
    return [job for job in jobs if client.job(job)["state"] not in (COMPLETED, FAILED)]


def states_of(client: WorkqClient, jobs: list[str]) -> dict[str, dict[str, str]]:
    return {job: client.job(job) for job in jobs}


def test_every_job_is_accounted_for(tmp_path: Path):
    ledger, stop = Ledger(), threading.Event()
    with WorkqProcess(tmp_path, workq__cmdlog_sync="os", workq__cmdlog_seg_size=50_000) as server:
        workers = [UnrulyWorker(server, ledger, stop, seed) for seed in range(WORKERS)]
        for worker in workers:
            worker.start()
        with ThreadPoolExecutor(PRODUCERS + 8) as pool:
            producing = [pool.submit(produce, server, seed) for seed in range(PRODUCERS)]
            running = [pool.submit(run_in_the_foreground, server, n) for n in range(RUNS)]
            jobs = [job for each in producing for job in each.result()]
            # Two wait for each of some jobs, and both are to have the answer.
            waiting = [pool.submit(wait_for_results, server, jobs[::10]) for _ in range(2)]
            runs = dict(each.result() for each in running)
            results = [each.result() for each in waiting]
        with server.worker() as client:
            for _ in range(EXPIRING):
                client.add("nobody", ttl=10)
            _wait_until_finished(client, jobs)
            _wait_until_evicted(client, EXPIRING)
            stop.set()
            for worker in workers:
                worker.join(LIMIT_S)
            assert ledger.errors == []
            shown = states_of(client, jobs)
            outcomes: Outcomes = {job: client.result(job) for job in jobs}
        log = records(server)
    assert Counter(record.command for record in log)[Command.EXPIRE] == EXPIRING
    _results_are_what_was_accepted(ledger, shown, outcomes)
    _runs_are_answered_once(ledger, runs)
    assert results == [[outcomes[job] for job in jobs[::10]]] * 2
    _log_tells_the_same(log, shown, outcomes)
    _attempts_are_leases(ledger, log, shown)

    with WorkqProcess(tmp_path) as server, server.worker() as client:
        assert states_of(client, jobs) == shown
        assert {job: client.result(job) for job in jobs} == outcomes


def _wait_until_finished(client: WorkqClient, jobs: list[str]) -> None:
    deadline, left = time.monotonic() + LIMIT_S, jobs
    while left := unfinished(client, left):
        assert time.monotonic() < deadline, f"{len(left)} jobs are not finished"
        time.sleep(0.02)


def _wait_until_evicted(client: WorkqClient, count: int) -> None:
    deadline = time.monotonic() + LIMIT_S
    while (evicted := int(client.blocks("server")[0]["evicted-jobs"])) < count:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert evicted == count


def _results_are_what_was_accepted(
    ledger: Ledger, shown: dict[str, dict[str, str]], outcomes: Outcomes
) -> None:
    for job, block in shown.items():
        completes, fails = ledger.completed.get(job, []), ledger.failed.get(job, [])
        assert int(block["fails"]) == len(fails)
        if block["state"] == COMPLETED:
            assert outcomes[job] == (True, completes[0])
            assert len(completes) == 1
            continue
        assert completes == []
        outcome = outcomes[job]
        assert not isinstance(outcome, str)
        success, result = outcome
        assert not success
        limits = int(block["max-fails"]), int(block["max-attempts"])
        if result:
            assert result in fails  # threads note them in any order
            is_last_fail = len(fails) >= limits[0] or int(block["attempts"]) >= limits[1] > 0
            assert is_last_fail
        else:  # nobody said so: the attempts ran out
            assert int(block["attempts"]) == limits[1]


def _runs_are_answered_once(ledger: Ledger, runs: dict[str, object]) -> None:
    """The worker was told +OK exactly when the client has its result."""
    for job, answer in runs.items():
        accepted = [(True, r) for r in ledger.completed.get(job, [])]
        accepted += [(False, r) for r in ledger.failed.get(job, [])]
        assert accepted == ([] if answer == "-TIMEOUT" else [answer])


def _log_tells_the_same(
    log: list[Record], shown: dict[str, dict[str, str]], outcomes: Outcomes
) -> None:
    anomalies: list[object] = []
    states = replay(log, anomalies.append)
    assert anomalies == []
    assert len(states) == len(shown)
    for job_id, state in states.items():
        assert isinstance(state, FoldedJob)
        assert visible(state, time.time_ns()) is state
        job = _text(job_id)
        assert str(int(state.state)) == shown[job]["state"]
        assert str(state.attempts) == shown[job]["attempts"]
        assert outcomes[job] == (state.state == JobState.COMPLETED, state.result)


def _attempts_are_leases(
    ledger: Ledger, log: list[Record], shown: dict[str, dict[str, str]]
) -> None:
    """Whoever hung up while asking may have been given one job, no more; all others heard of it."""
    started = Counter(_text(r.job_id) for r in log if r.command == Command.START_ATTEMPT)
    unheard = 0
    for job, block in shown.items():
        heard = len(ledger.leases.get(job, []))
        assert started[job] == int(block["attempts"])
        assert heard <= started[job]
        unheard += started[job] - heard
    assert unheard <= len(ledger.hung_up)


def _text(job_id: bytes) -> str:
    text = job_id.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
