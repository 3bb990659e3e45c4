"""``ingest``: new records into bronze, then silver and gold of what they touch.

    ingest(lambda: spark, "/lake", {"workq": ["/var/lib/workq"]}, host="a")

Bronze is one snapshot, silver and gold are the next one: killed in between, the next ingest begins
with silver and gold. An ingest that finds nothing new asks for no session. A log that cannot be
read is left out and reported at the end; the others are in the lake by then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from journeyman.errors import JourneymanError, UsageError
from journeyman.spark.lakes import bronze, gold, small_files, upkeep
from journeyman.spark.lakes.bronze import Feed, LakeSource
from journeyman.spark.lakes.layout import BRONZE_DIALECTS
from journeyman.spark.lakes.refresh import Session, finish_refresh, refresh
from journeyman.spark.lakes.storage import Lake, change_lake
from journeyman.spark.session import in_one_sentence
from journeyman.spark.source.options import KESTREL, ZTICK


@dataclass(frozen=True, slots=True)
class Ingested:
    """How many files each table of bronze got, the number of the last snapshot, and the tables that
    changed, with their versions."""

    files: Mapping[str, int]
    snapshot: int
    versions: Mapping[str, int] = field(default_factory=dict)


class LogsLeftOut(JourneymanError):
    """Logs that could not be read, and why. ``done`` is what came of the others."""

    def __init__(self, reasons: Mapping[str, Exception], done: Ingested) -> None:
        found = (f"{path} was left out: {_explain(why)}" for path, why in reasons.items())
        super().__init__("; ".join(found))
        self.reasons = reasons
        self.done = done


def _explain(why: Exception) -> str:
    if isinstance(why, OSError) and why.strerror:
        return f"{why.strerror}: {why.filename}"
    return str(in_one_sentence(why) or why)


def ingest(
    session: Session,
    path: str,
    logs: Mapping[str, Sequence[str]],
    *,
    host: str,
    payloads: bool = False,
    run_directory: str | None = None,
    follow: Callable[[Ingested, LogsLeftOut | None], bool] | None = None,
) -> Ingested:
    """Bring a lake up to date. Raises LogsLeftOut, once all logs that can be read are in the lake.

    ``session`` is called when there is work for Spark. ``follow`` is asked after each round whether
    to go on, and gets what came of it and which logs were left out.
    """
    sources = sources_of(logs, host, payloads=payloads)
    with change_lake(path) as lake:
        while True:
            done, reasons = _ingest_once(session, lake, sources, run_directory)
            left_out = LogsLeftOut(reasons, done) if reasons else None
            if follow is None and left_out is not None:
                raise left_out
            if follow is None or not follow(done, left_out):
                return done


def sources_of(
    logs: Mapping[str, Sequence[str]], host: str, *, payloads: bool = False
) -> list[LakeSource]:
    """The logs that are given by dialect. Raises UsageError if a lake does not take them."""
    unknown = sorted(set(logs) - set(BRONZE_DIALECTS))
    if unknown:
        raise UsageError(f"a lake takes {', '.join(BRONZE_DIALECTS)}, not {', '.join(unknown)}")
    sources = [
        LakeSource(dialect, path, host, payloads)
        for dialect, paths in logs.items()
        for path in paths
    ]
    for source in sources:
        source.check_hosts()
    return sources


def _ingest_once(
    session: Session, lake: Lake, sources: Sequence[LakeSource], run_directory: str | None
) -> tuple[Ingested, Mapping[str, Exception]]:
    """All that is new in the logs; and by path, why logs were left out."""
    before = lake.snapshot
    finish_refresh(session, lake)
    feeds = [Feed(lake, source, holds=True) for source in sources]
    files: dict[str, int] = {}
    while store_news(session, lake, feeds, run_directory):
        for table in lake.changed_tables:
            if table.startswith("bronze/"):
                files[table] = files.get(table, 0) + len(lake.fresh_files(table))
        offsets = {feed.source.stream: feed.end for feed in feeds if feed.parts}
        lake.commit(complete=False, offsets={**lake.snapshot.offsets, **offsets})
        for feed in feeds:
            feed.release()
        refresh(session(), lake)
        lake.commit(complete=True)
    _register(lake, feeds, run_directory)
    _store_readers(lake, feeds)
    upkeep.tidy(session, lake, before.number)
    after = lake.snapshot
    changed = {name: v for name, v in after.versions.items() if v != before.versions.get(name)}
    return Ingested(files, after.number, changed), bronze.reasons_of(feeds)


def store_news(
    session: Session, lake: Lake, feeds: Sequence[Feed], run_directory: str | None
) -> bool:
    """Put a batch of what is new into bronze, without a commit; False if there is nothing new."""
    is_new = bronze.plan_batch(feeds)
    if is_new:
        bronze.store_batch(session(), lake, feeds)
        is_new = any(feed.parts and feed.error is None for feed in feeds)
    read = dict(lake.snapshot.runs)
    for feed in feeds:
        if feed.source.dialect == ZTICK and feed.error is None:
            with _noting(feed):
                is_new = small_files.store_runs(lake, feed.source, read, run_directory) or is_new
    lake.note(runs=read)
    return is_new


def _register(lake: Lake, feeds: Sequence[Feed], run_directory: str | None) -> None:
    for feed in feeds:
        feed.register()
        if feed.source.dialect == ZTICK and feed.error is None:
            with _noting(feed):
                small_files.register_runs(lake, feed.source, run_directory)


def _store_readers(lake: Lake, feeds: Sequence[Feed]) -> None:
    looks, is_new = dict(lake.snapshot.readers), False
    for feed in feeds:
        if feed.source.dialect == KESTREL and feed.error is None:
            with _noting(feed):
                is_new = small_files.store_readers(lake, feed.source, looks) or is_new
    if is_new:
        gold.count_lag(lake)
        lake.commit(complete=True, readers=looks)


@contextmanager
def _noting(feed: Feed) -> Iterator[None]:
    """Note what cannot be read, and nothing else: after a commit that fails, the lake must not be
    changed."""
    try:
        yield
    except small_files.UnreadableFile as error:
        feed.error = error
