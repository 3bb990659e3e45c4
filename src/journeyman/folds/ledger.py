"""The meaning of a ledger: by family and key, the last record, or none once it was removed.

    timetable-set       nightly  --> ("timetable", "nightly"): the record
    timetable-removed   nightly  --> ("timetable", "nightly"): none
    action-audited, times-marked --> each its own key: a history, never removed by a record
    newer records                --> likewise: nothing is known of them, so all are kept

``replay`` keeps its keys in the order of their last records. Written in that order, the states are
the compacted ledger.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

from journeyman.folds import Anomaly, AnomalyKind, Notes
from journeyman.formats.ledger import NewerRecord, Record, encode_payload, kind_of

Key: TypeAlias = tuple[str, str]  # family, and what it is about
State: TypeAlias = Record | None

UNKNOWN_FAMILY = ""


def key_of(record: Record) -> Key:
    """Records of a history have nothing but themselves: the same fact twice is one fact."""
    if isinstance(record, NewerRecord):
        return UNKNOWN_FAMILY, _own_key(record)
    kind = kind_of(record)
    return kind.family, _own_key(record) if kind.key is None else getattr(record, kind.key)


def _own_key(record: Record) -> str:
    logged: Any = record.logged
    payload = encode_payload(record).decode("utf-8", "surrogateescape")
    return f"{logged.unix_ns} {logged.offset_min} {payload}"


def apply(state: State, record: Record, notes: Notes = None) -> State:
    """The record itself, or None after a removal."""
    if isinstance(record, NewerRecord):
        if notes is not None:
            detail = f"kind {record.kind!r} of version {record.version} is not known"
            notes(Anomaly(AnomalyKind.UNKNOWN_COMMAND, key_of(record), detail, (record,)))
        return record
    if not kind_of(record).removes:
        return record
    if state is None and notes is not None:
        family, key = key_of(record)
        detail = f"{family} {key!r} is removed but does not exist"
        notes(Anomaly(AnomalyKind.ORPHAN_REMOVAL, (family, key), detail, (record,)))
    return None


def fold(records: Iterable[Record], notes: Notes = None) -> State:
    """The state of one key."""
    state: State = None
    for record in records:
        state = apply(state, record, notes)
    return state


def replay(records: Iterable[Record], notes: Notes = None) -> dict[Key, Record]:
    """The states of a whole ledger, in the order of the last record of each key."""
    states: dict[Key, Record] = {}
    for record in records:
        add(states, record, notes)
    return states


def add(states: dict[Key, Record], record: Record, notes: Notes = None) -> None:
    """One more record; a key that is set again goes to the end."""
    key = key_of(record)
    state = apply(states.pop(key, None), record, notes)
    if state is not None:
        states[key] = state


def snapshot(state: State) -> tuple[Record, ...]:
    """The records that fold to ``state``: itself, or none."""
    return () if state is None else (state,)
