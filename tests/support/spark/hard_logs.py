"""Logs of shapes that are hard on a cluster, and what a replay of them must come to.

skewed_ztick, skewed_workq    one key has half of all records
tiny_logs                     many logs of a few records
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from journeyman.formats import workq, ztick
from tests.support.spark.written_logs import added, at, job_id, key

HOT = "hot"


def skewed_ztick(path: Path, records: int) -> dict[str, int]:
    """Every other record is of one job; when each job is planned for in the end."""

    def all_records() -> Iterator[ztick.Record]:
        for number in range(records):
            name = HOT if number % 2 else f"job.{number}"
            yield ztick.JobSet(name, number, ztick.Status.PLANNED)

    _write(path, b"", map(ztick.CODEC.encode, all_records()))
    planned = {f"job.{number}": number for number in range(0, records, 2)}
    return {**planned, HOT: records - 1 - records % 2}


def skewed_workq(directory: Path, records: int) -> dict[str, tuple[str, int]]:
    """Job 0 has half of the records, all of them attempts; state and attempts of each job."""
    attempts = records // 4

    def all_records() -> Iterator[workq.Record]:
        yield added(0, ttl_s=10**6)
        for number in range(1, attempts + 1):
            yield workq.JobEvent(at(number), job_id(0), workq.Command.START_ATTEMPT)
            yield added(number, number, ttl_s=10**6)
            yield workq.JobEvent(at(number), job_id(0), workq.Command.TIMEOUT_ATTEMPT)
            yield workq.JobEvent(at(number), job_id(number), workq.Command.START_ATTEMPT)

    directory.mkdir(parents=True)
    entries = map(workq.CODEC.encode, all_records())
    _write(directory / "000000001.log", workq.HEADER, entries)
    others = {key(number): ("leased", 1) for number in range(1, attempts + 1)}
    return {key(0): ("pending", attempts), **others}


def tiny_logs(directory: Path, count: int) -> int:
    """So many logs of two jobs each, one of which is removed; how many jobs they have."""
    for number in range(count):
        log = directory / f"host={number}" / "logfile"
        log.parent.mkdir(parents=True)
        records: list[ztick.Record] = [
            *(ztick.JobSet(name, number, ztick.Status.PLANNED) for name in ("a", "b")),
            ztick.JobRemoved("b"),
        ]
        _write(log, b"", map(ztick.CODEC.encode, records))
    return count


def _write(path: Path, header: bytes, entries: Iterable[bytes]) -> None:
    with path.open("wb") as file:
        file.write(header)
        file.writelines(entries)
