"""The state of one key is the fold of its records; a snapshot turns a state back into records.

One module per dialect, all of one shape:

    key_of(record)               which state a record belongs to
    apply(state, record, notes)  the next state; None is "nothing known of this key"
    fold(records, notes)         the state of one key
    replay(records, notes)       a whole log: {key: state}
    snapshot(state)              records that fold to an equal state

The laws, which tests/property/test_folds.py proves:

    total         every sequence of records has a state; oddities are reported as anomalies
    deterministic no clock, no randomness; expiry is a view of a state at a given time
    snapshot      fold(snapshot(fold(rs)) + more) == fold(rs + more)
    locality      replay(rs)[key] == fold(records of that key in rs)

``apply`` may change the state it is given and return it: hand a state on, do not keep it.

A fold never raises and never stops. Records that do not fit those before them, or that the original
would refuse, are anomalies: ``notes`` is called with each. It is any callable that takes an
``Anomaly``, such as ``list.append``, or None. It never changes the state. Nothing is lost silently:
an anomaly has each record that changes nothing, and the records of a state that is replaced.
Damage is another thing: bytes that are not a record (journeyman.logs.recovery).

docs/folds.md is the specification, with the rule for each kind of anomaly.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias


class AnomalyKind(StrEnum):
    """The values are the words used in reports."""

    # These occur in ztick logs.
    ORPHAN_REMOVAL = "orphan-removal"  # a removal of what does not exist

    # These occur in workq logs, in records of a job that has not been added (yet).
    ORPHAN = "orphan"
    ADOPTED_ORPHAN = "adopted-orphan"  # its add came later: applied to it
    STALE_ORPHAN = "stale-orphan"  # older than the add that came later: not applied
    DELETED_BEFORE_ADD = "deleted-before-add"  # the delete stands before its add
    # These occur in workq logs when a job is added.
    REPEATED_ADD = "repeated-add"  # the same add once more
    REPLACED_JOB = "replaced-job"  # another add of a living job: its end is not in the log
    UNUSABLE_VALUE = "unusable-value"  # a field that the protocol would refuse
    # These occur in workq logs with attempts and results.
    START_WHILE_LEASED = "start-while-leased"
    START_OVER_LIMIT = "start-over-limit"  # more attempts than max-attempts
    START_AFTER_FINISH = "start-after-finish"
    LATE_TIMEOUT = "late-timeout"  # the lease was already followed by another one
    TIMEOUT_WITHOUT_LEASE = "timeout-without-lease"
    TIMEOUT_AFTER_FINISH = "timeout-after-finish"
    SECOND_RESULT = "second-result"
    RESULT_AFTER_EXHAUSTION = "result-after-exhaustion"
    PARK_AFTER_FINISH = "park-after-finish"
    WAKE_WITHOUT_PARK = "wake-without-park"

    # These occur in kestrel logs, with items and readers.
    REPEATED_ITEM = "repeated-item"  # the same item once more
    REUSED_ID = "reused-id"  # another item under the same id
    MISPLACED_RECORD = "misplaced-record"  # a kind that does not belong in this file
    UNKNOWN_COMMAND = "unknown-command"
    # These occur when a kestrel queue is opened.
    CHECKPOINT_DAMAGED = "checkpoint-damaged"
    CHECKPOINT_AHEAD = "checkpoint-ahead"  # beyond the newest item, so it is ignored
    CHECKPOINT_BEHIND = "checkpoint-behind"  # the oldest item: items were erased
    DEFAULT_READER_CREATED = "default-reader-created"  # no checkpoint: at the oldest item
    DEFAULT_READER_DROPPED = "default-reader-dropped"  # named readers exist


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One thing that a fold noticed.

    ``key`` is the key whose fold noticed it, None when the record belongs to no key;
    ``records`` are those that were not applied, or that made up a state that was pushed aside.
    """

    kind: AnomalyKind
    key: Hashable
    detail: str
    records: tuple[object, ...] = ()


Notes: TypeAlias = Callable[[Anomaly], object] | None
