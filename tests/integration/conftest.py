"""The servers that integration tests talk to: real ones, shared by the workers of a test run."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.support.servers.keeper import join


@pytest.fixture(scope="session")
def meeting(tmp_path_factory) -> Path:
    """A directory that all workers of a test run know."""
    own: Path = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session")
def redis_port(meeting) -> Iterator[int]:
    share = join("redis", meeting)
    yield share.port
    share.leave()


@pytest.fixture(scope="session")
def rabbit_port(meeting) -> Iterator[int]:
    share = join("rabbitmq", meeting)
    yield share.port
    share.leave()


@pytest.fixture(scope="session")
def postgres_port(meeting) -> Iterator[int]:
    share = join("postgres", meeting)
    yield share.port
    share.leave()


@pytest.fixture
def address(postgres_port: int) -> Iterator[str]:
    """Of a PostgreSQL database that only this test uses."""
    server = f"host=127.0.0.1 port={postgres_port} user=journeyman"
    name = f"t{os.getpid()}_{threading.get_ident()}"
    with psycopg.connect(f"{server} dbname=postgres", autocommit=True) as connection:
        connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        connection.execute(f"CREATE DATABASE {name}")
        yield f"{server} dbname={name}"
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
