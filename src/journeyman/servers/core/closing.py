"""How a door lets its connections go when the server stops.

finish   no more input is taken; what was received is answered, then each closes itself
drop     those that have not closed within ANSWER_LIMIT_S
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextlib import suppress
from typing import Protocol

ANSWER_LIMIT_S = 5.0  # for the answers that are on their way when the server stops
_LOOK_S = 0.005


class Closable(Protocol):
    def finish(self) -> None: ...

    def drop(self) -> None: ...


async def close_sessions(sessions: Collection[Closable]) -> None:
    """``sessions`` are the open ones: they take themselves out of it when they close."""
    for session in list(sessions):
        session.finish()
    with suppress(TimeoutError):
        await asyncio.wait_for(_all_closed(sessions), ANSWER_LIMIT_S)
    for session in list(sessions):
        session.drop()


async def _all_closed(sessions: Collection[Closable]) -> None:
    while sessions:
        await asyncio.sleep(_LOOK_S)
