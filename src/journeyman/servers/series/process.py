"""The process that counts figures over time (child.py), as the server starts it.

It is started a little after the server is ready, or for the first question: a start has other
things to do, and a server that lives for a second needs no figures. It runs at a lower priority
than the server, which it must not slow down; then its figures come later.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from journeyman.config import Persistence, Settings, WorkqPersistence
from journeyman.disk import absolute
from journeyman.errors import UsageError
from journeyman.servers.core.follower_process import FollowerProcess
from journeyman.servers.core.helper_process import Helper, HelperFailed
from journeyman.servers.core.own_files import own_directory
from journeyman.servers.core.server_log import ServerLog
from journeyman.servers.ztick.runs import history_directory

SERIES_DIRECTORY: Final = "series"
START_S: Final = 3.0  # after the server is ready
NICENESS: Final = 10
_HELPER: Final = Helper(f"{__package__}.child", niceness=NICENESS)


class SeriesProcess:
    """All methods are called on the event loop."""

    def __init__(self, settings: Settings, messages: ServerLog) -> None:
        workq, database = settings.workq, settings.database
        has_log = workq.enabled and workq.persistence is WorkqPersistence.LOG
        has_runs = settings.history.enabled and database.persistence is Persistence.LOGFILE
        log = absolute(workq.cmdlog_path) if has_log else ""
        runs = absolute(history_directory(settings.history, database)) if has_runs else ""
        directory = own_directory(settings, SERIES_DIRECTORY)
        self._messages = messages
        self._process = FollowerProcess(
            _HELPER, "figures over time", "series", messages, "open_series", directory, log, runs
        )
        self._timer: asyncio.TimerHandle | None = None
        self._opening: asyncio.Task[None] | None = None

    def follow(self) -> None:
        """The logs are recovered: they may be read."""
        self._timer = asyncio.get_running_loop().call_later(START_S, self._start)

    async def ask(self, function: str, *arguments: Any) -> Any:
        """HelperFailed if there is no answer."""
        if self._timer is None:
            raise HelperFailed("the server is starting")
        try:
            await asyncio.shield(self._start())
        except UsageError as error:
            raise HelperFailed(str(error)) from None
        return await self._process.ask(function, *arguments)

    async def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._opening is not None:
            await asyncio.wait([self._opening])
        await self._process.stop()

    def _start(self) -> asyncio.Task[None]:
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self._open())
            self._opening.add_done_callback(lambda done: done.exception())
        return self._opening

    async def _open(self) -> None:
        try:
            await self._process.open()
        except UsageError as error:
            self._messages.warn(f"there are no figures over time: {error}")
            raise
        self._process.follow()
