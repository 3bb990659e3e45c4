"""The outside ledger of the fan-out queues: what they were told, and what each reader may be given.

    producers   put items, many sent ahead; every item has a text of its own
    readers     open, confirm, abort, hang up; several connections a reader

Of every item, for every reader of its queue:

    put answered            is delivered at least once
    open                    is delivered to nobody else until it is given back
    confirmed, answered     is not delivered again in this life
    checkpointed            is not delivered again in any life

What was checkpointed is read from the files after a kill. An item that was put and is neither in
the segments for a reader to come, nor confirmed by it, is lost: that is seen in the files already,
and once more in the end, when all is delivered. No sockets and no clock here.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from tests.support.crash.kill_loop import tell_wrong

__all__ = ["FanBook"]


@dataclass(slots=True)
class _ReaderPage:
    """What one reader of a queue has been told."""

    open: set[str] = field(default_factory=set)
    delivered: set[str] = field(default_factory=set)  # ever
    confirm_sent: set[str] = field(default_factory=set)  # ever
    finished: set[str] = field(default_factory=set)  # confirmed and answered, in this life
    gone: set[str] = field(default_factory=set)  # confirmed, and a checkpoint says so


class FanBook:
    """All items of one queue, and its readers. Threads may write into it at the same time."""

    def __init__(self, readers: Iterable[str]) -> None:
        self._lock = threading.Lock()
        self._sent: set[str] = set()
        self._stored: set[str] = set()
        self._pages = {name: _ReaderPage() for name in readers}
        self.redelivered = 0  # in a later life than the first time
        self.wrong: list[str] = []

    @property
    def readers(self) -> list[str]:
        return list(self._pages)

    @property
    def stored(self) -> int:
        return len(self._stored)

    def confirmed(self, reader: str) -> int:
        return len(self._pages[reader].confirm_sent)

    # -- producers --

    def put_sent(self, item: str) -> None:
        with self._lock:
            self._sent.add(item)

    def put_answered(self, item: str) -> None:
        with self._lock:
            self._stored.add(item)

    # -- readers --

    def delivered(self, reader: str, item: str) -> None:
        with self._lock:
            page = self._pages[reader]
            if item not in self._sent:
                self.wrong.append(f"invented: {reader} was given {item!r}")
            if item in page.open:
                self.wrong.append(f"given out twice: {item} is open at {reader}")
            if item in page.finished:
                self.wrong.append(f"came again: {item} was confirmed by {reader} in this life")
            if item in page.gone:
                self.wrong.append(f"came again: a checkpoint of {reader} said {item} is finished")
            self.redelivered += item in page.delivered
            page.open.add(item)
            page.delivered.add(item)

    def given_back(self, reader: str, items: Iterable[str]) -> None:
        """Say so before the server is told."""
        with self._lock:
            self._pages[reader].open.difference_update(items)

    def confirm_sent(self, reader: str, items: Iterable[str]) -> None:
        with self._lock:
            self._pages[reader].confirm_sent.update(items)

    def confirm_answered(self, reader: str, items: Collection[str]) -> None:
        with self._lock:
            page = self._pages[reader]
            page.finished.update(items)
            page.open.difference_update(items)

    # -- after a kill --

    def settle(self, left: Mapping[str, set[str]]) -> None:
        """The files say that this is left for each reader: a new life begins with it."""
        forgotten = sorted(self._pages.keys() - left.keys())
        wrong = self.wrong + [f"lost: the reader {reader}" for reader in forgotten]
        for reader, items in left.items():
            page = self._pages[reader]
            missing = self._stored - items
            lost = missing - page.confirm_sent
            wrong += [f"lost: {item}, which {reader} has not confirmed" for item in sorted(lost)]
            back = items & page.gone
            wrong += [f"came back: {item}, finished by {reader}" for item in sorted(back)]
            invented = items - self._sent
            wrong += [f"invented: {item!r} for {reader}" for item in sorted(invented)]
            page.gone |= missing
            page.open.clear()
            page.finished.clear()
        tell_wrong(wrong)

    def close(self) -> None:
        """All is delivered and confirmed: what was stored and never came is lost."""
        wrong = list(self.wrong)
        for reader, page in self._pages.items():
            never = self._stored - page.delivered
            wrong += [f"lost: {item} was never given to {reader}" for item in sorted(never)]
        tell_wrong(wrong)
