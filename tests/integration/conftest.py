"""The servers that integration tests talk to: real ones, shared by the workers of a test run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.servers.keeper import join


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
