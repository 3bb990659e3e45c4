"""The session that java.py lets Java remember: a little of everything.

    python -m journeyman.spark.session.start_training JAVA_OPTION...

What commands do, on logs of a few records: read, replay, show, write. The more of Spark is used
here, the less of it a command has to load by itself.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

from journeyman.formats import kestrel, workq, ztick
from journeyman.formats.timed_frame import Instant
from journeyman.spark.answers import answer_lines, plan_of, write_answer
from journeyman.spark.replay import STATE_TABLES, count_damages, packets, tables_of, write_states
from journeyman.spark.session import TINY_SETTINGS, build_session

NOW_NS = 1_800_000_000_000_000_000
RECORDS = 100


def practise(spark: SparkSession, directory: Path) -> None:
    """Do what commands do, on next to nothing: queries compiled, and queries interpreted."""
    logs = _small_logs(directory)
    _do_a_little(spark, logs, directory / "compiled")
    for name, value in TINY_SETTINGS.items():
        spark.conf.set(name, value)
    _do_a_little(spark, {"ztick": logs["ztick"]}, directory / "interpreted")


def _do_a_little(spark: SparkSession, logs: dict[str, Path], directory: Path) -> None:
    for dialect, path in logs.items():
        places = {name: str(directory / dialect / name) for name in STATE_TABLES[dialect]}
        write_states(packets(spark, dialect, str(path)), dialect, places)
        held = packets(spark, dialect, str(path)).persist()
        count_damages(held)
        for name, table in tables_of(held, dialect).items():
            written = str(directory / "written" / dialect / name)
            write_answer(table, written, "parquet")
            frame = spark.read.parquet(written)
            frame.createOrReplaceTempView(f"{dialect}_{name}")
            plan_of(frame)
            for format_ in ("json", "csv", "table"):
                list(answer_lines(frame, format_))
    counts = "SELECT status, count(*) FROM ztick_jobs GROUP BY ALL ORDER BY 2 DESC LIMIT 5"
    spark.sql(counts).collect()


def _small_logs(directory: Path) -> dict[str, Path]:
    ztick_log = directory / "logfile"
    ztick_log.write_bytes(b"".join(map(ztick.CODEC.encode, _ztick_records())))
    workq_log = directory / "workq"
    workq_log.mkdir()
    data = workq.HEADER + b"".join(map(workq.CODEC.encode, _workq_records()))
    (workq_log / "000000001.log").write_bytes(data)
    journal = directory / "kestrel"
    journal.mkdir()
    puts = [kestrel.ItemPut(at + 1, NOW_NS // 10**6, None, 0, b"item") for at in range(RECORDS)]
    data = kestrel.WRITER_MAGIC + b"".join(map(kestrel.WRITER.encode, puts))
    (journal / "jobs.1").write_bytes(data)
    data = kestrel.READER_MAGIC + kestrel.READER.encode(kestrel.ReadHead(RECORDS // 2))
    (journal / "jobs.read.").write_bytes(data)
    return {"ztick": ztick_log, "kestrel": journal, "workq": workq_log}


def _ztick_records() -> list[ztick.Record]:
    jobs = [ztick.JobSet(f"job.{at}", NOW_NS, ztick.Status.PLANNED) for at in range(RECORDS)]
    return [ztick.RuleSet("rule", "job.", ztick.Shell("true")), *jobs, ztick.JobRemoved("job.1")]


def _workq_records() -> list[workq.Record]:
    now = Instant(NOW_NS)
    ids = [at.to_bytes(16, "big") for at in range(RECORDS)]
    added = [workq.JobAdded(now, each, "q", 9, 9, 0, 1, 1, b"payload", None, now) for each in ids]
    return [*added, workq.JobEvent(now, ids[0], workq.Command.START_ATTEMPT)]


def main() -> None:
    options = " ".join(sys.argv[1:])
    conf = {"spark.driver.extraJavaOptions": options}
    spark = build_session("local[2]", conf, "training", small=True)
    with tempfile.TemporaryDirectory(prefix="journeyman-") as directory:
        practise(spark, Path(directory))
    spark.stop()


if __name__ == "__main__":
    main()
