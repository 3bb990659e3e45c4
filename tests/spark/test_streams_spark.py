"""A stream in a real session: what Spark makes of the offsets, the limits and the rows."""

from __future__ import annotations

from journeyman.spark import register
from tests.support.spark.stream_driver import open_kestrel, put_items, ztick_bytes


def test_available_now_gives_the_rows_of_a_batch_read_in_limited_batches(spark, tmp_path):
    register(spark)
    for host in "ab":
        (tmp_path / f"host={host}").mkdir()
        (tmp_path / f"host={host}" / "logfile").write_bytes(ztick_bytes(*range(1000, 1400)))
    one_batch = len(ztick_bytes(*range(1000, 1200))) + 3
    stream = spark.readStream.format("ztick").option("maxBytesPerTrigger", str(one_batch))
    writer = (
        stream.load(str(tmp_path))
        .writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "_checkpoint"))
        .option("path", str(tmp_path / "_out"))
    )
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    counts = [each.numInputRows for each in query.recentProgress if each.numInputRows]
    assert counts == [200, 200, 200, 200]

    streamed = spark.read.parquet(str(tmp_path / "_out")).drop("_segment")
    read = spark.read.format("ztick").load(str(tmp_path)).select(streamed.columns)
    assert streamed.count() == 800
    assert streamed.exceptAll(read).count() == 0

    with (tmp_path / "host=b" / "logfile").open("ab") as file:
        file.write(ztick_bytes(1400))
    again = writer.trigger(availableNow=True).start()
    again.awaitTermination()
    assert sum(each.numInputRows for each in again.recentProgress) == 1


def test_a_narrow_schema_and_kinds_hold_for_streams_too(spark, tmp_path):
    register(spark)
    with open_kestrel(tmp_path) as journal:
        put_items(journal, *range(20))
    stream = spark.readStream.format("kestrel").schema("key string, data binary")
    query = (
        stream.options(payloads=True, kinds="PUT")
        .load(str(tmp_path))
        .writeStream.format("memory")
        .queryName("items")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    rows = spark.table("items").collect()
    assert sorted((int(row["key"]), bytes(row["data"])) for row in rows) == [
        (number + 1, b"item %d" % number) for number in range(20)
    ]
