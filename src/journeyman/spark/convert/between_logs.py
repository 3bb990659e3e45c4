"""workq -> ztick: jobs that wait for their time become planned jobs of the schedule.

    schedule <id> mail T, payload mail.17  ->  job "mail.17" at T    if <id> is that of "mail.17"
    schedule <id> mail T, payload {...}    ->  job "<id>" at T       and the payload is listed

A schedule keeps an identifier, a time and a status. Everything else that a job of the work queue
says is listed field by field; jobs that are ready, leased or finished are listed as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as everyone writes it

from journeyman.errors import UsageError
from journeyman.folds.workq import MAX_TTL_MS, MAX_TTR_MS
from journeyman.formats.workq import MAX_PAYLOAD_BYTES
from journeyman.spark.replay.state_tables import waiting
from journeyman.units import NS_PER_MS

# ----------------------------------------
# What is not carried over: one row a job or field, with its value and the reason.
#
#     _log     key        field     value    reason
#     /a/log   job.17     (all)     null     it has run: executed
#     /a/log   mail       runner    shell …  a work queue runs nothing by itself: workers do
#
# All losses of a row are found in one pass over it, however many fields there are.

WHOLE: Final = "(all)"  # not a field: nothing of it is carried over


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


def whole(reason: Column) -> Loss:
    """Nothing of a row is carried over, where there is a reason."""
    return Loss(WHOLE, F.lit(None), reason, reason.isNotNull())


def losses_of(frame: DataFrame, key: Column, losses: Sequence[Loss]) -> DataFrame:
    """One row for every loss that a row of the frame has."""
    entries = F.array_compact(F.array(*(loss.entry() for loss in losses)))
    rows = frame.select("_log", key.alias("key"), F.explode(entries).alias("loss"))
    return rows.select("_log", "key", "loss.field", "loss.value", "loss.reason")


def all_losses(frames: Sequence[DataFrame]) -> DataFrame:
    return reduce(DataFrame.unionByName, frames)


# ----------------------------------------
# Ids for jobs that have none: the same name gives the same id, in the form of a version 4 UUID.
#
# The work queue takes version 4 only. These are the first bytes of a SHA-256 with the bits of that
# version set, so a conversion that is run twice makes the same jobs, which a server refuses to add
# twice.


def id_column(text: Column) -> Column:
    """16 bytes for each name: what ``id_of`` gives."""
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


# ----------------------------------------
# Rows of the work queue, made from other things: what they share.
#
# A converted job is an ``add`` or ``schedule`` record with the settings that were asked for. What
# the protocol of the work queue would refuse is not written: a queue name it does not take, a
# payload over 1 MiB, a job whose time to live is over.

NAME_PATTERN: Final = r"^[A-Za-z0-9_.-]{1,255}$"
# In the order of the source; what the sink needs.
QUEUE_COLUMNS: Final = (
    *("kind", "job_id", "logged_ns", "name", "ttr_ms", "ttl_ms", "priority"),
    *("max_attempts", "max_fails", "payload_size", "payload", "time_ns", "created_ns"),
)
_DEFAULT_NAME: Final = "default"


@dataclass(frozen=True, slots=True)
class JobDefaults:
    """What jobs get that the other side does not say. ``name`` None: from the rule or queue."""

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

    def name_column(self, found: Column) -> Column:
        """The name asked for, else the one found if the queue takes it, else ``default``."""
        if self.name is not None:
            return F.lit(self.name)
        return F.when(found.rlike(NAME_PATTERN), found).otherwise(F.lit(_DEFAULT_NAME))

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


_FIELDS: Final = ("name", "ttr_ms", "ttl_ms", "priority", "max_attempts", "max_fails")
_NO_PLACE: Final = "a schedule has no place for it"


def queue_to_schedule(tables: dict[str, DataFrame], as_of_ns: int) -> tuple[DataFrame, DataFrame]:
    """Rows for the ztick sink, and what is not carried over. The jobs come with payloads."""
    text = F.decode("payload", "UTF-8")
    is_name = F.coalesce(id_column(text) == F.col("job_id"), F.lit(False))
    jobs = (
        tables["jobs"]
        .withColumn("_is_name", is_name)
        .withColumn("identifier", F.when(is_name, text).otherwise(F.col("key")))
        .withColumn("_again", F.row_number().over(Window.partitionBy("key").orderBy("_log")))
        .withColumn(
            "_reason",
            F.when(F.col("expires_ns") <= as_of_ns, F.lit("its time to live is over"))
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
        whole(F.col("_reason")),
        *(Loss(name, F.col(name), _NO_PLACE, is_carried) for name in _FIELDS),
        Loss("payload", F.base64("payload"), _NO_PLACE, is_carried & ~payload_stays),
    ]
    return rows, losses_of(jobs, F.col("key"), losses)


# ----------------------------------------
# ztick -> workq: what is planned becomes a scheduled job of the work queue.
#
#     job "mail.17" at T, by rule "mail"  ->  schedule <id of "mail.17"> mail T, payload mail.17
#
# The queue of a job is its rule's identifier, by the longest pattern that the job's identifier
# begins with, as the server chooses; or the name that was asked for. The payload is the identifier,
# so that the way back finds it. Rules have no counterpart: a work queue runs nothing by itself.


def schedule_to_queue(
    tables: dict[str, DataFrame], settings: JobDefaults
) -> tuple[DataFrame, DataFrame]:
    """Rows for the workq sink, and what is not carried over."""
    jobs = _first_of_each_name(with_rule(tables["jobs"], tables["rules"]))
    expires = F.col("execution_ns") > settings.now_ns - settings.ttl_ms * NS_PER_MS
    jobs = jobs.withColumn(
        "_reason",
        F.when(F.col("_again") > 1, F.lit("another log has a job of this identifier"))
        .when(F.col("status").isin("executed", "failed"), F.concat(F.lit("it has run: "), "status"))
        .when(~expires, F.lit("due so long ago that its time to live is over")),
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
    no_runner = Loss("runner", runner, "a work queue runs nothing by itself: workers do")
    losses = [
        losses_of(jobs, key, [whole(F.col("_reason")), under_way]),
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


# ----------------------------------------
# kestrel -> workq: items that some reader still waits for become jobs of the work queue.
#
#     queue "mail", item 17, data  ->  add <id of ".../mail/17"> mail, payload data, created when
# put
#
# The id is that of the whole path: queues of one name on several hosts hold different items. A work
# queue gives each job to one worker: readers have no counterpart and are listed. An item with
# several readers becomes one job. TTL is what the item has left by its expiry, or what was asked
# for.


def journal_to_queue(
    tables: dict[str, DataFrame], settings: JobDefaults
) -> tuple[DataFrame, DataFrame]:
    """Rows for the workq sink, and what is not carried over. The items come with data."""
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
                F.lit("its time to live is over"),
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
        whole(F.col("_reason")),
        Loss(
            "error_count",
            F.col("error_count"),
            "a new job has not failed yet",
            is_carried & (F.col("error_count") != 0),
        ),
        Loss(
            "expire_time_ms",
            F.col("expire_time_ms"),
            "a time to live is 30 days at most",
            is_carried & (F.col("_wanted_ttl_ms") > F.col("_ttl_ms")),
        ),
    ]
    of_reader = Loss("reader", F.col("opened_head"), "a work queue gives each job to one worker")
    losses = [
        losses_of(finished, name, [whole(F.lit("every reader has finished it"))]),
        losses_of(left, name, of_item),
        losses_of(tables["readers"], reader, [of_reader]),
    ]
    return rows, all_losses(losses)
