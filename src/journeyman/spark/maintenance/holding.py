"""A log that is held: its locks held, its files settled, a place beside it for new ones.

    with hold_log(disk, clock, "workq", log) as held:
        held.log         the log as it is now, files in reading order
        held.staging     a hidden directory, gone when this ends

The locks are those that the servers take, so neither ours nor an original can write meanwhile. What
a crash has left is put right first: a publication that was decided on is finished, and a last entry
cut short is put aside, as opening the log would do it.

Other damage is refused: what could not be read would not be in the new files. The server puts it
aside when it opens a log, and so does ``journeyman repair``; both keep every byte.

Whether the new files hold the same state is checked row for row, as a multiset, in one shuffle:

    before: +1 a row --+
                       +--> group by all columns --> any group whose sum is not 0
    after:  -1 a row --+
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everyone writes it
from pyspark.sql.types import BinaryType

from journeyman.clock import Clock
from journeyman.columnar.seals import is_proven
from journeyman.disk import Disk
from journeyman.errors import FormatError, IncompleteEntry, LogError
from journeyman.formats.framing import Buffer, Codec
from journeyman.formats.seals import SealFormat
from journeyman.logs.catalog import Log
from journeyman.logs.damage import Damage
from journeyman.logs.holders import Holders, ask, names_of_holders
from journeyman.logs.publication import HELD_DIRECTORY, finish, journal_path
from journeyman.logs.sealing import has_seals, is_in_flight, read_file
from journeyman.logs.segments import APPEND_LOCK, READ_LOCK, ZtickNames, kestrel_lock_name
from journeyman.spark.files import absolute, find_source_logs, is_uri, refuse_uri, staging_name
from journeyman.spark.replay import packets, tables_of
from journeyman.spark.sinks import commit
from journeyman.spark.source import options as source_options

# The columns of a state, by dialect and table: all but the places of records, which change.
COMPARED: Final[Mapping[tuple[str, str], Sequence[str]]] = {
    ("ztick", "jobs"): ("identifier", "execution_ns", "status"),
    ("ztick", "rules"): ("identifier", "pattern", "runner", "runner_args"),
    ("workq", "jobs"): (
        *("key", "kind", "logged_ns", "name", "ttr_ms", "ttl_ms", "priority", "max_attempts"),
        *("max_fails", "payload", "time_ns", "created_ns", "state", "attempts", "fails", "result"),
        *("started_ns", "finished_ns", "exhausted", "owed_timeouts", "parked"),
        "expires_ns",
    ),
    ("kestrel", "items"): (
        *("queue", "item_id", "add_time_ms", "expire_time_ms", "error_count", "data"),
        *("ordinal", "contested"),
    ),
    ("kestrel", "readers"): ("queue", "reader", "head", "done", "damaged", "opened_head"),
}


@dataclass(frozen=True, slots=True)
class HeldLog:
    """A log that nobody else writes. ``paths`` is what to read to read all of it."""

    dialect: str
    log: Log
    paths: tuple[str, ...]
    staging: str

    @property
    def directory(self) -> str:
        return directory_of(self.dialect, self.log)

    @property
    def size(self) -> int:
        return sum(file.size for file in self.log.files if file.reader is None)


@dataclass(frozen=True, slots=True)
class MaintenanceResult:
    """``changed`` is False when there was nothing to gain; ``error`` says why it was left alone."""

    dialect: str
    log: str
    changed: bool = False
    records_before: int = 0
    records_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    error: str | None = None

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def logs_at(
    dialect: str, paths: tuple[str, ...], queue: str | None = None, *, changes: bool = True
) -> list[Log]:
    """The logs at these paths, each of them whole; ``changes``: to be changed. UsageError."""
    for path in paths if changes else ():
        refuse_uri(absolute(path))
    return find_source_logs(source_options.SourceOptions(dialect, paths, queue=queue))


@contextmanager
def hold_log(disk: commit.SinkDisk, clock: Clock, dialect: str, log: Log) -> Iterator[HeldLog]:
    """Hold a log. Raises LogLocked when it is in use. One at a URI has no locks; it is as found."""
    if is_uri(log.where):
        yield HeldLog(dialect, log, _paths(dialect, log), "")
        return
    directory = directory_of(dialect, log)
    with commit.locked(disk, log.name, _locks(dialect, log)):
        if dialect != source_options.ZTICK:
            finish(disk, journal_path(directory))
        _set_torn_ends_aside(disk, dialect, _found_again(dialect, log))
        log = _found_again(dialect, log)
        commit.remove_stale(disk, directory, clock.now_ns())
        staging = posixpath.join(directory, staging_name(clock.now_ns()))
        try:
            yield HeldLog(dialect, log, _paths(dialect, log), staging)
        finally:
            # Once a publication is decided on, its files are needed until it is finished.
            if not disk.exists(journal_path(directory)):
                commit.remove_staging(disk, staging)


def directory_of(dialect: str, log: Log) -> str:
    return log.name if dialect == source_options.WORKQ else posixpath.dirname(log.name)


def has_sealed_files(disk: Disk, format_: SealFormat, log: Log) -> bool:
    """Return whether any file of the log has seals: then rewritten files get them too."""
    return any(has_seals(format_, disk.view(file.path)) for file in log.files)


def _locks(dialect: str, log: Log) -> list[str]:
    if dialect == source_options.ZTICK:
        return [ZtickNames(log.name).lock]
    directory = directory_of(dialect, log)
    if dialect == source_options.WORKQ:
        return [posixpath.join(directory, name) for name in (APPEND_LOCK, READ_LOCK)]
    return [posixpath.join(directory, kestrel_lock_name(posixpath.basename(log.name)))]


def _paths(dialect: str, log: Log) -> tuple[str, ...]:
    """A queue is named by its files: the directory holds others too."""
    if dialect == source_options.KESTREL:
        return tuple(file.path for file in log.files)
    return (log.name,)


def _found_again(dialect: str, log: Log) -> Log:
    """The log as it is now, under the lock."""
    if dialect == source_options.KESTREL:
        directory, queue = posixpath.split(log.name)
        options = source_options.SourceOptions(dialect, (directory,), queue=queue)
    else:
        options = source_options.SourceOptions(dialect, (log.name,))
    (again,) = [each for each in find_source_logs(options) if each.name == log.name]
    return replace(again, partitions=log.partitions)


def _set_torn_ends_aside(disk: commit.SinkDisk, dialect: str, log: Log) -> None:
    """Put aside what a crash left at the end. Other damage stays: it is for repair, and refused."""
    codec, hop = _codec_and_hop(dialect)
    for file in log.files:
        if file.reader is None and _ends_torn(disk.view(file.path), codec, hop):
            commit.settle_tail(disk, codec, hop, file.path)


def _ends_torn(data: Buffer, codec: Codec[Any], hop: Any) -> bool:
    try:
        end = hop(data, codec.check_header(data), len(data))
    except IncompleteEntry:
        return True
    except FormatError:
        return False
    return (end < len(data) and codec.is_torn(data, end)) or _ends_unsealed(data, codec)


def _ends_unsealed(data: Buffer, codec: Codec[Any]) -> bool:
    """True if all that is wrong is a batch that is announced and not whole."""
    if codec.seals is None or is_proven(codec, data):
        return False
    damages = [found for found in read_file(codec, data) if isinstance(found, Damage)]
    return bool(damages) and all(map(is_in_flight, damages))


def _codec_and_hop(dialect: str) -> tuple[Codec[Any], Any]:
    formats = import_module(f"journeyman.formats.{dialect}")
    codec = formats.WRITER if dialect == source_options.KESTREL else formats.CODEC
    return codec, import_module(f"journeyman.columnar.{dialect}.decode").hop


@contextmanager
def folded(
    spark: SparkSession,
    held_log: HeldLog,
    paths: Sequence[str] = (),
    *,
    payloads: bool = False,
    **options: object,
) -> Iterator[tuple[dict[str, DataFrame], int]]:
    """Read a log once: its state tables, and how many records it has. Raises LogError for damage.

    ``paths``: staged files to read in the place of the log.
    """
    packed = packets(spark, held_log.dialect, paths or held_log.paths, **options).persist()
    try:
        records = refuse_damage(packed, held_log.log.name)
        yield tables_of(packed, held_log.dialect, payloads=payloads), records
    finally:
        packed.unpersist()


def refuse_damage(packed: DataFrame, log: str) -> int:
    """How many records these packets stand for. Raises LogError when some were damaged."""
    is_damage = F.col("kind") == source_options.DAMAGE_KIND
    counts = packed.agg(
        F.count_if(is_damage).alias("damages"), F.sum("records").alias("records")
    ).collect()[0]
    if counts["damages"]:
        raise LogError(
            log,
            f"is damaged in {counts['damages']} places, and what cannot be read would be lost: "
            "run `journeyman repair` first, which puts it aside",
        )
    return counts["records"] or 0


def refuse_unread(disk: Disk, clock: Clock, held_log: HeldLog) -> None:
    """Raises LogError when a stream or a lake has not read all of the log, within the limits."""
    names = ZtickNames(held_log.log.name) if held_log.dialect == source_options.ZTICK else None
    files = [each.path for each in held_log.log.files if each.reader is None]
    log, active = held_log.log.queue or "", None
    if names is not None:
        files = [path for path in files if path != names.compressed]
        log, active = posixpath.basename(names.active), ""
    if ask(Holders(disk, clock), held_log.directory, log, files, active).count < len(files):
        who = ", ".join(names_of_holders(disk, held_log.directory))
        where = posixpath.join(held_log.directory, HELD_DIRECTORY)
        raise LogError(
            held_log.log.name,
            f"{who} has not read all of it: let it read first, or remove its file in {where}",
        )


def check_same(
    log: str, table: str, before: DataFrame, after: DataFrame, columns: Sequence[str]
) -> None:
    """Raises LogError, naming one row, when the tables differ."""
    for row in differences(before, after, columns).limit(1).collect():
        where = "is missing from" if row["_sum"] > 0 else "has come up in"
        shown = {name: row[name] for name in columns[:2]}
        raise LogError(
            log, f"the new files hold another state: {table} {shown} {where} them; nothing changed"
        )


def differences(before: DataFrame, after: DataFrame, columns: Sequence[str]) -> DataFrame:
    """The rows that one of the tables has more often than the other; ``_sum`` says by how much."""
    signed = _signed(before, columns, 1).unionByName(_signed(after, columns, -1))
    return signed.groupBy(*columns).agg(F.sum("_sign").alias("_sum")).filter("_sum != 0")


def _signed(frame: DataFrame, columns: Sequence[str], sign: int) -> DataFrame:
    return frame.select(*(_compared(frame, name) for name in columns), F.lit(sign).alias("_sign"))


def _compared(frame: DataFrame, name: str) -> Column:
    # A payload is shuffled as the 32 bytes of its digest.
    if isinstance(frame.schema[name].dataType, BinaryType):
        return F.sha2(F.col(name), 256).alias(name)
    return F.col(name)
