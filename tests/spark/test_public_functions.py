"""The functions that docs/python-api.md promises, called as it shows them."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from journeyman.client import Shell
from journeyman.errors import UsageError
from journeyman.formats import ztick
from journeyman.spark import attempts, read, send, states, write

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
