"""The law of a stream: whatever happens in between, its rows are what was written, once, in order.

Steps are drawn at random: writing, rotating, compacting, looking, crashing before or behind the
rows of a batch were kept. At most one compaction lies between two looks; with more, history is
lost, and that is said (see test_streams).
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st

from journeyman.clock import SystemClock
from journeyman.disk import RealDisk
from journeyman.formats.ledger import QueuePaused
from journeyman.formats.timed_frame import Instant
from journeyman.logs.holders import Holders
from journeyman.logs.ledger import LedgerLog
from tests.support.effort import cases
from tests.support.spark.stream_driver import (
    Query,
    keys,
    open_kestrel,
    open_workq,
    open_ztick,
    put_items,
    set_jobs,
)
from tests.support.workq_logs import added, job_id

STEPS = ("write", "compact", "plan", "run", "crash")
LIMITS = st.sampled_from([{}, {"maxBytesPerTrigger": "90"}])


@contextmanager
def _directory() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp())
    try:
        yield path
    finally:
        shutil.rmtree(path)


@settings(max_examples=cases(30), deadline=None)
@given(st.lists(st.sampled_from(STEPS), max_size=40), LIMITS)
def test_a_ztick_stream_is_what_was_written(steps, limits):
    with _directory() as directory, open_ztick(directory / "logfile") as log:
        query = Query("ztick", directory / "logfile", **limits)
        written, may_compact = 0, False
        for step in steps:
            if step == "write":
                set_jobs(log, written, written + 1)
                written += 2
            elif step == "compact":
                if may_compact:
                    log.compact()
                    may_compact = False
            else:
                _go_on(query, step)
                may_compact = may_compact or (step == "plan" and _knows(query, directory))
        _finish(query)
        assert keys(query.rows) == [f"job.{n}" for n in range(written)]
        positions = [row["_position"] for row in query.rows]
        assert positions == sorted(set(positions))


@settings(max_examples=cases(15), deadline=None)
@given(st.lists(st.sampled_from(("write", "plan", "run", "crash")), max_size=30), LIMITS)
def test_workq_and_kestrel_streams_are_what_was_written(steps, limits):
    with (
        _directory() as directory,
        open_workq(directory / "workq", 300) as queue,
        open_kestrel(directory / "kestrel", segment_bytes=100) as journal,
    ):
        queries = [
            Query("workq", directory / "workq", **limits),
            Query("kestrel", directory / "kestrel", **limits),
        ]
        written = 0
        for step in steps:
            if step == "write":
                queue.append([added(written), added(written + 1)])
                put_items(journal, written, written + 1)
                written += 2
            else:
                for query in queries:
                    _go_on(query, step)
        for query in queries:
            _finish(query)
        assert [row["job_id"] for row in queries[0].rows] == [job_id(n) for n in range(written)]
        assert [row["item_id"] for row in queries[1].rows] == list(range(1, written + 1))


@settings(max_examples=cases(15), deadline=None)
@given(st.lists(st.sampled_from(STEPS), max_size=40), LIMITS)
@example(["write", "compact", "plan", "run", "plan", "compact"], {})  # into an empty segment
def test_a_stream_of_a_ledger_is_what_was_written(steps, limits):
    """Its compactions leave what the stream has not read, as a holder."""
    disk, clock = RealDisk(), SystemClock()
    with _directory() as directory:
        where, holders = str(directory / "ledger"), Holders(disk, clock)
        with LedgerLog.open(disk, clock, where, segment_bytes=200, holders=holders) as log:
            query = Query("ledger", directory / "ledger", **limits)
            written = 0
            for step in steps:
                if step == "write":
                    names = [f"queue.{n}" for n in (written, written + 1)]
                    log.append([QueuePaused(Instant(clock.now_ns()), name) for name in names])
                    written += 2
                elif step == "compact":
                    log.compact()
                else:
                    _go_on(query, step)
            _finish(query)
            assert keys(query.rows) == [f"queue.{n}" for n in range(written)]


def _go_on(query: Query, step: str) -> None:
    """As Spark does: a batch that is planned is run before the next one is planned."""
    if step == "crash":
        query.restarted()
    elif query.done < len(query.offsets):
        query.run()
    elif step == "plan":
        query.plan()


def _finish(query: Query) -> None:
    if query.restarted().done < len(query.offsets):
        query.run()
    query.poll()


def _knows(query: Query, directory: Path) -> bool:
    """Whether the checkpoint speaks of the file that is written now."""
    inode = (directory / "logfile").stat().st_ino
    files = [f for o in query.offsets[-1:] for log in o["logs"].values() for f in log["files"]]
    return any(file["inode"] == inode for file in files)
