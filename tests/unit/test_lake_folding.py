"""Folds of the lake over many rows, against plain Python: more than Arrow takes at a time."""

from __future__ import annotations

from random import Random

import pyarrow as pa

from journeyman.spark.lakes import folding

ROWS = 70_000


def test_the_last_plan_of_a_job_stands_and_those_before_it_are_replanned():
    chance = Random(1)
    jobs = [f"job.{chance.randrange(3000)}" for _ in range(ROWS)]
    times = [chance.randrange(40) for _ in jobs]
    is_set = [chance.random() < 0.8 for _ in jobs]
    parts = []
    for begin in range(0, ROWS, 9_000):
        some = slice(begin, begin + 9_000)
        size = len(jobs[some])
        records = pa.table(
            {
                "_log": pa.array(["a|/log"] * size),
                "kind": pa.array(["set" if each else "remove" for each in is_set[some]]),
                "identifier": pa.array(jobs[some]),
                "_position": pa.array(range(begin, begin + size)),
                "_file": pa.array(["/log"] * size),
                "_length": pa.array([9] * size),
                "execution_ns": pa.array(
                    [
                        time if each else None
                        for time, each in zip(times[some], is_set[some], strict=True)
                    ],
                    pa.int64(),
                ),
                "status": pa.array(["planned" if each else None for each in is_set[some]]),
                "time": pa.nulls(size, pa.timestamp("us", "UTC")),
            }
        )
        parts.append(folding.plans_of(records))
    no_runs = pa.table(
        {
            **dict.fromkeys(
                ("_log", "job", "rule", "runner", "outcome", "detail"), pa.array([], pa.string())
            ),
            **dict.fromkeys(("execution_ns", "started_ns", "ended_ns"), pa.array([], pa.int64())),
        }
    )
    found = folding.ztick_rows(pa.concat_tables(parts), no_runs)

    last: dict[tuple[str, int | None], int] = {}
    for at, (job, time, each) in enumerate(zip(jobs, times, is_set, strict=True)):
        last[job, time if each else None] = at
    by_job: dict[str, list[tuple[int, int | None]]] = {}
    for (job, planned), at in last.items():
        by_job.setdefault(job, []).append((at, planned))
    expected = []
    for job, groups in by_job.items():
        groups.sort()
        following = [planned for _, planned in groups[1:]]
        for (_, planned), after in zip(groups, [*following, "nothing"], strict=True):
            if planned is not None:
                word = "removed" if after is None else "replanned"
                expected.append((job, planned, "planned" if after == "nothing" else word))
    rows = zip(*(found[name].to_pylist() for name in ("key", "ready_ns", "outcome")), strict=True)
    assert sorted(rows) == sorted(expected)
    assert folding.jobs_of(found).num_rows == len({job for job, *_ in expected})


def test_retries_of_an_occurrence_are_attempts_of_it_one_after_another():
    keys = ["t@2026-11-17T02:00:00+01:00", "u@2026-11-17T02:00:00+01:00"]
    listed = [  # key, planned for, attempt of that plan, position of the plan
        (keys[0], 300, 1, 9),  # a retry
        (keys[1], 100, 1, 2),
        (keys[0], 100, 2, 1),  # cut off and run again
        (keys[0], 100, 1, 1),
        (keys[0], 200, 1, 5),  # a retry
        ("no occurrence", 100, 1, 3),
    ]
    rows = pa.Table.from_pylist(
        [
            {"_log": "a|/log", "dialect": "ztick", "key": key, "ready_ns": ready, "life": None}
            | {"attempt": attempt, "position": position, "outcome": "failed"}
            for key, ready, attempt, position in listed
        ]
    )
    found = folding.firings_of(folding.silver_attempts(rows)).to_pylist()
    assert sorted((row["key"], row["attempt"], row["ready_ns"]) for row in found) == [
        (keys[0], 1, 100),
        (keys[0], 2, 100),
        (keys[0], 3, 200),
        (keys[0], 4, 300),
        (keys[1], 1, 100),
    ]
    assert {(row["timetable"], row["occurrence"]) for row in found} == {
        ("t", "2026-11-17T02:00:00+01:00"),
        ("u", "2026-11-17T02:00:00+01:00"),
    }
