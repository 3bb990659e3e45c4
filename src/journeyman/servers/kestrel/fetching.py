"""Items that are not in memory, read from the journals in threads of their own.

    Fetch --> a thread reads --> Fetched, to the writer, which has decided much else meanwhile

What cannot be read now is tried again a little later: nothing is lost by waiting, and only whoever
wants these very items waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from journeyman.engines.kestrel.messages import Fetch, Fetched
from journeyman.errors import LogError
from journeyman.formats.kestrel import ItemPut
from journeyman.servers.core.group_commit import RETRY_S

THREADS = 2


class ItemFetcher:
    """Methods are called on the event loop, and so are the callbacks."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        read_after: Callable[[str, int], tuple[ItemPut, ...]],
        submit: Callable[[Fetched], None],
        *,
        on_unread: Callable[[Exception], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._loop = loop
        self._read_after = read_after
        self._submit = submit
        self._on_unread = on_unread
        self._on_failure = on_failure
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="journeyman-reading")
        self._closed = False

    def fetch(self, fetch: Fetch) -> None:
        if not self._closed:
            reading = self._threads.submit(self._read_after, fetch.queue, fetch.after)
            reading.add_done_callback(
                lambda future: self._loop.call_soon_threadsafe(self._fetched, fetch, future)
            )

    def close(self) -> None:
        self._closed = True
        self._threads.shutdown(wait=True)

    def _fetched(self, fetch: Fetch, future: Future[tuple[ItemPut, ...]]) -> None:
        error = future.exception()
        if error is None:
            self._submit(Fetched(fetch, future.result()))
        elif isinstance(error, OSError | LogError):
            self._on_unread(error)
            self._loop.call_later(RETRY_S, self.fetch, fetch)
        else:
            self._on_failure(error)
