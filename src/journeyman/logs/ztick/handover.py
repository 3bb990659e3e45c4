"""A ztick log for the original: one file, closed, and what ztick 0.1.0 makes of it.

The original reads nothing but the active file. It skips an entry that it cannot decode, keeps the
status of a job that is not planned, and knows neither the ledger nor the runners `queue` and
`journal`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from journeyman.clock import Clock
from journeyman.disk import Disk
from journeyman.formats import ztick
from journeyman.formats.ledger import TimetablePlanned, TimetableSet
from journeyman.logs import handover
from journeyman.logs.holders import Holders
from journeyman.logs.recovery import inspect_file
from journeyman.logs.segments import ZtickNames, ztick_files
from journeyman.logs.ztick.log import ZtickLog, compact_offline


def hand_over_ztick(
    disk: Disk, clock: Clock, path: str, facts: handover.Facts, holders: Holders | None
) -> handover.HandedOver:
    names = ZtickNames(path)
    files = ztick_files(disk, path)
    size = handover.total_size(disk, files)
    findings: list[handover.Finding] = []
    is_whole = all(inspect_file(disk, ztick.CODEC, file).clean for file in files)
    changes = [] if is_whole else [handover.REPAIRED]
    if files != [names.active]:
        # Before the log is opened: the closing seal would be unread by every holder.
        if compact_offline(disk, path, now_ns=clock.now_ns(), holders=holders) is None:
            findings.append(handover.unread(disk, names.directory))
        else:
            changes.append(handover.MERGED)
    with ZtickLog.open(disk, clock, path, holders=holders) as log:
        findings += _findings((entry.record for entry in log.entries()), facts)
    if not changes and handover.total_size(disk, files) != size:
        changes.append(handover.CLOSED)
    return handover.HandedOver(tuple(changes), tuple(findings))


def _findings(records: Iterable[ztick.Record], facts: handover.Facts) -> Iterator[handover.Finding]:
    rules: dict[str, ztick.RuleSet] = {}
    triggered: set[str] = set()
    occurrences = {
        f"{record.timetable}@{record.planned}"
        for record in facts.values()
        if isinstance(record, TimetablePlanned) and record.planned
    }
    planned: set[str] = set()
    for record in records:
        name = record.identifier
        if isinstance(record, ztick.JobSet):
            is_triggered = record.status == ztick.Status.TRIGGERED
            (triggered.add if is_triggered else triggered.discard)(name)
            if name in occurrences:
                is_planned = record.status == ztick.Status.PLANNED
                (planned.add if is_planned else planned.discard)(name)
        elif isinstance(record, ztick.RuleSet):
            rules[name] = record
        elif isinstance(record, ztick.JobRemoved):
            triggered.discard(name)
            planned.discard(name)
        else:
            rules.pop(name, None)
    own_runners = {
        record.timetable
        for record in facts.values()
        if isinstance(record, TimetableSet) and record.body.get("runner")
    }
    yield from handover.finding(
        "timetables",
        "timetables stop, because ztick has none",
        handover.keys_of(facts, "timetable"),
    )
    yield from handover.finding(
        "occurrences",
        "planned occurrences fail, because their runner is in the timetable",
        (name for name in planned if name.rpartition("@")[0] in own_runners),
    )
    yield from handover.finding(
        "runners",
        "rules with the runners queue and journal are skipped, and their jobs fail",
        (
            name
            for name, rule in rules.items()
            if isinstance(rule.runner, ztick.WorkQueueRunner | ztick.FanOutRunner)
        ),
    )
    yield from handover.finding(
        "rule-options",
        "rules do not try failed runs again",
        handover.keys_of(facts, "rule-options"),
    )
    yield from handover.finding(
        "triggered",
        "jobs that waited or ran when the server stopped are never run",
        triggered,
    )
