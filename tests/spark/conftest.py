"""One Spark session for all tests of a process.

Before it starts, Spark's start archive is built if it is not there: the programs that tests of this
lane start and kill start in half the time with it.

``make test`` runs the lane in two processes, file by file: much of it is waiting for programs.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from journeyman.spark.launch import prepare_launch
from journeyman.spark.session import build_session
from journeyman.spark.start_archive import build_archive


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    build_archive(prepare_launch(on_this_machine=True))
    session = build_session("local[2]", {"spark.sql.shuffle.partitions": "2"}, "tests", small=True)
    yield session
    session.stop()
