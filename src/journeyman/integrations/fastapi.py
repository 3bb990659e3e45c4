"""Journeyman in FastAPI (and Starlette): connections end with the application.

    api = FastAPI(lifespan=lifespan(app))

    @api.post("/reports/{customer}")
    async def order_report(customer: int) -> str:
        return (await build_report.asend(customer)).id

``lifespan(app, worker=True)`` also runs a worker inside of the web process: handy for development
and for small sites. A worker of its own is `journeyman worker`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from journeyman.tasks import App
from journeyman.tasks.worker import Worker


def lifespan(
    app: App, *, worker: bool = False, concurrency: int = 8
) -> Callable[[Any], AbstractAsyncContextManager[None]]:
    """Return a function for the argument ``lifespan`` of FastAPI or Starlette."""

    @asynccontextmanager
    async def lifespan(_api: Any) -> AsyncIterator[None]:
        running = Worker(app, concurrency=concurrency) if worker else None
        ended = asyncio.ensure_future(running.run()) if running is not None else None
        try:
            yield
        finally:
            if running is not None and ended is not None:
                running.stop()
                await ended
            await app.aclose()

    return lifespan
