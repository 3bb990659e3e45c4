"""Folds of the lake over many rows, against plain Python: more than Arrow takes at a time."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from journeyman.columnar.workq.attempts import NO_TIME
from journeyman.spark.lake import folding, gold
from journeyman.spark.lake.columns import key_hashes
from journeyman.spark.lake.layout import HOUR_NS
from journeyman.spark.lake.parts import Part, Wanted, alone, parts_of, read_part, with_place
from tests.support.report_counts import percentile

ROWS = 70_000


@pytest.mark.kernels
def test_the_last_plan_of_a_job_stands_and_those_before_it_are_replanned():
    chance = Random(1)
    jobs = [f"job.{chance.randrange(3000)}" for _ in range(ROWS)]
    times = [chance.randrange(40) for _ in jobs]
    is_set = [chance.random() < 0.8 for _ in jobs]
    plans = folding.ZtickPlans()
    for begin in range(0, ROWS, 9_000):
        some = slice(begin, begin + 9_000)
        size = len(jobs[some])
        plans.take(
            pa.table(
                {
                    "_log": pa.array(["a|/log"] * size),
                    "kind": pa.array(["set" if each else "remove" for each in is_set[some]]),
                    "identifier": pa.array(jobs[some]),
                    "_position": pa.array(range(begin, begin + size)),
                    "_file": pa.array(["/log"] * size),
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
        )
    no_runs = pa.table(
        {
            **dict.fromkeys(
                ("_log", "job", "rule", "runner", "outcome"), pa.array([], pa.string())
            ),
            **dict.fromkeys(("execution_ns", "started_ns", "ended_ns"), pa.array([], pa.int64())),
        }
    )
    found = folding.ztick_rows(plans.finish(), no_runs)

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
    assert [(row["key"], row["ready_ns"], row["attempt"]) for row in found] == [
        (keys[0], 300, 4),
        (keys[1], 100, 1),
        (keys[0], 100, 2),
        (keys[0], 100, 1),
        (keys[0], 200, 3),
    ]


@pytest.mark.parametrize("most", [50, 2**61])
def test_percentiles_are_those_of_a_sorted_list(most):
    """Lengths that fit into one number with their group, and lengths that do not."""
    chance = np.random.default_rng(2)
    queues = [f"q{number}" for number in chance.integers(0, 3, ROWS)]
    hours = chance.integers(0, 48, ROWS)
    lengths = chance.integers(0, most, ROWS)
    lengths[chance.random(ROWS) < 0.1] = NO_TIME
    timed = pa.table(
        {
            "host": pa.array(["a"] * ROWS),
            "dialect": pa.array(["workq"] * ROWS),
            "queue": pa.array(queues),
            "day": hours // 24,
            "hour": hours,
            "wait": lengths,
            "run": lengths,
            "failed": np.ones(ROWS, np.int64),
        }
    )
    found = {packet.what: packet.rows for packet in gold.add_up(iter([{"timed": timed}]))}
    values: dict[tuple[str, int], list[int]] = {}
    for queue, hour, length in zip(queues, hours.tolist(), lengths.tolist(), strict=True):
        values.setdefault((queue, hour), []).append(length)
    rows = found["gold/latency_hourly"].to_pylist()
    assert len(rows) == len(values)
    for row in rows:
        hour = round(row["hour"].timestamp()) * 10**9 // HOUR_NS
        mine = [length for length in values[row["queue"], hour] if length != NO_TIME]
        assert row["started"] == row["failed"] == len(values[row["queue"], hour])
        for name, rank in (("p50", 0.5), ("p95", 0.95), ("max", 1.0)):
            expected_s = (percentile(mine, rank) or 0) / 1e9
            assert row[f"wait_{name}_s"] == row[f"run_{name}_s"] == expected_s
    assert sum(row["started"] for row in found["gold/latency_daily"].to_pylist()) == ROWS


@pytest.mark.parametrize("of_keys", [False, True])
def test_a_column_that_is_newer_than_a_file_is_null(of_keys: bool, tmp_path: Path):
    file = tmp_path / "date=2026-11-17" / "host=a" / "0.parquet"
    file.parent.mkdir(parents=True)
    columns = {"key": ["a", "b"], "dialect": ["workq", "workq"], "many": [[1], [2, 3]]}
    pq.write_table(pa.table(columns), file)
    (part,) = parts_of("silver/jobs", str(file), of_keys=of_keys)
    wanted = Wanted(key_hashes(pa.array(["a", "b"]))) if of_keys else None
    ((rows, _),) = read_part(part, ["key", "queue", "dialect", "many"], "key", wanted)
    assert rows["many"].to_pylist() == [[1], [2, 3]]
    found = with_place(rows, part).select(["host", "key", "queue", "dialect"]).to_pylist()
    assert [tuple(row.values()) for row in found] == [("a", key, None, "workq") for key in "ab"]


def test_only_parts_that_may_hold_a_wanted_key_are_read():
    hashes = np.array([5, 70, 2**64 - 3], np.uint64)  # the last is -3 in the order of Parquet
    ranges = {(0, 4): False, (0, 5): True, (6, 69): False, (71, 2**62): False, (-9, -1): True}
    parts = [Part("bronze/plans", "p", 0, 1, True, *each) for each in ranges]
    assert [Wanted(hashes).may_be_in(part) for part in parts] == list(ranges.values())
    assert Wanted(hashes).may_be_in(Part("silver/jobs", "p", 0, 1, True))


def test_parts_that_overlap_no_other_are_alone():
    ranges = [(1, 9), (9, 12), (13, 20), (14, 15), (21, 21), (30, 40)]
    parts = [Part("bronze/kestrel", "p", at, 1, False, *each) for at, each in enumerate(ranges)]
    assert {part.group for part in alone(parts)} == {4, 5}
    whole = Part("bronze/kestrel", "q", 0, 1)  # what it holds is not known
    assert alone([*parts, whole]) == set()
