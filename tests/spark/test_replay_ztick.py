"""Replay of ztick on Spark is the local fold, row for row."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import strategies as st

from journeyman.folds import ztick as fold
from journeyman.formats.ztick import (
    CODEC,
    Amqp,
    Awf,
    Direct,
    Http,
    JobRemoved,
    JobSet,
    Redis,
    RuleRemoved,
    RuleSet,
    Shell,
    Status,
)
from journeyman.spark import replay
from journeyman.spark.replay import STATE_TABLES
from tests.support.columnar_twins import runner_fields
from tests.support.effort import cases
from tests.support.spark.replay_world import by_host, cut, gathered, mangled, read_log

GOLDEN = Path("tests/golden/data/ztick")
RUNNERS = ("shell", "amqp", "direct", "awf", "http", "redis")

TEXT = st.sampled_from(["a", "b", "c", "", "ä", "x" * 40, "job.1"])
LOGS = st.lists(
    st.one_of(
        st.builds(JobSet, TEXT, st.integers(-(2**63), 2**63 - 1), st.sampled_from(Status)),
        st.builds(JobSet, TEXT, st.integers(0, 3), st.sampled_from(Status)),
        st.builds(
            RuleSet,
            TEXT,
            TEXT,
            st.one_of(
                st.builds(Shell, TEXT),
                st.builds(Amqp, TEXT, TEXT, TEXT),
                st.builds(Direct, TEXT, st.lists(TEXT, max_size=3).map(tuple)),
                st.builds(Awf, TEXT, st.lists(TEXT, max_size=3).map(tuple)),
                st.builds(Http, TEXT, TEXT),
                st.builds(Redis, TEXT, TEXT, TEXT),
            ),
        ),
        st.builds(JobRemoved, TEXT),
        st.builds(RuleRemoved, TEXT),
    ),
    max_size=40,
)
FILES = ("logfile.compressed", "logfile.to_compress", "logfile")


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("ztick")
    random = Random(4)
    for number, records in enumerate(gathered(LOGS, cases(40))):
        directory = root / f"host={number}"
        directory.mkdir()
        for name, part in zip(FILES, cut(records, 3, random), strict=True):
            data = b"".join(map(CODEC.encode, part))
            if name == "logfile" or data:
                (directory / name).write_bytes(mangled(data, random))
    for log in GOLDEN.glob("*.log"):
        (root / f"host={log.stem}").mkdir()
        (root / f"host={log.stem}" / "logfile").write_bytes(log.read_bytes())
    return root


def expected(root: Path) -> Iterator[tuple[str, list[dict[str, Any]], list[dict[str, Any]]]]:
    """Host, jobs and rules, in log order."""
    for directory in root.iterdir():
        found = read_log((directory / name, CODEC) for name in FILES)
        log = str(directory / "logfile")
        jobs, rules = fold.schedule(fold.replay(found.records))
        yield (
            directory.name.partition("=")[2],
            [
                {"_log": log, **found.place(job), "identifier": job.identifier}
                | {"execution_ns": job.execution_ns, "status": job.status.name.lower()}
                for job in jobs.values()
            ],
            [
                {"_log": log, **found.place(rule), "identifier": rule.identifier}
                | {"pattern": rule.pattern, "runner": RUNNERS[runner_fields(rule.runner)[0]]}
                | {"runner_args": runner_fields(rule.runner)[1]}
                for rule in rules.values()
            ],
        )


def in_log_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: row["_position"])


@pytest.fixture(scope="module")
def replayed(spark, logs):
    """Jobs and rules of logs that are split anywhere."""
    held = replay.packets(spark, "ztick", str(logs), splitBytes=1511).persist()
    yield {name: by_host(frame) for name, frame in replay.tables_of(held, "ztick").items()}
    held.unpersist()


def test_jobs_and_rules_are_those_of_the_fold(replayed, logs):
    hosts = 0
    for host, jobs, rules in expected(logs):
        assert in_log_order(replayed["jobs"].get(host, [])) == jobs, host
        assert in_log_order(replayed["rules"].get(host, [])) == rules, host
        hosts += bool(jobs)
    assert hosts > 40  # equal identifiers in many logs


def test_columns_are_those_of_the_documents(spark, logs):
    frames = replay.states(spark, "ztick", str(logs))
    for name, table in STATE_TABLES["ztick"].items():
        assert frames[name].columns == [*table.schema.names, "host"]
