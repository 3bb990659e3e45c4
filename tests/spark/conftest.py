"""One Spark session for the whole lane.

Before it starts, Spark's start archive is built if it is not there: the programs that tests of this
lane start and kill start in half the time with it.

With ``-n 2 --dist loadgroup`` the tests of this session run in one process, and those that start
programs of their own beside them in another.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from journeyman.spark.launch import prepare_launch
from journeyman.spark.session import build_session
from journeyman.spark.start_archive import build_archive


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        uses_session = "spark" in getattr(item, "fixturenames", ())
        item.add_marker(pytest.mark.xdist_group("session" if uses_session else "programs"))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    build_archive(prepare_launch(on_this_machine=True))
    session = build_session("local[2]", {"spark.sql.shuffle.partitions": "2"}, "tests", small=True)
    yield session
    session.stop()
