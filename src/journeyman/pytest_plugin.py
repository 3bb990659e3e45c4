"""A pytest plugin, found by itself when Journeyman is installed: the fixture journeyman_in_memory.

def test_signup(journeyman_in_memory):
    queue = journeyman_in_memory(app)
    signup("a@b.c")
    queue.assert_sent(send_mail, "a@b.c")
    queue.run_all()
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from journeyman.testing.in_memory import InMemory


@pytest.fixture
def journeyman_in_memory() -> Iterator[Callable[..., InMemory]]:
    """Call it with an App: jobs stay in this process until the test ends."""
    from journeyman.testing.in_memory import InMemory  # not in every run of pytest

    made: list[InMemory] = []

    def in_memory(app: Any, **options: Any) -> InMemory:
        made.append(InMemory(app, **options))
        return made[-1]

    yield in_memory
    for each in reversed(made):
        each.close()
