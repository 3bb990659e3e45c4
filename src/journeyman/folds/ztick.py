"""The fold of the ztick logfile: the last record of each job and of each rule is its state.

    JobSet    ── job  "backup"  ─┐                   JobRemoved   ── no state
    RuleSet   ── rule "backup"  ─┴─ two keys         RuleRemoved  ── no state

The key is the kind and the identifier: a job and a rule of the same name are independent. (The
original loads them apart but compacts them by name alone, which loses one.)

``replay`` keeps its keys in the order of their last records. Written in that order, the states
are the compacted log; there is no second fold for compaction that could disagree.

Not here: which rule a job runs by, and when it is due. The engine decides that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeAlias

from journeyman.folds import Anomaly, AnomalyKind, Notes
from journeyman.formats.ztick import JobRemoved, JobSet, Record, RuleRemoved, RuleSet

Key: TypeAlias = tuple[str, str]  # ("job" or "rule", identifier)
State: TypeAlias = JobSet | RuleSet | None

_SETS = (JobSet, RuleSet)
_KIND_OF = {JobSet: "job", JobRemoved: "job", RuleSet: "rule", RuleRemoved: "rule"}


class FoldedSchedule(NamedTuple):
    """Jobs and rules after loading, both in the order of their last records."""

    jobs: dict[str, JobSet]
    rules: dict[str, RuleSet]


def key_of(record: Record) -> Key:
    return _KIND_OF[type(record)], record.identifier


def apply(state: State, record: Record, notes: Notes = None) -> State:
    """The record itself if it sets something; None after a removal."""
    if isinstance(record, _SETS):
        return record
    if state is None and notes is not None:
        kind, identifier = key_of(record)
        detail = f"{kind} {identifier!r} is removed but does not exist"
        notes(Anomaly(AnomalyKind.ORPHAN_REMOVAL, (kind, identifier), detail, (record,)))
    return None


def fold(records: Iterable[Record], notes: Notes = None) -> State:
    """The state of one key."""
    state: State = None
    for record in records:
        state = apply(state, record, notes)
    return state


def replay(records: Iterable[Record], notes: Notes = None) -> dict[Key, JobSet | RuleSet]:
    """The states of a whole log, in the order of the last record of each key."""
    states: dict[Key, JobSet | RuleSet] = {}
    for record in records:
        key = _KIND_OF[type(record)], record.identifier
        # A dict keeps the place of a key that is set again; taken out first, it goes to the end.
        state = apply(states.pop(key, None), record, notes)
        if state is not None:
            states[key] = state
    return states


def schedule(states: Mapping[Key, JobSet | RuleSet]) -> FoldedSchedule:
    """The replayed states as jobs and rules, each by its identifier."""
    result = FoldedSchedule({}, {})
    for state in states.values():
        if isinstance(state, JobSet):
            result.jobs[state.identifier] = state
        else:
            result.rules[state.identifier] = state
    return result


def snapshot(state: State) -> tuple[JobSet | RuleSet, ...]:
    """The records that fold to ``state``: itself, or none."""
    return () if state is None else (state,)
