"""The functions that docs/python-api.md promises, called as it shows them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from journeyman.client import Shell
from journeyman.errors import UsageError
from journeyman.formats import ztick
from journeyman.spark import attempts, read, send, states, write
from tests.support.spark.histories import busy_log
from tests.support.spark.written_logs import write_workq

RECORDS: list[ztick.Record] = [
    ztick.RuleSet("rule", "mail.", Shell("true")),
    ztick.JobSet("mail.1", 10, ztick.Status.PLANNED),
    ztick.JobSet("mail.1", 10, ztick.Status.EXECUTED),
]


@pytest.fixture
def log(tmp_path: Path) -> str:
    path = tmp_path / "logfile"
    path.write_bytes(b"".join(map(ztick.CODEC.encode, RECORDS)))
    return str(path)


def test_records_states_and_attempts_of_one_log(spark: SparkSession, log: str):
    tables = states(spark, "ztick", log)

    assert read(spark, "ztick", log).count() == len(RECORDS)
    assert [row.status for row in tables["jobs"].collect()] == ["executed"]
    assert [row.runner for row in tables["rules"].collect()] == ["shell"]
    assert [row.outcome for row in attempts(spark, "ztick", log).collect()] == ["executed"]


def test_rows_that_were_read_can_be_written_again(spark: SparkSession, log: str, tmp_path: Path):
    write(read(spark, "ztick", log), "ztick", str(tmp_path / "copy"), seals="false")

    assert (tmp_path / "copy").read_bytes() == Path(log).read_bytes()


def test_what_cannot_work_fails_before_anything_is_sent(spark: SparkSession, log: str):
    with pytest.raises(UsageError):
        send(read(spark, "ztick", log), "kestrel", "127.0.0.1:1")


def test_the_notebook_on_spark_runs(spark, tmp_path, monkeypatch):
    records = busy_log(7)
    write_workq(tmp_path / "workq", records)
    monkeypatch.setenv("DATA", str(tmp_path))
    notebook = Path(__file__).parents[2] / "examples" / "spark.ipynb"
    said: dict[str, Any] = {}
    for cell in json.loads(notebook.read_text())["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), said)
    assert said["spark"] is spark
    assert sum(row["count"] for row in said["kinds"].collect()) == len(records)
    assert said["run_times"].count() > 0
    assert said["damage"].count() == 0
