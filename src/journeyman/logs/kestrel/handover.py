"""A fan-out queue for libkestrel: closed, and where its readers get stuck or begin again.

A reader of the original takes the next id for granted. At a gap it stops, or delivers what follows
again after each restart. It delivers items again that were finished out of order. It cannot open a
queue whose last segment is larger than its own segments.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping

from journeyman.clock import Clock
from journeyman.disk import Disk
from journeyman.folds.kestrel import Reader
from journeyman.formats.kestrel import PUT, SEALS, WRITER, ItemPut, UnknownCommand
from journeyman.logs import handover
from journeyman.logs.catalog import Log
from journeyman.logs.holders import Holders
from journeyman.logs.kestrel.log import DEFAULT_SEGMENT_BYTES, KestrelLog
from journeyman.logs.recovery import RecoveryReport, recover_entries
from journeyman.logs.sealing import close_file, read_whole
from journeyman.logs.segments import kestrel_lock_name


def hand_over_kestrel(
    disk: Disk, clock: Clock, log: Log, holders: Holders | None
) -> handover.HandedOver:
    assert log.queue is not None
    paths = [file.path for file in log.files]
    size = handover.total_size(disk, paths)
    if not log.readers:
        report = _close_without_readers(disk, log, log.queue)
        findings = handover.finding(
            "no-reader",
            "libkestrel begins at the newest item, because no reader has a checkpoint",
            [log.queue],
        )
    else:
        with KestrelLog.open(
            disk, clock, log.where, log.queue, thorough=True, holders=holders
        ) as journal:
            report = journal.recovery
            paths_now = [segment.path for segment in journal.segments]
            findings = list(_findings(disk, paths_now, journal.readers))
    if not report.clean:
        return handover.HandedOver((handover.REPAIRED,), tuple(findings))
    is_closed = handover.total_size(disk, paths) != size
    return handover.HandedOver((handover.CLOSED,) if is_closed else (), tuple(findings))


def _close_without_readers(disk: Disk, log: Log, queue: str) -> RecoveryReport:
    """Opening the queue would make a reader that is past all its items."""
    lock = disk.lock(posixpath.join(log.where, kestrel_lock_name(queue)))
    try:
        paths = [file.path for file in log.segments]
        report = RecoveryReport(tuple(recover_entries(disk, WRITER, path) for path in paths))
        for path in paths:
            if disk.exists(path):
                close_file(disk, SEALS, path)
    finally:
        lock.release()
    return report


def _findings(
    disk: Disk, paths: list[str], readers: Mapping[str, Reader]
) -> Iterator[handover.Finding]:
    gap_end, previous, newer = 0, 0, 0
    repeated: dict[str, int] = dict.fromkeys(readers, 0)
    for path in paths:
        for entry in read_whole(WRITER, disk.view(path)):
            record = entry.record
            if isinstance(record, UnknownCommand):
                newer += record.command_byte >> 4 == PUT
            elif isinstance(record, ItemPut):
                if previous and record.item_id > previous + 1:
                    gap_end = record.item_id - 1
                previous = record.item_id
                for name, reader in readers.items():
                    repeated[name] += record.item_id in reader.done
    yield from handover.finding(
        "gap",
        f"readers stop at a gap in the ids, or skip items: let them read past item {gap_end} first",
        (repr(name) for name, reader in readers.items() if reader.head <= gap_end and gap_end),
        refuses=True,
    )
    yield from handover.finding(
        "repeated",
        f"{sum(repeated.values())} items that readers have finished out of order come again",
        (repr(name) for name, count in repeated.items() if count),
    )
    size = disk.size(paths[-1]) if paths else 0
    yield from handover.finding(
        "segment-size",
        f"the last segment has {size} bytes: give libkestrel a journalSize of at least as much",
        [posixpath.basename(paths[-1])] if size > DEFAULT_SEGMENT_BYTES else [],
        refuses=True,
    )
    if newer:
        text = "items of a newer version are delivered with other bytes"
        yield handover.Finding("newer", text, newer, refuses=True)
