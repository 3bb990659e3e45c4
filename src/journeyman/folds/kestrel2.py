"""The fold of a journal of kestrel 1.x and 2.x: operations on one queue -> what is left in it.

    items    [head ... tail]            ADD appends; REMOVE drops the head
    open     xid -> item                REMOVE_TENTATIVE opens the head; CONFIRM_REMOVE drops it,
                                        UNREMOVE returns it to the front
    left     open items, by their ids, then the items: no client is left to confirm them

A queue is one key: its operations say "the head" and not which item. Where some of them were lost
(``damaged``), later ones would take the wrong items: so from there on items are only added, and
none is removed. Delivering twice is better than never.

An operation that finds nothing (a REMOVE of an empty queue, an id that is not open) changes nothing
and is counted. An item that was added with an id and opened by a later server under another one is
found by either, unless both are open.

What an item is, besides its times, is up to the caller: its data, or where they are.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from journeyman.formats import kestrel2
from journeyman.units import MS_PER_S

T = TypeVar("T")
_MAX_XID = 2**31 - 1


class OldItem(NamedTuple, Generic[T]):
    """An item of a queue; None: its add time is not known, it never expires, it had no id."""

    add_time_ms: int | None
    expire_time_ms: int | None
    content: T
    xid: int | None = None


@dataclass(slots=True)
class OldQueue(Generic[T]):
    """One queue. ``apply`` changes it."""

    items: deque[OldItem[T]] = field(default_factory=deque)
    open: dict[int, OldItem[T]] = field(default_factory=dict)
    last_xid: int = 0
    strays: int = 0  # operations that found nothing
    kept: int = 0  # removals that were not done, since operations before them were lost
    is_damaged: bool = False
    _opened_as: dict[int, int] = field(default_factory=dict)  # the id it was added with -> its own

    def apply(self, record: kestrel2.Record, content: T) -> None:
        """``content`` is that of the item which the record adds; of others it is not looked at."""
        if isinstance(record, kestrel2.Continue):
            self._finish(record.xid)
        if isinstance(record, kestrel2.OldAdd):
            expires = record.expires_s * MS_PER_S or None
            self.items.append(OldItem(None, expires, content))
        elif isinstance(record, kestrel2.AddItem | kestrel2.AddWithXid | kestrel2.Continue):
            xid = record.xid if isinstance(record, kestrel2.AddWithXid) else None
            expires = record.expire_time_ms or None
            self.items.append(OldItem(record.add_time_ms, expires, content, xid))
        elif isinstance(record, kestrel2.SaveXid):
            self.last_xid = record.xid
        elif isinstance(record, kestrel2.ConfirmRemove):
            self._finish(record.xid)
        elif isinstance(record, kestrel2.Unremove):
            xid = self._find(record.xid)
            if xid is not None:
                self.items.appendleft(self._close(xid))
        else:
            self._take_head(record)

    def damaged(self) -> None:
        """Operations were lost here."""
        self.is_damaged = True

    def left(self) -> list[OldItem[T]]:
        """Everything that is not finished, first what is to be given out first."""
        return [*(self.open[xid] for xid in sorted(self.open)), *self.items]

    def _take_head(self, record: kestrel2.RemoveItem | kestrel2.RemoveTentative) -> None:
        if self.is_damaged:
            self.kept += 1
            return
        item = self.items.popleft() if self.items else None
        self.strays += item is None
        if isinstance(record, kestrel2.RemoveItem):
            return
        xid = self._next_xid() if record.xid is None else record.xid
        if item is not None:
            if xid in self.open:  # of two one would be forgotten
                self.open[self._next_xid()] = self.open.pop(xid)
            self.open[xid] = item
            if item.xid is not None:
                self._opened_as[item.xid] = xid
        self.last_xid = xid

    def _finish(self, xid: int) -> None:
        if self.is_damaged:
            self.kept += 1
            return
        found = self._find(xid)
        if found is not None:
            self._close(found)

    def _close(self, opened: int) -> OldItem[T]:
        item = self.open.pop(opened)
        if item.xid is not None and self._opened_as.get(item.xid) == opened:
            del self._opened_as[item.xid]
        return item

    def _find(self, xid: int) -> int | None:
        """Under which id this one is open; None if it is not, or if it may mean two items."""
        found = {opened for opened in (xid, self._opened_as.get(xid, xid)) if opened in self.open}
        self.strays += len(found) != 1
        return found.pop() if len(found) == 1 else None

    def _next_xid(self) -> int:
        xid = self.last_xid
        while True:
            xid = xid + 1 if xid < _MAX_XID else -_MAX_XID - 1
            if xid != 0 and xid not in self.open:
                return xid
