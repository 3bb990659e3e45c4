"""The example of a declarative pipeline runs, and its tables have the records of the log."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from pyarrow.parquet import read_table

from journeyman.spark.session.java import prepare_launch, spark_home
from tests.support.spark.histories import busy_log
from tests.support.spark.written_logs import write_workq

EXAMPLE = Path(__file__).parents[2] / "examples" / "declarative"
LIBRARIES = Path(sys.prefix) / "connect"  # the dependency group of this name; see the Makefile
# Spark Connect takes port 15002 otherwise, which another run on this machine may hold.
ANY_PORT = {"SPARK_TESTING": "1"}


def test_a_declarative_pipeline_reads_a_log(tmp_path):
    records = busy_log(7)
    log = write_workq(tmp_path / "workq", records)
    shutil.copytree(EXAMPLE, tmp_path / "pipeline")
    spec = tmp_path / "pipeline" / "spark-pipeline.yml"
    text = spec.read_text().replace("/tmp/journeyman-declarative", str(tmp_path / "storage"))
    spec.write_text(text.replace("/var/lib/journeyman/workq", log))
    prepare_launch(on_this_machine=False)
    program = [f"{spark_home()}/bin/spark-pipelines", "--remote", "local[2]"]
    done = subprocess.run(
        [*program, "run", "--spec", str(spec)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(LIBRARIES), "SPARK_LOCAL_IP": "127.0.0.1", **ANY_PORT},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert read_table(tmp_path / "spark-warehouse" / "records").num_rows == len(records)
    ended = read_table(tmp_path / "spark-warehouse" / "ended").to_pylist()
    assert sum((row["complete"] or 0) + (row["fail"] or 0) for row in ended) > 0
