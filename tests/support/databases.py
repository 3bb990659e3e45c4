"""Fixtures: databases of a real PostgreSQL, which the workers of a test run share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest

from tests.support.servers.keeper import join

_numbers = count()


@pytest.fixture(scope="session")
def meeting(tmp_path_factory) -> Path:
    """A directory that all workers of a test run know."""
    own: Path = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session")
def postgres_port(meeting) -> Iterator[int]:
    share = join("postgres", meeting)
    yield share.port
    share.leave()


@pytest.fixture
def address(postgres_port: int) -> Iterator[str]:
    """Of a PostgreSQL database that only this test uses, as libpq takes it."""
    with new_database(postgres_port) as name:
        yield f"host=127.0.0.1 port={postgres_port} user=journeyman dbname={name}"


@pytest.fixture
def data_address(postgres_port: int) -> Iterator[str]:
    """The same as the address of a data directory."""
    with new_database(postgres_port) as name:
        yield f"postgresql://journeyman@127.0.0.1:{postgres_port}/{name}"


@contextmanager
def new_database(port: int) -> Iterator[str]:
    import psycopg  # most lanes do without it

    name = f"t{os.getpid()}_{next(_numbers)}"

    def run(*statements: str) -> None:
        server = f"host=127.0.0.1 port={port} user=journeyman dbname=postgres"
        with psycopg.connect(server, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement)

    run(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)", f"CREATE DATABASE {name}")
    yield name
    run(f"DROP DATABASE {name} WITH (FORCE)")
