"""What a whole workq log says of each job id, as far as it decides which records may go.

    place       1          2      3       4          5          6      7
    record      add a1     start  delete  add a2     complete   ...
    trace       adds (1, 4)               fresh 4    expires, ended of what began at 4

A record may go when the state that anyone can still see stays the same without it, at every moment
from ``as_of_ns`` on, in every state that a crash can leave on the way. Two facts carry this:

 - A *fresh* add, one created after every record of its id before it was logged, begins anew: no
   record before it has a say, be it there or not. (The fold takes such records for stale.) Any
   other add may take over orphans, or be the same add once more; then all of it stays together.
 - An id whose adds have all expired shows nothing, whichever of its records are left.

So a record may go when both hold:

    1. no add of its id stands before it         (an add goes before what follows it)
    2. it stands before the last fresh add,
       or the id is over: it has no add; or one, fresh and ended by a delete or expire;
       or all adds from the last fresh one on have expired

The first makes the order safe: while an add is in the log, so is all that follows it, above all
its delete. What is left behind by an add that went is an orphan, which the fold sets aside and the
original ignores; and the original never meets a second add of a job whose delete is gone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from journeyman.folds.workq import FoldedJob, expires_ns
from journeyman.formats.framing import Entry
from journeyman.formats.workq import Command, JobAdded, Record

# How long ago a job must have ended for its add to go. An add of the same id that is on its way at
# that moment, created but not yet logged, must not find the delete without the add it belongs to.
SETTLING_NS = 60 * 1_000_000_000

_OFFSET_BITS = 40  # no segment is as large as 1 TiB
_NO_PLACE = -1
_ENDS = (Command.DELETE, Command.EXPIRE)


def place_of(segment: int, offset: int) -> int:
    """Where a record stands in the log, as one number: places compare as records follow."""
    return segment << _OFFSET_BITS | offset


def segment_of(place: int) -> int:
    return place >> _OFFSET_BITS


@dataclass(slots=True)
class Trace:
    """One job id. ``adds`` are the places of those that stand; cleaning takes out the first."""

    adds: list[int] = field(default_factory=list)
    fresh: int = _NO_PLACE  # place of the last fresh add
    present_adds: int = 0  # adds from there on
    expires_ns: int = 0  # when the last of these has expired
    ended_ns: int | None = None  # when the first delete or expire from there on was logged
    latest_ns: int | None = None  # the latest time in any of its records

    def note(self, record: Record, place: int) -> None:
        """Take in the next record of this id."""
        latest_ns = record.logged.unix_ns
        if isinstance(record, JobAdded):
            created_ns = record.created.unix_ns
            self._note_add(record, place, created_ns)
            latest_ns = max(latest_ns, created_ns)
        elif record.command in _ENDS and self.ended_ns is None:
            self.ended_ns = latest_ns
        if self.latest_ns is None or latest_ns > self.latest_ns:
            self.latest_ns = latest_ns

    def _note_add(self, record: JobAdded, place: int, created_ns: int) -> None:
        self.adds.append(place)
        expiry_ns = expires_ns(FoldedJob(record))
        if self.latest_ns is None or self.latest_ns < created_ns:
            self.fresh = place
            self.present_adds = 1
            self.expires_ns = expiry_ns
            self.ended_ns = None
        else:
            self.present_adds += 1
            self.expires_ns = max(self.expires_ns, expiry_ns)

    def over_ns(self) -> int:
        """From when on the id shows nothing to anyone."""
        if self.present_adds == 1 and self.fresh != _NO_PLACE and self.ended_ns is not None:
            return min(self.expires_ns, self.ended_ns + SETTLING_NS)
        return self.expires_ns

    def is_free(self, place: int, as_of_ns: int, *, gone: int = 0) -> bool:
        """Whether the record at ``place`` may go; ``gone`` of the first adds go with it."""
        if gone < len(self.adds) and self.adds[gone] < place:
            return False
        return place < self.fresh or not self.adds or self.over_ns() <= as_of_ns


def gather(traces: dict[bytes, Trace], segment: int, entries: Iterable[Entry[Record]]) -> None:
    """Take in the records of one segment; segments come in order."""
    for entry in entries:
        record = entry.record
        trace = traces.get(record.job_id)
        if trace is None:
            trace = traces[record.job_id] = Trace()
        trace.note(record, place_of(segment, entry.offset))
