"""What does a schedule of a million jobs cost? Memory, SETs, start, listings; on one core.

    python -m bench.schedule_memory

memory    growth of the process for a million planned jobs with identifiers of 20 characters, the
          interpreter's own spare room included
SET       the rate at 1,000 and at 1,000,000 planned jobs, for new jobs and for ones that are there
          already. ``decide`` is the engine alone; ``whole`` is all that a server computes for a
          SET: read the line, decide, encode the record, word the reply. Both schedules take turns,
          500 SETs each, and the median turn counts.
start     the bytes of a log with one record a job -> a Schedule, by way of columnar
longest   the longest single step: a SET while the million comes together, a SET while the queue is
          being tidied, a slice of QUERY, a ``TriggerDue`` that triggers 500 jobs

All times are processor time of this process: what other programs do meanwhile hardly counts.
The bar for SET is on ``whole``: a look-up among a million strings waits for memory several times,
about a microsecond, however little is computed around it.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from resource import getpagesize
from statistics import median
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from bench import report
from journeyman.columnar.ztick import decode as columnar
from journeyman.engines.ztick.engine import ZtickEngine
from journeyman.engines.ztick.job_table import REMOVED, JobListing
from journeyman.engines.ztick.loading import ZtickLoader
from journeyman.engines.ztick.messages import RunFinished, StartRun, TriggerDue
from journeyman.formats.ztick import CODEC, JobSet, Shell, Status
from journeyman.formats.ztick.layout import JOB, JOB_REMOVAL
from journeyman.protocols.ztick.commands import Query, Remove, Set, SetRule
from journeyman.protocols.ztick.parser import ZtickParser
from journeyman.protocols.ztick.replies import ok

MILLION = 1_000_000
FEW = 1_000
A_TURN = 500
TURNS = 200
LOADS = (100_000, MILLION, 5 * MILLION)
START_NS = 1_790_000_000_000_000_000
SPREAD_NS = 10**16  # about four months

MAX_BYTES_A_JOB = 400
MIN_RATIO = 0.8
MAX_LOAD_S = 2.0
MAX_STEP_MS = 5.0

_chance = Random(20_240_328)


def identifier(number: int) -> str:
    return f"svc{number % 100:02d}.task.{number:09d}"


def some_time_ns() -> int:
    return START_NS + _chance.randrange(SPREAD_NS)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * getpagesize()


def sets(numbers: Iterator[int] | range) -> list[Set]:
    return [Set(b"r1", identifier(number), some_time_ns()) for number in numbers]


# -- memory, and the longest SET ------------------------------------------------------------------


def million_sets(longest: dict[str, float]) -> tuple[ZtickEngine, float]:
    """A schedule of a million SETs, and the bytes that each of them holds."""
    schedule = ZtickEngine()
    gc.collect()
    gc.freeze()  # as a server does: the collector need not look at the tables again
    before = resident_bytes()
    for start in range(0, MILLION, A_TURN):
        commands = sets(range(start, start + A_TURN))
        schedule.begin_batch()
        for command in commands:
            step_began = time.thread_time_ns()
            schedule.decide(command, 0)
            note(longest, "SET, growing", step_began)
        schedule.commit_batch()
    gc.collect()
    return schedule, (resident_bytes() - before) / MILLION


def note(longest: dict[str, float], step: str, began_ns: int) -> None:
    took_ms = (time.thread_time_ns() - began_ns) / 1e6
    if took_ms > longest.get(step, 0.0):
        longest[step] = round(took_ms, 2)


# -- SET rates ------------------------------------------------------------------------------------


def decide_all(schedule: ZtickEngine, commands: list[Set]) -> float:
    """Seconds for the engine alone."""
    began = time.process_time()
    schedule.begin_batch()
    for command in commands:
        schedule.decide(command, 0)
    schedule.commit_batch()
    return time.process_time() - began


def answer_all(schedule: ZtickEngine, commands: list[Set]) -> float:
    """Seconds for all that a server computes."""
    lines = [f"r1 SET {c.identifier} {c.execution_ns}\n".encode() for c in commands]
    data = b"".join(lines)
    parser = ZtickParser()
    began = time.process_time()
    schedule.begin_batch()
    log, replies = [], []
    for command in parser.feed(data):
        assert isinstance(command, Set)
        log += [CODEC.encode(record) for record in schedule.decide(command, 0).records]
        replies.append(ok(command.request_id))
    schedule.commit_batch()
    b"".join(log)
    b"".join(replies)
    return time.process_time() - began


def set_rates(few: ZtickEngine, many: ZtickEngine) -> dict[str, dict[str, float]]:
    """SETs a second with few and with many planned jobs, by what is timed."""
    figures = {}
    ways: dict[str, Callable[[ZtickEngine, list[Set]], float]] = {
        "decide": decide_all,
        "whole": answer_all,
    }
    for way, measure in ways.items():
        for kind in ("new", "again"):
            taken: tuple[list[float], list[float]] = ([], [])
            for _ in range(TURNS):
                for schedule, planned, seconds in ((few, FEW, taken[0]), (many, MILLION, taken[1])):
                    if kind == "new":
                        commands = sets(range(planned, planned + A_TURN))
                    else:
                        commands = sets(_chance.randrange(planned) for _ in range(A_TURN))
                    seconds.append(measure(schedule, commands))
                    if kind == "new":
                        for command in commands:
                            schedule.decide(Remove(b"r1", command.identifier), 0)
            rates = [A_TURN / median(seconds) for seconds in taken]
            figures[f"{way}, {kind}"] = {
                "at_1000": round(rates[0]),
                "at_1000000": round(rates[1]),
                "ratio": round(rates[1] / rates[0], 2),
            }
    return figures


# -- other steps ----------------------------------------------------------------------------------


def other_steps(schedule: ZtickEngine, longest: dict[str, float]) -> dict[str, float]:
    """Tidying, QUERY and Due on a million jobs; what they take in all, in seconds."""
    for command in sets(range(MILLION)):
        began_ns = time.thread_time_ns()
        schedule.decide(command, 0)
        note(longest, "SET, tidying", began_ns)
    began_s = time.process_time()
    listing = schedule.decide(Query(b"r1", "svc07."), 0).reply
    assert isinstance(listing, JobListing)
    found = 0
    while True:
        began_ns = time.thread_time_ns()
        rows = next(listing, None)
        note(longest, "QUERY, a slice", began_ns)
        if rows is None:
            break
        found += len(rows)
    assert found == MILLION // 100
    query_s = time.process_time() - began_s

    schedule.decide(SetRule(b"r1", "all", "svc", Shell("true")), 0)
    began_s = time.process_time()
    running: list[StartRun] = []
    waiting = 10_000
    while waiting > 0:
        began_ns = time.thread_time_ns()
        outcome = schedule.decide(TriggerDue(), START_NS + SPREAD_NS)
        note(longest, "Due, 500 jobs", began_ns)
        waiting -= len(outcome.records)
        running += outcome.effects
    runs = 0
    for effect in running:  # grows while it is gone through: each end lets another one start
        outcome = schedule.decide(RunFinished(effect.run_id, True), 0)
        running += outcome.effects
        runs += 1
    assert runs >= 10_000
    return {
        "query_of_1000000_s": round(query_s, 3),
        "run_of_10000_s": round(time.process_time() - began_s, 3),
    }


# -- start ----------------------------------------------------------------------------------------


def log_of(jobs: int) -> bytes:
    encode = CODEC.encode
    return b"".join(
        encode(JobSet(identifier(number), some_time_ns(), Status.PLANNED)) for number in range(jobs)
    )


def load_seconds(log: bytes) -> dict[str, float]:
    """Decode, make Python values, build the Schedule."""
    decode_s = values_s = build_s = 0.0
    loader = ZtickLoader()
    chunks = columnar.iter_batches(log)
    while True:
        began = time.process_time()
        chunk = next(chunks, None)
        decoded = time.process_time()
        decode_s += decoded - began
        if chunk is None:
            break
        columns = job_columns(chunk.batch)
        converted = time.process_time()
        values_s += converted - decoded
        loader.add_jobs(*columns)
        build_s += time.process_time() - converted
    began = time.process_time()
    schedule = loader.finish()
    build_s += time.process_time() - began
    assert schedule.stats().jobs_planned * 40 > len(log)
    return {
        "decode_s": round(decode_s, 3),
        "values_s": round(values_s, 3),
        "build_s": round(build_s, 3),
        "whole_s": round(decode_s + values_s + build_s, 3),
    }


def job_columns(batch: Any) -> tuple[list[str], list[int], list[int]]:
    """The rows about jobs as plain Python; through numpy, which is faster than Arrow at that."""
    about_jobs = batch.filter(
        pc.is_in(batch.column("kind"), pa.array([JOB, JOB_REMOVAL], pa.int8()))
    )
    return (
        about_jobs.column("identifier").to_numpy(zero_copy_only=False).tolist(),
        about_jobs.column("execution_ns").fill_null(0).to_numpy().tolist(),
        about_jobs.column("status").fill_null(REMOVED).to_numpy().tolist(),
    )


# -- the report -----------------------------------------------------------------------------------


def main() -> int:
    report.pin_to_one_core()
    longest: dict[str, float] = {}
    many, bytes_a_job = million_sets(longest)
    ok_so_far = verdict("memory a job", f"{bytes_a_job:.0f} B", bytes_a_job <= MAX_BYTES_A_JOB)

    few = ZtickEngine()
    for command in sets(range(FEW)):
        few.decide(command, 0)
    rates = set_rates(few, many)
    print("\nSETs a second         at 1,000   at 1,000,000   ratio")
    for name, rate in rates.items():
        cells = f"{rate['at_1000']:>10,}{rate['at_1000000']:>15,}{rate['ratio']:>8}"
        good = rate["ratio"] >= MIN_RATIO
        ok_so_far &= verdict(f"{name:<18}", cells, good if name == "whole, new" else None)

    totals = other_steps(many, longest)
    print("\nlongest step, processor time")
    for step, took_ms in longest.items():
        # How many jobs a Due takes is a setting; the others take what they take.
        short = None if step.startswith("TriggerDue") else took_ms <= MAX_STEP_MS
        ok_so_far &= verdict(f"{step:<18}", f"{took_ms:>8} ms", short)
    print(f"\nQUERY of a million jobs {totals['query_of_1000000_s']} s,", end=" ")
    print(f"10,000 jobs due, run and ended {totals['run_of_10000_s']} s")
    del many, few

    print("\nstart, seconds        decode   values    build    whole")
    columnar.decode(log_of(1))  # not counted: it compiles
    loads: dict[str, Any] = {}
    for jobs in LOADS:
        log = log_of(jobs)
        gc.collect()
        took = loads[str(jobs)] = load_seconds(log)
        cells = "".join(f"{seconds:>9}" for seconds in took.values())
        in_time = took["whole_s"] <= MAX_LOAD_S if jobs == MILLION else None
        ok_so_far &= verdict(f"{jobs:<18,}", cells, in_time)

    figures = {
        "bytes_a_job": round(bytes_a_job),
        "set": rates,
        "longest_step_ms": longest,
        "totals": totals,
        "load": loads,
    }
    path = report.write_result("schedule_engine", figures)
    print(f"\nwritten to {path.relative_to(report.ROOT)}")
    return 0 if ok_so_far else 1


def verdict(name: str, value: str, good: bool | None) -> bool:
    """Print a line; ``good`` is None where there is no bar."""
    word = "" if good is None else "  ok" if good else "  MISSED"
    print(f"{name} {value}{word}")
    return good is not False


if __name__ == "__main__":
    sys.exit(main())
