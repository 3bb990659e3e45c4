"""Logs of one kind made into another, and what cannot be carried over, listed.

    ztick   -> workq      jobs that are planned become scheduled jobs; rules are listed
    workq   -> ztick      scheduled jobs become planned jobs; what else a job says is listed
    kestrel -> workq      items that some reader still waits for become jobs
    any     -> keyspace   job records with their indexes and counters, as Parquet files
    any     -> parquet    every record, and back, byte for byte: see parquet.py

A conversion is a function from state tables to two DataFrames: rows for a sink, and losses: one row
for every job, and every field of a job, that the other side has no place for, with the reason. What
is in neither does not exist.

    _log     key        field     value    reason
    /a/log   job.17     (all)     null     it has run: executed
    /a/log   mail       runner    shell …  a work queue runs nothing itself: workers do

What the protocol of the work queue would refuse is not written: a queue name that it does not take,
a payload over 1 MiB, a job whose time to live is over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, Final
from uuid import UUID

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - as everyone writes it

from journeyman.errors import UsageError
from journeyman.folds.keyspace import payload_text, queue_record
from journeyman.folds.workq import MAX_TTL_MS, MAX_TTR_MS
from journeyman.formats.keyspace.keys import CounterKey, QueueKey, encode_key
from journeyman.formats.keyspace.values import JobRecord, encode_value, index_entries
from journeyman.formats.workq import MAX_PAYLOAD_BYTES
from journeyman.spark import write
from journeyman.spark.replay import packets, tables_of, waiting
from journeyman.spark.source.options import arrow_schema, struct
from journeyman.spark.tables import write_parquet
from journeyman.units import NS_PER_MS

WHOLE_ROW: Final = "(all)"  # not a field: nothing of it is carried over
NAME_PATTERN: Final = r"^[A-Za-z0-9_.-]{1,255}$"
# In the order of the source; what the sink needs.
QUEUE_COLUMNS: Final = (
    *("kind", "job_id", "logged_ns", "name", "ttr_ms", "ttl_ms", "priority"),
    *("max_attempts", "max_fails", "payload_size", "payload", "time_ns", "created_ns"),
)
_DEFAULT_NAME: Final = "default"
_LOST_IN_SCHEDULE: Final = ("name", "ttr_ms", "ttl_ms", "priority", "max_attempts", "max_fails")
_NOT_IN_SCHEDULE: Final = "a schedule has no place for it"
_LOST_IN_KEYSPACE: Final = ("ttr_ms", "ttl_ms", "priority", "max_fails")
_NOT_IN_KEYSPACE: Final = "a job record has no member for it"
_ENTRY: Final = struct("raw_key binary, value binary")
Tables = dict[str, DataFrame]


@dataclass(frozen=True, slots=True)
class Conversion:
    """Rows for a sink, and what is not carried over; both made from what Spark ``held``."""

    target: str
    rows: DataFrame
    losses: DataFrame
    held: DataFrame

    def release(self) -> None:
        """Free what was cached: nothing more will be asked of it."""
        self.held.unpersist()

    def write(self, output: str, *, force: bool = False) -> None:
        """Write the rows as a log of their own, or as Parquet files for ``storage import``."""
        if self.target == "keyspace":
            entries = self.rows.select(F.col("raw_key").alias("key"), "value").sort("key")
            write_parquet(entries, output, overwrite=force)
            return
        mode = "overwrite" if force else "append"
        write(self.rows, self.target, output, mode=mode, orderBy="_log,_position")


@dataclass(frozen=True, slots=True)
class Loss:
    """A field whose value is lost in the rows where ``when`` holds; in all if it is None."""

    field: str
    value: Column
    reason: Column | str
    when: Column | None = None

    def entry(self) -> Column:
        reason = F.lit(self.reason) if isinstance(self.reason, str) else self.reason
        found = F.struct(
            F.lit(self.field).alias("field"),
            self.value.cast("string").alias("value"),
            reason.alias("reason"),
        )
        return found if self.when is None else F.when(self.when, found)


def whole_loss(reason: Column) -> Loss:
    """Return the loss of a whole row, where there is a reason."""
    return Loss(WHOLE_ROW, F.lit(None), reason, reason.isNotNull())


def losses_of(frame: DataFrame, key: Column, losses: Sequence[Loss]) -> DataFrame:
    """One row for every loss that a row of the frame has."""
    entries = F.array_compact(F.array(*(loss.entry() for loss in losses)))
    rows = frame.select("_log", key.alias("key"), F.explode(entries).alias("loss"))
    return rows.select("_log", "key", "loss.field", "loss.value", "loss.reason")


def all_losses(frames: Sequence[DataFrame]) -> DataFrame:
    return reduce(DataFrame.unionByName, frames)


def id_column(text: Column) -> Column:
    """An id for each name: 16 bytes in the form of a version 4 UUID, the only one workq takes.

    These are the first bytes of a SHA-256 with the bits of that version set. So a conversion that
    is run twice makes the same jobs, which a server refuses to add twice.
    """
    digits = F.sha2(text, 256)
    # The variant is two bits: of the 17th digit the lower two stay.
    low = F.conv(F.substring(digits, 17, 1), 16, 10).cast("int").bitwiseAND(F.lit(3))
    variant = F.lower(F.hex(low.bitwiseOR(F.lit(8))))
    return F.unhex(
        F.concat(
            F.substring(digits, 1, 12),
            F.lit("4"),
            F.substring(digits, 14, 3),
            variant,
            F.substring(digits, 18, 15),
        )
    )


@dataclass(frozen=True, slots=True)
class JobDefaults:
    """Fields of jobs that the source lacks. If ``name`` is None, the rule or queue gives it."""

    now_ns: int
    name: str | None = None
    ttr_ms: int = 60_000
    ttl_ms: int = MAX_TTL_MS
    priority: int = 0
    max_attempts: int = 0
    max_fails: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.ttr_ms <= MAX_TTR_MS or not 1 <= self.ttl_ms <= MAX_TTL_MS:
            raise UsageError(f"ttr is 1..{MAX_TTR_MS} ms and ttl 1..{MAX_TTL_MS} ms")

    def name_column(self, name: Column) -> Column:
        """The name asked for, else the one found if the queue takes it, else ``default``."""
        if self.name is not None:
            return F.lit(self.name)
        return F.when(name.rlike(NAME_PATTERN), name).otherwise(F.lit(_DEFAULT_NAME))

    def columns(self) -> dict[str, Column]:
        """The columns that are the same for all jobs."""
        return {
            "ttr_ms": F.lit(self.ttr_ms).cast("long"),
            "ttl_ms": F.lit(self.ttl_ms).cast("long"),
            "priority": F.lit(self.priority),
            "max_attempts": F.lit(self.max_attempts).cast("long"),
            "max_fails": F.lit(self.max_fails).cast("long"),
            "logged_ns": F.lit(self.now_ns).cast("long"),
        }


def schedule_to_queue(
    tables: dict[str, DataFrame], settings: JobDefaults
) -> tuple[DataFrame, DataFrame]:
    """Convert ztick to workq: planned jobs become scheduled jobs.

        job "mail.17" at T, by rule "mail"  ->  schedule <id of "mail.17"> mail T, payload mail.17

    The queue of a job is its rule's identifier, by the longest pattern that the job's identifier
    begins with, as the server chooses; or the name that was asked for. The payload is the
    identifier, so that the way back finds it. Rules have no counterpart.
    """
    jobs = _first_of_each_name(with_rule(tables["jobs"], tables["rules"]))
    expires = F.col("execution_ns") > settings.now_ns - settings.ttl_ms * NS_PER_MS
    jobs = jobs.withColumn(
        "_reason",
        F.when(F.col("_again") > 1, F.lit("another log has a job of this identifier"))
        .when(F.col("status").isin("executed", "failed"), F.concat(F.lit("it has run: "), "status"))
        .when(~expires, F.lit("due so long ago that its TTL has ended")),
    )
    carried = jobs.filter(F.col("_reason").isNull())
    rows = carried.select(
        "_log",
        "_position",
        *(column.alias(name) for name, column in settings.columns().items()),
        F.lit("schedule").alias("kind"),
        id_column(F.col("identifier")).alias("job_id"),
        settings.name_column(F.col("rule")).alias("name"),
        F.encode("identifier", "UTF-8").alias("payload"),
        F.octet_length("identifier").alias("payload_size"),
        F.col("execution_ns").alias("time_ns"),
        F.lit(settings.now_ns).cast("long").alias("created_ns"),
    ).select("_log", "_position", *QUEUE_COLUMNS)
    key = F.col("identifier")
    runner = F.concat_ws(" ", "runner", F.concat_ws(" ", "runner_args"))
    is_carried = F.col("_reason").isNull()
    under_way = Loss(
        "status",
        F.col("status"),
        "its run was under way; it is due again",
        is_carried & (F.col("status") != "planned"),
    )
    no_runner = Loss("runner", runner, "a work queue runs nothing itself: workers do")
    losses = [
        losses_of(jobs, key, [whole_loss(F.col("_reason")), under_way]),
        losses_of(tables["rules"], key, [no_runner]),
    ]
    return rows, all_losses(losses)


def with_rule(jobs: DataFrame, rules: DataFrame) -> DataFrame:
    """Jobs with the identifier of the ``rule`` that each runs by, null if by none.

    Patterns have few lengths, so the beginnings of each identifier that have one of them are looked
    up, instead of comparing every job with every rule.
    """
    lengths = [
        row["length"]
        for row in rules.filter("pattern != ''")
        .select(F.length("pattern").alias("length"))
        .distinct()
        .collect()
    ]
    best = rules.groupBy("_log", "pattern").agg(F.min("identifier").alias("rule"))
    if not lengths:
        return jobs.withColumn("rule", F.lit(None).cast("string"))
    prefixes = jobs.select(
        "_log", "identifier", F.explode(F.array(*map(F.lit, lengths))).alias("length")
    ).filter(F.length("identifier") >= F.col("length"))
    prefixes = prefixes.withColumn("pattern", F.expr("left(identifier, length)"))
    found = (
        prefixes.join(F.broadcast(best), ["_log", "pattern"])
        .groupBy("_log", "identifier")
        .agg(F.max_by("rule", "length").alias("rule"))
    )
    return jobs.join(found, ["_log", "identifier"], "left")


def _first_of_each_name(jobs: DataFrame) -> DataFrame:
    """``_again`` counts the logs that have a job of the same identifier, from 1."""
    order = Window.partitionBy("identifier").orderBy("_log")
    return jobs.withColumn("_again", F.row_number().over(order))


def queue_to_schedule(tables: dict[str, DataFrame], as_of_ns: int) -> tuple[DataFrame, DataFrame]:
    """Convert workq to ztick: jobs that wait for their time become planned jobs.

        schedule <id> mail T, payload mail.17  ->  job "mail.17" at T   if <id> is that of mail.17
        schedule <id> mail T, payload {...}    ->  job "<id>" at T      and the payload is listed

    A schedule keeps an identifier, a time and a status. Everything else that a job says is listed
    field by field; jobs that are ready, leased or finished are listed as a whole.
    """
    text = F.decode("payload", "UTF-8")
    is_name = F.coalesce(id_column(text) == F.col("job_id"), F.lit(False))
    jobs = (
        tables["jobs"]
        .withColumn("_is_name", is_name)
        .withColumn("identifier", F.when(is_name, text).otherwise(F.col("key")))
        .withColumn("_again", F.row_number().over(Window.partitionBy("key").orderBy("_log")))
        .withColumn(
            "_reason",
            F.when(F.col("expires_ns") <= as_of_ns, F.lit("its TTL has ended"))
            .when(F.col("_again") > 1, F.lit("another log has a job of this id"))
            .when(F.col("state") != "new", F.concat(F.lit("it is "), "state"))
            .when(F.col("time_ns").isNull(), F.lit("it is ready at once, not scheduled")),
        )
    )
    carried = jobs.filter(F.col("_reason").isNull())
    rows = carried.select(
        "_log",
        "_position",
        F.lit("set").alias("kind"),
        "identifier",
        F.col("time_ns").alias("execution_ns"),
        F.lit("planned").alias("status"),
    )
    is_carried = F.col("_reason").isNull()
    payload_stays = F.col("_is_name") | (F.col("payload_size") == 0)
    losses = [
        whole_loss(F.col("_reason")),
        *(Loss(name, F.col(name), _NOT_IN_SCHEDULE, is_carried) for name in _LOST_IN_SCHEDULE),
        Loss("payload", F.base64("payload"), _NOT_IN_SCHEDULE, is_carried & ~payload_stays),
    ]
    return rows, losses_of(jobs, F.col("key"), losses)


def journal_to_queue(
    tables: dict[str, DataFrame], settings: JobDefaults
) -> tuple[DataFrame, DataFrame]:
    """Convert kestrel to workq: items that some reader still waits for become jobs.

        queue "mail", item 17, data  ->  add <id of ".../mail/17"> mail, payload data, created then

    The id is that of the whole path: queues of one name on several hosts hold different items. A
    work queue gives each job to one worker: readers have no counterpart and are listed, and an item
    with several readers becomes one job. TTL is what the item has left by its expiry, or what was
    asked for.
    """
    items = tables["items"]
    left = waiting(items, tables["readers"])
    finished = items.join(left.select("_log", "_position"), ["_log", "_position"], "left_anti")
    asked_ttl = F.lit(settings.ttl_ms).cast("long")
    ttl_ms = F.coalesce(F.col("expire_time_ms") - F.col("add_time_ms"), asked_ttl)
    now_ms = settings.now_ns // NS_PER_MS
    left = (
        left.withColumn("_ttl_ms", F.least(ttl_ms, F.lit(MAX_TTL_MS).cast("long")))
        .withColumn("_wanted_ttl_ms", ttl_ms)
        .withColumn(
            "_reason",
            F.when(F.col("data_size") > MAX_PAYLOAD_BYTES, F.lit("larger than 1 MiB")).when(
                (F.col("_ttl_ms") < 1) | (F.col("add_time_ms") + F.col("_ttl_ms") <= now_ms),
                F.lit("its TTL has ended"),
            ),
        )
    )
    carried = left.filter(F.col("_reason").isNull())
    shared = settings.columns()
    del shared["ttl_ms"]
    place = ("item_id", F.when(F.col("ordinal") > 0, F.col("ordinal")))
    name = F.concat_ws("/", "queue", *place)
    rows = carried.select(
        "_log",
        "_position",
        *(column.alias(each) for each, column in shared.items()),
        F.col("_ttl_ms").alias("ttl_ms"),
        F.lit("add").alias("kind"),
        id_column(F.concat_ws("/", "_log", *place)).alias("job_id"),
        settings.name_column(F.col("queue")).alias("name"),
        F.col("data").alias("payload"),
        F.col("data_size").alias("payload_size"),
        F.lit(None).cast("long").alias("time_ns"),
        (F.col("add_time_ms") * NS_PER_MS).alias("created_ns"),
    ).select("_log", "_position", *QUEUE_COLUMNS)
    reader = F.concat_ws("+", "queue", "reader")
    is_carried = F.col("_reason").isNull()
    of_item = [
        whole_loss(F.col("_reason")),
        Loss(
            "error_count",
            F.col("error_count"),
            "a new job has not failed yet",
            is_carried & (F.col("error_count") != 0),
        ),
        Loss(
            "expire_time_ms",
            F.col("expire_time_ms"),
            "a TTL is 30 days at most",
            is_carried & (F.col("_wanted_ttl_ms") > F.col("_ttl_ms")),
        ),
    ]
    of_reader = Loss("reader", F.col("opened_head"), "a work queue gives each job to one worker")
    losses = [
        losses_of(finished, name, [whole_loss(F.lit("every reader has finished it"))]),
        losses_of(left, name, of_item),
        losses_of(tables["readers"], reader, [of_reader]),
    ]
    return rows, all_losses(losses)


def queue_state_to_keyspace(
    tables: dict[str, DataFrame], as_of_ns: int
) -> tuple[DataFrame, DataFrame]:
    """Convert workq to an Overhop keyspace: entries for all jobs that exist.

        a job --index_entries--> v1:j:  v2:j_qt:  v1:status:  v1:status_fifo:
        all jobs of a queue --count by status--> v1:q_status:        each queue --> v1:q:

        workq state     new, due later   new, pending   leased    completed   failed
        status          delayed          waiting        active    completed   failed

    A payload is JSON there. One that is JSON stays as it is; other text becomes a JSON string,
    other bytes their base64 in one; both are listed.
    """
    jobs = tables["jobs"]
    status = (
        F.when(F.col("state").isin("completed", "failed"), F.col("state"))
        .when(F.col("state") == "leased", F.lit("active"))
        .when(F.col("time_ns") > as_of_ns, F.lit("delayed"))
        .otherwise(F.lit("waiting"))
    )
    jobs = jobs.withColumn("status", status).withColumn(
        "_reason", F.when(F.col("expires_ns") <= as_of_ns, F.lit("its TTL has ended"))
    )
    has_result = F.coalesce(F.col("result_size"), F.lit(0)) > 0
    losses = [
        whole_loss(F.col("_reason")),
        Loss(
            "result", F.base64("result"), _NOT_IN_KEYSPACE, F.col("_reason").isNull() & has_result
        ),
        *_field_losses(F.col("_reason").isNull()),
    ]
    living = jobs.filter(F.col("_reason").isNull())
    return _entries_of(living), losses_of(jobs, F.col("key"), losses)


def queue_rows_to_keyspace(
    rows: DataFrame, losses: DataFrame, as_of_ns: int
) -> tuple[DataFrame, DataFrame]:
    """Convert rows that another conversion has made: jobs that no worker has touched."""
    later = F.col("time_ns") > as_of_ns
    jobs = rows.withColumn("status", F.when(later, F.lit("delayed")).otherwise(F.lit("waiting")))
    jobs = jobs.withColumn("attempts", F.lit(0).cast("long")).withColumn(
        "key",
        F.lower(
            F.regexp_replace(F.hex("job_id"), "(.{8})(.{4})(.{4})(.{4})(.{12})", "$1-$2-$3-$4-$5")
        ),
    )
    of_jobs = losses_of(jobs, F.col("key"), _field_losses(F.lit(True)))
    return _entries_of(jobs), all_losses([losses, of_jobs])


def _entries_of(jobs: DataFrame) -> DataFrame:
    """All entries for jobs with a status."""
    columns = ("key", "name", "status", "created_ns", "time_ns", "attempts", "max_attempts")
    entries = jobs.select(*columns, "payload").mapInArrow(partial(_encoded, _job_entries), _ENTRY)
    counts = jobs.groupBy("name", "status").count().mapInArrow(partial(_encoded, _counter), _ENTRY)
    queues = jobs.select("name").distinct().mapInArrow(partial(_encoded, _queue), _ENTRY)
    return entries.unionByName(counts).unionByName(queues)


def _field_losses(when: Column) -> list[Loss]:
    is_json = F.try_parse_json(F.decode("payload", "UTF-8")).isNotNull()
    changed = "it is not JSON, and became a JSON string"
    return [
        *(Loss(name, F.col(name), _NOT_IN_KEYSPACE, when) for name in _LOST_IN_KEYSPACE),
        Loss("payload", F.length("payload"), changed, when & ~F.coalesce(is_json, F.lit(False))),
    ]


def _encoded(
    entries_of: Callable[[dict[str, Any]], Iterable[tuple[bytes, bytes]]],
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """The entries of each row, as keys and values."""
    for batch in batches:
        found = [entry for row in batch.to_pylist() for entry in entries_of(row)]
        columns = ([entry[at] for entry in found] for at in range(2))
        arrays = [pa.array(column, pa.binary()) for column in columns]
        yield pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(_ENTRY))


def _job_entries(row: dict[str, Any]) -> Iterable[tuple[bytes, bytes]]:
    return index_entries(_record(row)).items()


def _counter(row: dict[str, Any]) -> Iterable[tuple[bytes, bytes]]:
    yield encode_key(CounterKey(row["name"], row["status"])), encode_value(row["count"])


def _queue(row: dict[str, Any]) -> Iterable[tuple[bytes, bytes]]:
    yield encode_key(QueueKey(row["name"])), encode_value(queue_record(row["name"]))


def _record(row: dict[str, Any]) -> JobRecord:
    job_uuid = UUID(row["key"])
    return JobRecord(
        job_uuid=job_uuid,
        jid=f"{row['name']}:{job_uuid}",
        queue=row["name"],
        status=row["status"],
        created_at_ns=row["created_ns"],
        execution_start_ns=row["created_ns"] if row["time_ns"] is None else row["time_ns"],
        max_attempts=row["max_attempts"] or None,
        attempts_so_far=row["attempts"],
        payload=payload_text(row["payload"] or b""),
    )


def _schedule_to_keyspace(tables: Tables, settings: JobDefaults) -> tuple[DataFrame, DataFrame]:
    return queue_rows_to_keyspace(*schedule_to_queue(tables, settings), settings.now_ns)


def _journal_to_keyspace(tables: Tables, settings: JobDefaults) -> tuple[DataFrame, DataFrame]:
    return queue_rows_to_keyspace(*journal_to_queue(tables, settings), settings.now_ns)


Converter = Callable[[Tables, JobDefaults], tuple[DataFrame, DataFrame]]
CONVERSIONS: Final[Mapping[tuple[str, str], Converter]] = {
    ("ztick", "workq"): schedule_to_queue,
    ("workq", "ztick"): lambda tables, settings: queue_to_schedule(tables, settings.now_ns),
    ("kestrel", "workq"): journal_to_queue,
    ("workq", "keyspace"): lambda tables, s: queue_state_to_keyspace(tables, s.now_ns),
    ("ztick", "keyspace"): _schedule_to_keyspace,
    ("kestrel", "keyspace"): _journal_to_keyspace,
}


def check_way(source: str, target: str) -> None:
    """Raises UsageError if logs of one kind cannot become the other."""
    if (source, target) not in CONVERSIONS:
        ways = ", ".join(f"{a} to {b}" for a, b in CONVERSIONS)
        raise UsageError(f"{source} cannot become {target}; there are {ways}, any to parquet")


def convert(
    spark: SparkSession, source: str, target: str, paths: Sequence[str], settings: JobDefaults
) -> Conversion:
    """Plan a conversion of the logs at these paths. Nothing runs before it is written."""
    check_way(source, target)
    held = packets(spark, source, list(paths)).persist()  # rows and losses: the log is read once
    tables = tables_of(held, source, payloads=source != "ztick")
    rows, losses = CONVERSIONS[source, target](tables, settings)
    return Conversion(target, rows, losses, held)
