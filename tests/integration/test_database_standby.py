"""Servers with their logs in PostgreSQL: one is active, the others stand by and take over."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.crash.takeover_cycles import KINDS, TakeoverCycles
from tests.support.databases import new_database
from tests.support.servers.services import PostgresService


@pytest.fixture(scope="module")
def postgres(tmp_path_factory):
    """One that may be killed."""
    service = PostgresService(tmp_path_factory.mktemp("postgres") / "own")
    service.start()
    yield service
    service.stop()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_server_in_trouble_is_succeeded_and_nothing_is_lost(
    kind: str, postgres: PostgresService, tmp_path: Path
):
    """``python scripts/takeovers.py`` is the same loop for longer."""
    with new_database(postgres.port) as database:
        cycles = TakeoverCycles(tmp_path, postgres.port, database, 1, postgres)
        try:
            cycles.begin()
            cycles.run([kind])
        finally:
            cycles.close()
    assert cycles.tally.kinds == {kind: 1}
    assert cycles.tally.acknowledged >= 60
