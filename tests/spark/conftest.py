"""One Spark session for all tests of a process.

After `journeyman pipeline prepare`, which `make setup` runs, the programs that tests of this lane
start and kill start in half the time.

``make test`` runs the lane in two processes, file by file, beside the other tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from journeyman.spark.session import build_session

HERE = Path(__file__).parent


TIMEOUT_S = 1200  # a first query takes ten seconds of a quiet machine, and much more of a busy one
# They start first, so that no process is left alone with one at the end.
LONGEST = (
    *("object_store", "report_figures", "lake", "streams_killed", "submit", "audit", "demo"),
    *("history", "maintenance", "connect", "lake_killed"),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ranks = {HERE / f"test_{name}.py": rank for rank, name in enumerate(LONGEST)}
    items.sort(key=lambda item: ranks.get(item.path, len(ranks)))
    for item in items:
        if item.path.is_relative_to(HERE) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    settings = {"spark.sql.shuffle.partitions": "2"}
    session = build_session("local[2]", settings, "tests", small=True, tiny=True)
    yield session
    session.stop()


@pytest.fixture(scope="module")
def compiled(spark: SparkSession) -> Iterator[None]:
    """Queries of a module compiled, as they are for logs that are not tiny."""
    codegen = {"wholeStage": "true", "factoryMode": "FALLBACK"}
    yield from _set(spark, {f"spark.sql.codegen.{name}": each for name, each in codegen.items()})


@pytest.fixture(scope="module")
def planned_once(spark: SparkSession) -> Iterator[None]:
    """Queries of a module planned once, not again after every stage.

    For large queries over a few records: planning again takes longer than running them.
    """
    yield from _set(spark, {"spark.sql.adaptive.enabled": "false"})


def _set(spark: SparkSession, settings: dict[str, str]) -> Iterator[None]:
    before = {name: spark.conf.get(name) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    yield
    for name, old in before.items():
        spark.conf.set(name, old or "")
