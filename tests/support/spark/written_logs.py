"""Small logs of each dialect, written to real files record by record. Not a test itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from journeyman.formats import kestrel, ledger, workq, ztick
from journeyman.formats.timed_frame import Instant
from journeyman.logs.ztick import run_history

SECOND_NS = 1_000_000_000
BORN_NS = 1_700_000_000 * SECOND_NS


def ns(seconds: float) -> int:
    """A moment, counted from when these logs begin."""
    return BORN_NS + round(seconds * SECOND_NS)


def at(seconds: float) -> Instant:
    return Instant(ns(seconds))


def job_id(number: int) -> bytes:
    return bytes.fromhex("0000000a000040008000") + number.to_bytes(6, "big")


def key(number: int) -> str:
    """A job id as the source spells it."""
    return f"0000000a-0000-4000-8000-{number:012x}"


def added(
    number: int,
    seconds: float = 0,
    *,
    queue: str = "mail",
    due_s: float | None = None,
    ttl_s: float = 100_000,
    ttr_s: float = 60,
    max_attempts: int = 0,
    max_fails: int = 0,
    payload: bytes = b"",
) -> workq.Record:
    return workq.JobAdded(
        logged=at(seconds),
        job_id=job_id(number),
        name=queue,
        ttr_ms=round(ttr_s * 1000),
        ttl_ms=round(ttl_s * 1000),
        priority=0,
        max_attempts=max_attempts,
        max_fails=max_fails,
        payload=payload,
        time=None if due_s is None else at(due_s),
        created=at(seconds),
        command=workq.Command.ADD if due_s is None else workq.Command.SCHEDULE,
    )


def event(word: str, number: int, seconds: float) -> workq.Record:
    """start-attempt, timeout-attempt, delete, expire, complete, fail, park or wake."""
    command = workq.Command[word.upper().replace("-", "_")]
    if word == "park":
        return workq.JobFinished(at(seconds), job_id(number), command, b"{}", hidden=True)
    if word == "wake":
        return workq.JobEvent(at(seconds), job_id(number), command, hidden=True)
    if word in ("complete", "fail"):
        return workq.JobFinished(at(seconds), job_id(number), command, b"")
    return workq.JobEvent(at(seconds), job_id(number), command)


def write_workq(directory: Path, *segments: Iterable[workq.Record]) -> str:
    directory.mkdir(parents=True, exist_ok=True)
    for number, records in enumerate(segments, 1):
        data = workq.HEADER + b"".join(map(workq.CODEC.encode, records))
        (directory / f"{number:09d}.log").write_bytes(data)
    return str(directory)


def write_ledger(data: Path, records: Iterable[ledger.Record]) -> str:
    """A ledger in a data directory."""
    directory = data / "ledger"
    directory.mkdir(parents=True)
    encoded = b"".join(map(ledger.CODEC.encode, records))
    (directory / "000000001.ledger").write_bytes(ledger.HEADER + encoded)
    return str(directory)


def write_ztick(
    path: Path, records: Iterable[ztick.Record], runs: Sequence[run_history.RunLine] = ()
) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(map(ztick.CODEC.encode, records)))
    if runs:
        directory = Path(f"{path}.runs")
        directory.mkdir()
        (directory / "1700000000000.jsonl").write_bytes(b"".join(map(run_history.encode_run, runs)))
    return str(path)


def planned(job: str, seconds: float, status: str = "planned") -> ztick.Record:
    return ztick.JobSet(job, ns(seconds), ztick.Status[status.upper()])


def run(
    job: str, due_s: float, started_s: float, ended_s: float, outcome: str = "executed"
) -> run_history.RunLine:
    rule = job.partition(".")[0]
    times = (ns(due_s), ns(started_s), ns(ended_s))
    return run_history.RunLine(job, rule, "shell", *times, outcome)


def put(item_id: int, seconds: float, size: int = 10, expires_s: float | None = None):
    """An item of a queue."""
    expires_ms = None if expires_s is None else ns(expires_s) // 10**6
    return kestrel.ItemPut(item_id, ns(seconds) // 10**6, expires_ms, 0, b"x" * size)


def write_kestrel(
    directory: Path,
    queue: str,
    segments: Sequence[Iterable[kestrel.Record]],
    readers: dict[str, tuple[int, tuple[int, ...]]],
) -> str:
    """``readers``: head and finished ids by name."""
    directory.mkdir(parents=True, exist_ok=True)
    for number, records in enumerate(segments):
        data = kestrel.WRITER_MAGIC + b"".join(map(kestrel.WRITER.encode, records))
        (directory / f"{queue}.{1_700_000_000_000 + number}").write_bytes(data)
    for name, (head, done) in readers.items():
        checkpoint: tuple[kestrel.Record, ...] = (kestrel.ReadHead(head), kestrel.ReadDone(done))
        data = kestrel.READER_MAGIC + b"".join(map(kestrel.READER.encode, checkpoint))
        (directory / f"{queue}.read.{name}").write_bytes(data)
    return str(directory)
