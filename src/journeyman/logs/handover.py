"""Handing a log over to the original program: what is changed for it, and what it cannot use.

    hand_over     one log: repair, merge and close it, then read it as the original will
    Finding       something in it that the original does not serve as this program does

        ignores   the original starts, but does something else: a timetable stops
        refuses   the original does not start, or does not serve what is stored

The dialects do the work: ztick/handover.py, workq/handover.py, kestrel/handover.py. Each uses the
steps with which its log is opened, compacted or cleaned, under the lock of the log. So a crash
leaves a log that loads here, and to hand a log over twice changes nothing more.

Some of what clients were promised stands in the ledger, which no original reads: ``facts`` are its
states by family and key.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from journeyman.disk import Disk
from journeyman.folds import ledger
from journeyman.formats.ledger import Record
from journeyman.logs.catalog import KESTREL, LEDGER, WORKQ, ZTICK, Log
from journeyman.logs.holders import names_of_holders
from journeyman.logs.publication import HELD_DIRECTORY
from journeyman.logs.segments import APPEND_LOCK, LEDGER_LOCK, ZtickNames, kestrel_lock_name

ORIGINALS = {ZTICK: "ztick", WORKQ: "workq", KESTREL: "libkestrel"}
MAX_LISTED_NAMES = 10

Facts: TypeAlias = Mapping[ledger.Key, Record]

# These are the actions on a log. A text for each is in docs/cli.md.
REPAIRED = "repaired"
MERGED = "merged"
CLOSED = "closed"
REWRITTEN = "rewritten"


@dataclass(frozen=True, slots=True)
class Finding:
    """``names`` are the first few of ``count``; ``refuses``: see the module."""

    kind: str
    text: str
    count: int
    names: tuple[str, ...] = ()
    refuses: bool = False

    @property
    def is_cut(self) -> bool:
        return len(self.names) < self.count

    def as_dict(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "refuses": self.refuses,
            "count": self.count,
            "names": list(self.names),
            "text": self.text,
        }


@dataclass(frozen=True, slots=True)
class HandedOver:
    """``changes`` were made to the log, ``findings`` are left for a person to decide."""

    changes: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()

    def is_safe(self, *, accept: bool) -> bool:
        """``accept``: what the original ignores has been decided on."""
        return not any(finding.refuses or not accept for finding in self.findings)


def finding(kind: str, text: str, names: Iterable[str], *, refuses: bool = False) -> list[Finding]:
    """One finding about these names, if there are any."""
    every = sorted(names)
    if not every:
        return []
    return [Finding(kind, text, len(every), tuple(every[:MAX_LISTED_NAMES]), refuses)]


def keys_of(facts: Facts, family: str) -> list[str]:
    return [key for of, key in facts if of == family]


def unread(disk: Disk, directory: str) -> Finding:
    """The log cannot be changed because a stream or a lake has not read all of it."""
    names = names_of_holders(disk, directory)
    place = posixpath.join(directory, HELD_DIRECTORY)
    text = f"not merged: {', '.join(names)} must read it first, or its file in {place} be removed"
    return Finding("unread", text, len(names), tuple(names), refuses=True)


def check_unused(disk: Disk, logs: Iterable[Log]) -> None:
    """Raise LogLocked if a server uses one of the logs: then none of them is changed."""
    for log in logs:
        disk.lock(_lock_of(log)).release()


def _lock_of(log: Log) -> str:
    if log.dialect == ZTICK:
        return ZtickNames(log.where).lock
    if log.queue is not None:
        return posixpath.join(log.where, kestrel_lock_name(log.queue))
    return posixpath.join(log.where, LEDGER_LOCK if log.dialect == LEDGER else APPEND_LOCK)


def total_size(disk: Disk, paths: Iterable[str]) -> int:
    return sum(disk.size(path) for path in paths if disk.exists(path))
