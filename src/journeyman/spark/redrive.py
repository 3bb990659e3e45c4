"""Failed or lost jobs back onto a server: selected by SQL, recorded, none of them twice.

    state table "jobs" --condition--> minus what the record has as done --order, limit--> rows
    jobs of a lake, with their adds --the same--> rows
    rows --batches, paced--> intend | send | done --> Redriven: counts

    ztick   SET again, at a given time or now. Planned a nanosecond apart from its old time if these
            are equal, so that whether the SET arrived can be seen
    workq   added again under a new id, made of the record and the old id; ready at once, or
            scheduled for a given time; with its payload, read by its place in the log, or from the
            lake if it was ingested there

What was meant to go when a redrive was killed may have arrived, or not. A workq job is sent once
more under the same new id, which the server takes once. A ztick job is looked at first. The server
has it with its new time: it arrived. With its old time, or not at all: it did not, and goes. With
another: somebody has planned it otherwise meanwhile, and it is left alone.

The record of a redrive says which jobs were meant to go, and which have gone, so that none goes
twice:

    {"ledger": 1, "run": "<uuid>"}                the first line
    {"intend": [["<key>", <ns>, "<as>"], ...]}    synced before anything is sent
    {"done": [["<key>", <ns>], ...]}              synced behind the answers

A job is known by its key and a moment of its life (ztick: identifier and planned time; workq: id
and creation), which stay the same when a log is compacted or copied. ``as`` is what it becomes: for
ztick the new planned time, for workq the new id. It is decided once, written down, and used again
should the job have to be sent again.

    crash behind    leaves              the next run
    intend          meant, maybe sent   asks the server, or sends the very same again
    sent            the same            the same
    done            done                leaves it alone

One file of JSON lines, appended to and synced. A last line that a crash cut short is cut off. Only
one redrive at a time: ``PATH.lock`` is held.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple, Self
from uuid import UUID, uuid4

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from journeyman.client.errors import Refused
from journeyman.clock import Clock
from journeyman.disk import AppendFile, Disk, Lock
from journeyman.errors import LogError, LogLocked, UsageError
from journeyman.spark.lakes.storage import Lake
from journeyman.spark.replay import states, with_payloads
from journeyman.spark.sinks import sending as sinks_sending
from journeyman.spark.sinks.server_options import ServerOptions
from journeyman.spark.source.options import ZTICK

_VERSION = 1
DEFAULT_CONDITIONS = {"ztick": "status = 'failed'", "workq": "state = 'failed'"}
LAKE_CONDITION = "status = 'failed'"
_OF_ADDS = (
    *("name", "ttr_ms", "ttl_ms", "priority", "max_attempts", "max_fails"),
    *("payload_size", "payload"),
)
_KEYS = {"ztick": ("identifier", "execution_ns"), "workq": ("key", "created_ns")}
_BATCH_ROWS = 100
_MAX_NS = 2**63 - 1


class SentMark(NamedTuple):
    """A job at a moment of its life."""

    key: str
    ns: int


@dataclass(slots=True)
class Redriven:
    """The outcomes of the selected jobs, counted."""

    sent: int = 0
    arrived_before: int = 0  # by a redrive that was killed before it knew
    changed_meanwhile: int = 0  # left alone
    refused: int = 0
    first_refused: list[tuple[str, str]] = field(default_factory=list)

    def refuse(self, job: str, refusal: Refused) -> None:
        self.refused += 1
        if len(self.first_refused) < sinks_sending.MAX_SHOWN:
            self.first_refused.append((job, str(refusal)))


def selection(
    spark: SparkSession,
    dialect: str,
    paths: Sequence[str],
    condition: str | None = None,
    *,
    done: Sequence[SentMark] = (),
    limit: int | None = None,
    since_ns: int | None = None,
    until_ns: int | None = None,
    **options: Any,
) -> DataFrame:
    """The jobs that would go, oldest record first; without payloads.

    ``since_ns`` and ``until_ns`` bound when a job was planned for (ztick) or created (workq).

    Of a job that several logs have, the one planned or created last goes. ``options`` are those of
    the source.
    """
    check_dialect(dialect)
    jobs = states(spark, dialect, paths, **options)["jobs"]
    chosen = jobs.where(condition or DEFAULT_CONDITIONS[dialect])
    chosen = _between(chosen, dialect, since_ns, until_ns)
    return _newest(spark, dialect, chosen, "_position", done, limit)


def selection_of_lake(
    spark: SparkSession,
    dialect: str,
    lake: Lake,
    condition: str | None = None,
    *,
    done: Sequence[SentMark] = (),
    limit: int | None = None,
    since_ns: int | None = None,
    until_ns: int | None = None,
) -> DataFrame:
    """Select rows from the table ``jobs`` of a lake; with payloads, as far as it has them."""
    check_dialect(dialect)
    log = F.concat(F.col("host"), F.lit(":"), F.col("log"))
    jobs = lake.read(spark, "silver/jobs").where(F.col("dialect") == dialect)
    if dialect == ZTICK:
        names = {"identifier": F.col("key"), "execution_ns": F.col("ready_ns")}
        jobs = jobs.withColumns(names)
    else:
        same = ["host", "log", "key", "created_ns"]
        adds = lake.read(spark, "bronze/workq").where(F.col("kind").isin("add", "schedule"))
        adds = adds.withColumnRenamed("_log", "log").select(*same, *_OF_ADDS)
        jobs = jobs.join(adds.dropDuplicates(same), same)
    chosen = jobs.where(condition or LAKE_CONDITION).withColumn("_log", log)
    chosen = _between(chosen, dialect, since_ns, until_ns)
    return _newest(spark, dialect, chosen, _KEYS[dialect][1], done, limit)


def _between(
    jobs: DataFrame, dialect: str, since_ns: int | None, until_ns: int | None
) -> DataFrame:
    ns = F.col(_KEYS[dialect][1])
    chosen = jobs if since_ns is None else jobs.where(ns >= since_ns)
    return chosen if until_ns is None else chosen.where(ns < until_ns)


def check_dialect(dialect: str) -> None:
    """Raises UsageError if there are no jobs of this dialect to send again."""
    if dialect not in _KEYS:
        raise UsageError(f"jobs of ztick and workq can be redriven, {dialect} has none")


def _newest(
    spark: SparkSession,
    dialect: str,
    chosen: DataFrame,
    order: str,
    done: Sequence[SentMark],
    limit: int | None,
) -> DataFrame:
    """Return the row planned or created last of each job that is not done."""
    key, ns = _KEYS[dialect]
    columns = chosen.columns
    if done:
        gone = spark.createDataFrame([tuple(mark) for mark in done], f"`{key}` string, `{ns}` long")
        chosen = chosen.join(gone, [key, ns], "left_anti").select(*columns)
    newest = chosen.groupBy(key).agg(
        F.max_by(F.struct(*columns), F.struct(ns, "_log")).alias("job")
    )
    ordered = newest.select("job.*").orderBy("_log", order)
    return ordered if limit is None else ordered.limit(limit)


def redrive(
    jobs: DataFrame,
    options: ServerOptions,
    ledger: RedriveLedger,
    clock: Clock,
    *,
    at_ns: int | None,
) -> Redriven:
    """Send the selected jobs; ``at_ns`` is when they are due, None is at once.

    The rows are fetched batch by batch. Raises ConnectionFailed when the server stays away; what
    was sent until then is in the record.
    """
    if options.dialect == "workq" and "_file" in jobs.columns:
        jobs = with_payloads(jobs)
    rows = (row.asDict() for row in jobs.toLocalIterator(prefetchPartitions=True))
    return redrive_rows(rows, options, ledger, clock, at_ns=at_ns)


def redrive_rows(
    rows: Iterable[dict[str, Any]],
    options: ServerOptions,
    ledger: RedriveLedger,
    clock: Clock,
    *,
    at_ns: int | None,
    sender: sinks_sending.JobSender | None = None,
) -> Redriven:
    """Redrive rows that are at hand."""
    work = _Redrive(options, ledger, clock, at_ns, sender or sinks_sending.open_sender(options))
    pace = sinks_sending.Pace(options, clock)
    size = min(pace.batch, _BATCH_ROWS)
    try:
        waiting = iter(rows)
        while batch := list(islice(waiting, size)):
            work.send(batch)
            pace.keep(len(batch))
    finally:
        work.sender.close()
    return work.outcome


class _Redrive:
    def __init__(
        self,
        options: ServerOptions,
        ledger: RedriveLedger,
        clock: Clock,
        at_ns: int | None,
        sender: sinks_sending.JobSender,
    ) -> None:
        self._options = options
        self._ledger = ledger
        self._clock = clock
        self._at_ns = at_ns
        self._key, self._ns = _KEYS[options.dialect]
        self.sender = sender
        self.outcome = Redriven()

    def send(self, batch: list[dict[str, Any]]) -> None:
        marked = {self._mark(row): row for row in batch}
        fresh = {mark: row for mark, row in marked.items() if mark not in self._ledger.done}
        in_doubt = [mark for mark in fresh if mark in self._ledger.intended]
        self._ledger.intend((mark, self._becomes(mark)) for mark in fresh)
        settled = [mark for mark in in_doubt if self._is_settled(mark)]
        self._ledger.finish(settled)
        going = [mark for mark in fresh if mark not in settled]
        arrived: list[SentMark] = []
        try:
            self._send(going, fresh, arrived)
        finally:
            self._ledger.finish(arrived)

    def _send(
        self, marks: list[SentMark], rows: dict[SentMark, dict[str, Any]], arrived: list[SentMark]
    ) -> None:
        """Notes each job that the server has then, as the answers come."""
        jobs, sending = [], []
        for mark in marks:
            job = self._job(mark, rows[mark])
            if isinstance(job, Refused):
                self.outcome.refuse(mark.key, job)
            else:
                jobs.append(job)
                sending.append(mark)
        outcomes = sinks_sending.put_all(self._options, self.sender, jobs, self._clock)
        for mark, (_, refusal) in zip(sending, outcomes, strict=True):
            if refusal is None:
                self.outcome.sent += 1
            elif sinks_sending.is_there_already(refusal):
                self.outcome.arrived_before += 1
            else:
                self.outcome.refuse(mark.key, refusal)
                continue
            arrived.append(mark)

    def _mark(self, row: dict[str, Any]) -> SentMark:
        return SentMark(row[self._key], row[self._ns])

    def _becomes(self, mark: SentMark) -> str:
        if self._options.dialect == "workq":
            return str(sinks_sending.job_uuid(self._ledger.run_id, mark.key, self.sender.salt()))
        planned = self._clock.now_ns() if self._at_ns is None else self._at_ns
        if planned == mark.ns:
            planned += 1 if planned < _MAX_NS else -1
        return str(planned)

    def _job(self, mark: SentMark, row: dict[str, Any]) -> Any:
        becomes = self._ledger.intended[mark]
        if self._options.dialect == "ztick":
            return mark.key, int(becomes)
        changed = {"job_id": UUID(becomes).bytes, "time_ns": self._at_ns}
        return sinks_sending.workq_job(self._options, row | changed, self.sender.salt)

    def _is_settled(self, mark: SentMark) -> bool:
        """Return whether a job that was marked earlier must not be sent now."""
        if not isinstance(self.sender, sinks_sending.ZtickSender):
            return False  # the id settles it
        found = self.sender.client.get(mark.key)
        if found is None or found.execution_ns == mark.ns:
            return False
        if found.execution_ns == int(self._ledger.intended[mark]):
            self.outcome.arrived_before += 1
        else:
            self.outcome.changed_meanwhile += 1
        return True


@dataclass(slots=True)
class _Content:
    run_id: str | None
    intended: dict[SentMark, str]
    done: set[SentMark]
    whole_bytes: int


class RedriveLedger:
    """A record open for a redrive."""

    def __init__(self, disk: Disk, path: str) -> None:
        """Raises LogLocked when another redrive has it, LogError when it is something else."""
        directory = posixpath.dirname(path) or "."
        disk.make_dirs(directory)
        self._lock = _take_lock(disk, path)
        try:
            content = _read(disk, path)
            self.intended = content.intended
            self.done = content.done
            self._file = _opened(disk, path, content.whole_bytes)
            if content.run_id is None:
                content.run_id = str(uuid4())
                self._append({"ledger": _VERSION, "run": content.run_id})
                disk.sync_dir(directory)
            self.run_id = content.run_id
        except BaseException:
            self._lock.release()
            raise

    def intend(self, jobs: Iterable[tuple[SentMark, str]]) -> None:
        """Durable when this returns: these are about to be sent, as what is said."""
        new = [(mark, becomes) for mark, becomes in jobs if mark not in self.intended]
        if new:
            self._append({"intend": [[mark.key, mark.ns, becomes] for mark, becomes in new]})
            self.intended.update(new)

    def finish(self, marks: Sequence[SentMark]) -> None:
        """Durable when this returns: the server has these."""
        if marks:
            self._append({"done": [list(mark) for mark in marks]})
            self.done.update(marks)

    def close(self) -> None:
        try:
            self._file.close()
        finally:
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_how: object) -> None:
        self.close()

    def _append(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")
        self._file.sync()


def read_done(disk: Disk, path: str) -> list[SentMark]:
    """The jobs that have gone, without opening the record for a redrive."""
    return sorted(_read(disk, path).done)


def _take_lock(disk: Disk, path: str) -> Lock:
    try:
        return disk.lock(f"{path}.lock")
    except LogLocked as error:
        raise LogLocked(path, "another redrive is writing this record") from error


def _opened(disk: Disk, path: str, whole_bytes: int) -> AppendFile:
    file = disk.open_append(path)
    if file.size() > whole_bytes:
        file.truncate(whole_bytes)
        file.sync()
    return file


def _read(disk: Disk, path: str) -> _Content:
    """All whole lines. Raises LogError for a file that is no record."""
    content = _Content(None, {}, set(), 0)
    data = disk.read_bytes(path) if disk.exists(path) else b""
    *lines, _ = data.split(b"\n")  # the text after the last line end is incomplete
    for number, line in enumerate(lines, 1):
        try:
            _take(content, json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise LogError(path, f"line {number} is not of a redrive's record") from error
        content.whole_bytes += len(line) + 1
    return content


def _take(content: _Content, line: dict[str, Any]) -> None:
    if content.run_id is None:
        if line["ledger"] != _VERSION:
            raise ValueError("another version")
        content.run_id = str(line["run"])
    for key, ns, becomes in line.get("intend", ()):
        content.intended[SentMark(key, ns)] = becomes
    content.done.update(SentMark(key, ns) for key, ns in line.get("done", ()))
