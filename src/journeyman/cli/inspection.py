"""What ``verify`` finds out about a log: records, damage, what is still needed, what is odd.

    file   [header][live][dead][dead][#### damage ####][live][dead][padding]

A byte is live when the effective state needs its record: the last SET of a job that exists, every
record of a workq job that exists, an item that some reader still has to be given. Dead bytes are
what compaction, cleaning or retention would free. Live, dead, damaged and other bytes (header,
padding, end mark, seals) add up to the size of a file.

Nothing is written, and a file is mapped and read entry by entry; what grows with the log is the
state alone. Damage is read past in the way recovery does it, so that verify foretells repair.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from journeyman.cli.dialects import LogFile
from journeyman.cli.kinds import kind_of
from journeyman.cli.live_bytes import Account, account_for
from journeyman.cli.mapping import MappedLog
from journeyman.cli.progress import Advance
from journeyman.cli.reading import is_end
from journeyman.cli.workq_lines import uuid_text
from journeyman.folds.anomaly import Anomaly
from journeyman.logs.damage import Damage
from journeyman.logs.sealed_reading import is_in_flight, read_file

FIRST_ANOMALIES = 5  # shown in full; the others are only counted
MAX_LISTED_DAMAGES = 1000
_UUID_BYTES = 16
_ADVANCE_BYTES = 256 * 1024


@dataclass(slots=True)
class DamageReport:
    """One damaged stretch; ``records_behind`` follow it before the next one."""

    damage: Damage
    records_behind: int = 0

    def as_dict(self) -> dict[str, Any]:
        return self.damage.as_dict() | {"records_behind": self.records_behind}


@dataclass(slots=True)
class FileContents:
    """What one file holds."""

    file: str
    size: int
    kinds: Counter[str] = field(default_factory=Counter)
    record_bytes: int = 0
    live_bytes: int = 0
    damages: list[DamageReport] = field(default_factory=list)  # the first MAX_LISTED_DAMAGES
    damage_count: int = 0
    damaged_bytes: int = 0
    unsealed_bytes: int = 0  # after the last seal: on their way, or never acknowledged

    @property
    def records(self) -> int:
        return self.kinds.total()

    @property
    def dead_bytes(self) -> int:
        return self.record_bytes - self.live_bytes

    @property
    def other_bytes(self) -> int:
        return self.size - self.record_bytes - self.damaged_bytes

    def as_dict(self) -> dict[str, Any]:
        return {
            "file": self.file,
            "size": self.size,
            "clean": self.damage_count == 0,
            "records": self.records,
            "kinds": dict(sorted(self.kinds.items())),
            "live_bytes": self.live_bytes,
            "dead_bytes": self.dead_bytes,
            "damaged_bytes": self.damaged_bytes,
            "other_bytes": self.other_bytes,
            "unsealed_bytes": self.unsealed_bytes,
            "damage_count": self.damage_count,
            "damages": [damage.as_dict() for damage in self.damages],
        }


@dataclass(slots=True)
class LogReport:
    """What a whole log holds."""

    dialect: str
    where: str
    queue: str | None
    as_of_ns: int
    files: list[FileContents] = field(default_factory=list)
    anomalies: Counter[str] = field(default_factory=Counter)
    first_anomalies: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        return all(file.damage_count == 0 for file in self.files)

    @property
    def records(self) -> int:
        return sum(file.records for file in self.files)

    @property
    def kinds(self) -> Counter[str]:
        return sum((file.kinds for file in self.files), Counter())

    def note(self, anomaly: Anomaly) -> None:
        self.anomalies[str(anomaly.kind)] += 1
        if len(self.first_anomalies) < FIRST_ANOMALIES:
            self.first_anomalies.append(f"{anomaly.kind} of {_key(anomaly)}: {anomaly.detail}")

    def as_dict(self) -> dict[str, Any]:
        return {
            "dialect": self.dialect,
            "log": self.where,
            "queue": self.queue,
            "as_of_ns": self.as_of_ns,
            "clean": self.clean,
            "records": self.records,
            "kinds": dict(sorted(self.kinds.items())),
            "size": sum(file.size for file in self.files),
            "live_bytes": sum(file.live_bytes for file in self.files),
            "dead_bytes": sum(file.dead_bytes for file in self.files),
            "damaged_bytes": sum(file.damaged_bytes for file in self.files),
            "damage_count": sum(file.damage_count for file in self.files),
            "anomalies": dict(sorted(self.anomalies.items())),
            "first_anomalies": self.first_anomalies,
            "files": [file.as_dict() for file in self.files],
        }


def _key(anomaly: Anomaly) -> str:
    key = anomaly.key
    if isinstance(key, bytes) and len(key) == _UUID_BYTES:
        return uuid_text(key)
    return " ".join(map(str, key)) if isinstance(key, tuple) else repr(key)


def inspect_log(mapped: MappedLog, as_of_ns: int, advance: Advance) -> LogReport:
    """Read a whole log and report. ``advance`` is told how many bytes are done."""
    log = mapped.log
    report = LogReport(log.dialect, log.where, log.queue, as_of_ns)
    account = account_for(log, report.note, lambda: _records(mapped))
    # Checkpoints come first: only they tell which items are dead.
    files = (*log.readers, *log.segments)
    for number, file in enumerate(files):
        account.begin_file(number, file.reader)
        done = sum(each.size for each in report.files)
        data = mapped.views[file.path]
        report.files.append(_inspect_file(file, data, account, done, advance))
    for number, live_bytes in account.live_bytes(as_of_ns).items():
        report.files[number].live_bytes = live_bytes
    report.files = [*report.files[len(log.readers) :], *report.files[: len(log.readers)]]
    return report


def _records(mapped: MappedLog) -> Iterator[Any]:
    for file in mapped.log.segments:
        for found in read_file(file.codec, mapped.views[file.path]):
            if not isinstance(found, Damage):
                yield found.record


def _inspect_file(
    file: LogFile, data: memoryview, account: Account, done: int, advance: Advance
) -> FileContents:
    """``done`` bytes of the log stand in files before this one."""
    report = FileContents(file.path, len(data))
    kinds = report.kinds
    behind: DamageReport | None = None
    next_advance = _ADVANCE_BYTES
    for found in read_file(file.codec, data, file=file.path):
        if isinstance(found, Damage):
            if is_end(file, data, found):
                report.unsealed_bytes += found.length if is_in_flight(found) else 0
                continue
            report.damage_count += 1
            report.damaged_bytes += found.length
            behind = DamageReport(found)
            if len(report.damages) < MAX_LISTED_DAMAGES:
                report.damages.append(behind)
            account.damaged()
            continue
        kinds[kind_of(found.record)] += 1
        report.record_bytes += found.length
        if behind is not None:
            behind.records_behind += 1
        account.record(found.record, found.length)
        if report.record_bytes >= next_advance:
            next_advance = report.record_bytes + _ADVANCE_BYTES
            advance(done + found.offset)
    return report
