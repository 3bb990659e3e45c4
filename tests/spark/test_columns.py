"""Columns have comments, which Spark shows and the page quotes."""

from __future__ import annotations

from scripts.spark_columns import PAGE, page

from journeyman.spark import read, states
from tests.support.spark.written_logs import planned, write_ztick


def test_the_page_has_the_columns_as_they_are():
    """If not: python scripts/spark_columns.py"""
    assert PAGE.read_text() == page()


def test_spark_shows_what_a_column_holds(spark, tmp_path):
    log = write_ztick(tmp_path / "logfile", [planned("a", 1)])
    comment = read(spark, "ztick", log).schema["_position"].metadata["comment"]
    assert comment == states(spark, "ztick", log)["jobs"].schema["_position"].metadata["comment"]
    read(spark, "ztick", log).createOrReplaceTempView("log")
    described = spark.sql("DESCRIBE log").where("col_name = '_position'").collect()
    assert described[0]["comment"] == comment
