"""Columns have comments, which Spark and a page of the site show."""

from __future__ import annotations

from scripts.columns_reference import page

from journeyman.spark import read, states
from tests.support.spark.written_logs import planned, write_ztick


def test_the_page_of_the_site_has_what_a_column_holds():
    assert (
        "| `_position` | bigint | `_segment << 44 \\| _offset`: the order inside one log |"
        in page()
    )


def test_spark_shows_what_a_column_holds(spark, tmp_path):
    log = write_ztick(tmp_path / "logfile", [planned("a", 1)])
    comment = read(spark, "ztick", log).schema["_position"].metadata["comment"]
    assert comment == states(spark, "ztick", log)["jobs"].schema["_position"].metadata["comment"]
    read(spark, "ztick", log).createOrReplaceTempView("log")
    described = spark.sql("DESCRIBE log").where("col_name = '_position'").collect()
    assert described[0]["comment"] == comment
