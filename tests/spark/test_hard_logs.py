"""Replays of skewed keys and of many tiny logs; tests/kills/cluster.py has the long form."""

from __future__ import annotations

from journeyman.spark import states
from tests.support.spark.hard_logs import skewed_workq, skewed_ztick, tiny_logs


def test_a_key_with_half_of_all_records_is_folded_as_any_other(spark, tmp_path):
    planned = skewed_ztick(tmp_path / "logfile", 5001)
    jobs = states(spark, "ztick", str(tmp_path / "logfile"), splitBytes=20_000)["jobs"]
    assert {row["identifier"]: row["execution_ns"] for row in jobs.collect()} == planned
    expected = skewed_workq(tmp_path / "cmdlog", 4000)
    jobs = states(spark, "workq", str(tmp_path / "cmdlog"), splitBytes=20_000)["jobs"]
    assert {row["key"]: (row["state"], row["attempts"]) for row in jobs.collect()} == expected


def test_many_tiny_logs_are_few_tasks(spark, tmp_path):
    count = tiny_logs(tmp_path, 300)
    jobs = states(spark, "ztick", str(tmp_path))["jobs"]
    assert jobs.groupBy("host").count().where("count = 1").count() == count
    assert jobs.where("identifier = 'a'").count() == count
