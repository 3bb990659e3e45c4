"""Indexes of closed files: what they say is so, and a missing or wrong one changes no row."""

from __future__ import annotations

import json
import os
import posixpath
from bisect import bisect_left
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import google_crc32c
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from journeyman.clock import SystemClock
from journeyman.disk import RealDisk
from journeyman.formats import kestrel, ledger, workq, ztick
from journeyman.formats.framing import Codec, Entry
from journeyman.formats.seals import is_marked
from journeyman.formats.timed_frame import Instant
from journeyman.logs import indexes
from journeyman.logs.damage import HELD_BYTES, Damage
from journeyman.logs.indexes import Index, IndexDraft, index_path, load_index
from journeyman.logs.kestrel.log import KestrelLog
from journeyman.logs.ledger import LedgerLog
from journeyman.logs.sealing import read_file, sealed
from journeyman.logs.workq.log import WorkqLog
from journeyman.logs.ztick.log import ZtickLog, compact_offline
from journeyman.spark.data_sources import LogReader, full_schema
from journeyman.spark.source.options import SourceOptions
from journeyman.spark.source.pieces import LogPartition, Piece
from journeyman.spark.streams import LogStreamReader
from journeyman.testing import ManualClock
from tests.support.indexing import index_file, key_of
from tests.support.simulated_disk import SimulatedDisk
from tests.support.workq_logs import DIRECTORY, added, as_of, path_of, planted, started

DISK = RealDisk()
START_NS = 1_700_000_000_000_000_000
SECOND_NS = 1_000_000_000
COUNT = 400  # records of each file


def record_of(dialect: str, number: int) -> Any:
    """One that is long, so that a few of them are a file worth an index."""
    text = "x" * (1500 + number % 7)
    at = Instant(START_NS + number * SECOND_NS)
    if dialect == "ztick":
        return ztick.JobSet(f"job.{number:05d}.{text}", START_NS + number, ztick.Status.PLANNED)
    if dialect == "workq":
        job_id = bytes.fromhex("0000000a00004000800000000000") + number.to_bytes(2, "big")
        return workq.JobFinished(at, job_id, workq.Command.COMPLETE, text.encode())
    if dialect == "kestrel":
        return kestrel.ItemPut(number + 1, at.unix_ns // 1_000_000, None, 0, text.encode())
    return ledger.QueueResumed(at, f"queue.{number}.{text}")


NAMES = {
    "ztick": ("logfile.compressed", "logfile"),
    "workq": ("000000001.log", "000000002.log"),
    "kestrel": ("jobs.1", "jobs.2"),
    "ledger": ("000000001.ledger", "000000002.ledger"),
}
CODECS: dict[str, Codec[Any]] = {
    "ztick": ztick.CODEC,
    "workq": workq.CODEC,
    "kestrel": kestrel.WRITER,
    "ledger": ledger.CODEC,
}
each_dialect = pytest.mark.parametrize("dialect", list(NAMES))
SHAPES = [(dialect, False) for dialect in NAMES] + [("ztick", True), ("kestrel", True)]
each_shape = pytest.mark.parametrize(("dialect", "is_sealed"), SHAPES)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexes, "MARK_BYTES", 20_000)
    monkeypatch.setattr(indexes, "MIN_INDEXED_BYTES", 0)


def write_log(directory: Path, dialect: str, *, is_sealed: bool = False) -> tuple[Path, str]:
    """A closed file and an active one; the path of the first, and what to read."""
    codec = CODECS[dialect]
    for name, numbers in zip(NAMES[dialect], (range(COUNT), range(COUNT, COUNT + 20)), strict=True):
        entries = [codec.encode(record_of(dialect, number)) for number in numbers]
        pieces = [codec.header, *entries]
        if is_sealed:
            assert codec.seals is not None
            pieces = [bytes(piece) for piece in sealed(codec.seals, codec.header, entries, 7)]
        (directory / name).write_bytes(b"".join(pieces))
    where = directory / "logfile" if dialect == "ztick" else directory
    return directory / NAMES[dialect][0], str(where)


def plan(dialect: str, where: str, **options: str) -> tuple[LogReader, list[LogPartition]]:
    parsed = SourceOptions.parse(dialect, {"path": where, **options})
    reader = LogReader(parsed, full_schema(parsed))
    partitions = reader.partitions()
    return reader, [each for each in partitions if isinstance(each, LogPartition)]


def rows(dialect: str, where: str, **options: str) -> list[dict[str, Any]]:
    reader, partitions = plan(dialect, where, **options)
    return [row for each in partitions for batch in reader.read(each) for row in batch.to_pylist()]


def pieces(partitions: list[LogPartition]) -> Iterator[Piece]:
    return (piece for partition in partitions for piece in partition.pieces)


def index_at(path: Path) -> Index | None:
    return load_index(DISK, str(path), path.stat().st_size)


def indexed(path: Path, dialect: str) -> Index:
    index_file(path, CODECS[dialect])
    found = index_at(path)
    assert found is not None
    return found


def assert_is_true(index: Index, codec: Codec[Any], data: bytes) -> None:
    """Compared with the entries, one by one."""
    entries: list[Entry[Any]] = []
    beginnings = set()  # of entries, or their seals where there are any
    seal = None
    for item in read_file(codec, data, seals=True):
        assert not isinstance(item, Damage)
        is_seal = codec.seals is not None and is_marked(codec.seals, data, item.offset)
        if not is_seal:
            entries.append(item)
            if seal is not None or len(entries) == 1:
                beginnings.add(item.offset if seal is None else seal)
        seal = item.offset if is_seal else None
    offsets = [entry.offset for entry in entries]
    may_mark = beginnings if len(beginnings) > 1 else set(offsets)
    assert index.size == len(data)
    assert index.records == len(entries)
    assert len(index.marks) > len(data) // 90_000
    for mark in index.marks:
        assert mark.offset in may_mark
        assert mark.records == bisect_left(offsets, mark.offset)
        assert mark.crc == google_crc32c.value(data[mark.since : mark.offset])
    times = {
        record.logged.unix_ns if hasattr(record, "logged") else record.add_time_ms * 1_000_000
        for record in (entry.record for entry in entries)
        if codec is not ztick.CODEC
    }
    assert index.times_ns == ((min(times), max(times)) if times else None)
    keys = [key_of(entry.record) for entry in entries if codec is not ledger.CODEC]
    assert index.keys == ((min(keys), max(keys)) if keys else None)


# -- who writes them -----------------------------------------------------------------------------


@each_shape
def test_a_query_writes_none(dialect, is_sealed, tmp_path):
    path, where = write_log(tmp_path, dialect, is_sealed=is_sealed)
    assert len(rows(dialect, where)) == COUNT + 20
    assert not (tmp_path / ".index").exists()
    assert_is_true(indexed(path, dialect), CODECS[dialect], path.read_bytes())
    assert sorted(DISK.list_dir(str(tmp_path / ".index"))) == [path.name]


@pytest.mark.parametrize("seal", [True, False])
def test_a_compaction_of_the_schedule_writes_one(tmp_path, seal):
    path = tmp_path / "logfile"
    with ZtickLog.open(DISK, SystemClock(), str(path), seal=seal) as log:
        for number in range(0, COUNT, 40):
            log.append([record_of("ztick", n) for n in range(number, number + 40)])
        log.compact()
    compacted = tmp_path / "logfile.compressed"
    index = index_at(compacted)
    assert index is not None
    assert_is_true(index, ztick.CODEC, compacted.read_bytes())
    compact_offline(DISK, str(path))
    index = index_at(path)
    assert index is not None
    assert_is_true(index, ztick.CODEC, path.read_bytes())
    assert DISK.list_dir(str(tmp_path / ".index")) == ["logfile"]


def test_cleaning_writes_and_removes_them():
    passing, lasting = range(400), range(400, 900)
    disk = planted(
        [added(n, n, ttl_s=1000 if n in passing else 10**6) for n in (*passing, *lasting)],
        [added(n, n, ttl_s=1000) for n in range(1000, 1400)],
        [started(1)],
    )
    with WorkqLog.open(disk, ManualClock(), DIRECTORY) as log:
        assert log.clean(as_of(0)).bytes_freed == 0
        assert disk.list_dir(f"{DIRECTORY}/.index") == ["000000001.log", "000000002.log"]
        for number, records in ((1, 900), (2, 400)):
            assert_is_true_of_segment(disk, number, records)
        report = log.clean(as_of(9000), thorough=True)
        assert (report.rewritten, report.removed) == (1, 1)
        assert disk.list_dir(f"{DIRECTORY}/.index") == []
        log.clean(as_of(9000), thorough=True)
    assert disk.list_dir(f"{DIRECTORY}/.index") == ["000000001.log"]
    assert_is_true_of_segment(disk, 1, 500)


def assert_is_true_of_segment(disk: SimulatedDisk, number: int, records: int) -> None:
    data = disk.read_bytes(path_of(number))
    index = load_index(disk, path_of(number), len(data))
    assert index is not None
    assert index.records == records
    assert_is_true(index, workq.CODEC, data)


def test_a_full_disk_stops_no_cleaning():
    disk = planted([added(n, n, ttl_s=10) for n in range(400)] + [added(1000)], [started(1)])
    disk.capacity = disk.used + 10
    with WorkqLog.open(disk, ManualClock(), DIRECTORY) as log:
        log.clean(as_of(0))
    assert load_index(disk, path_of(1), 10**6) is None


def test_a_compaction_of_the_ledger_writes_one(tmp_path):
    with LedgerLog.open(DISK, SystemClock(), str(tmp_path), segment_bytes=100_000) as log:
        for first in range(0, COUNT, 100):
            moments = {n: Instant(START_NS + n) for n in range(first, first + 100)}
            cron = {"cron": "x" * 1500}
            log.append([ledger.TimetableSet(at, f"t.{n}", cron) for n, at in moments.items()])
        log.compact()
    (name,) = DISK.list_dir(str(tmp_path / ".index"))
    index = index_at(tmp_path / name)
    assert index is not None
    assert index.records == COUNT
    assert_is_true(index, ledger.CODEC, (tmp_path / name).read_bytes())


def test_queues_write_them_with_their_checkpoints(tmp_path):
    with KestrelLog.open(DISK, SystemClock(), str(tmp_path), "jobs", segment_bytes=600_000) as log:
        for number in range(0, 2 * COUNT, 10):
            log.append([record_of("kestrel", n) for n in range(number, number + 10)])
        log.save_indexes()
        path = Path(log.segments[0].path)
    index = index_at(path)
    assert index is not None
    assert_is_true(index, kestrel.WRITER, path.read_bytes())


# -- who reads them ------------------------------------------------------------------------------


@each_shape
def test_pieces_begin_near_marks_and_give_the_same_rows(dialect, is_sealed, tmp_path):
    path, where = write_log(tmp_path, dialect, is_sealed=is_sealed)
    expected = rows(dialect, where)
    assert len(expected) == COUNT + 20
    indexed(path, dialect)
    for split_bytes in (30_000, 333_333):
        _, partitions = plan(dialect, where, splitBytes=str(split_bytes))
        held = 0 if CODECS[dialect].has_checksum else HELD_BYTES
        for piece in pieces(partitions):
            if piece.file.path == str(path):
                assert piece.begin - piece.anchor <= held + 100_000
                assert (piece.proof is None) == (piece.anchor == 0)
        assert rows(dialect, where, splitBytes=str(split_bytes)) == expected


@each_shape
def test_pieces_of_a_stream_begin_near_marks_too(dialect, is_sealed, tmp_path):
    path, where = write_log(tmp_path, dialect, is_sealed=is_sealed)

    def streamed(**options: str) -> tuple[list[Piece], list[int]]:
        given = {"path": where, **options}
        reader = LogStreamReader(dialect, given, full_schema(SourceOptions.parse(dialect, given)))
        begin = reader.initialOffset()
        partitions = reader.partitions(begin, reader.latestOffset(begin, ReadAllAvailable()))
        batches: Iterator[Any] = (batch for each in partitions for batch in reader.read(each))
        found = [row["_position"] for batch in batches for row in batch.to_pylist()]
        return list(pieces([each for each in partitions if isinstance(each, LogPartition)])), found

    _, expected = streamed()  # by way of links
    assert len(expected) == COUNT + 20
    index = indexed(path, dialect)
    cut, found = streamed(splitBytes="100000")
    assert found == expected
    assert len(cut) > 3
    marks = {0, *(mark.offset for mark in index.marks)}
    held = 0 if CODECS[dialect].has_checksum else HELD_BYTES
    for piece in cut:
        if piece.context.file == str(path):
            assert piece.anchor in marks
            assert piece.begin - piece.anchor <= held + 100_000


def respelt(index: bytes, **changes: object) -> bytes:
    """An index that says something else, its own checksum right."""
    line = json.dumps({**json.loads(index.splitlines()[0]), **changes}).encode()
    return b"%s\n%08x\n" % (line, google_crc32c.value(line))


def wrong_marks(index: bytes) -> bytes:
    marks = json.loads(index.splitlines()[0])["marks"]
    return respelt(index, marks=[[offset + 3, records, crc] for offset, records, crc in marks])


SPOILED: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda index: b"",
    "cut short": lambda index: index[: len(index) // 2],
    "without its checksum": lambda index: index[:-9],
    "a digit changed": lambda index: index.replace(b'"records":4', b'"records":5'),
    "of another version": lambda index: respelt(index, version=1),
    "of another file": lambda index: respelt(index, proof=[1, 2]),
    "too long": lambda index: respelt(index, size=10**9),
    "marks beside entries": wrong_marks,
    "not what it should be": lambda index: respelt(index, marks=7),
}


@pytest.mark.parametrize("how", list(SPOILED))
@pytest.mark.parametrize("dialect", ["ztick", "workq"])
def test_a_wrong_index_changes_no_row(dialect, how, tmp_path):
    path, where = write_log(tmp_path, dialect)
    expected = rows(dialect, where)
    indexed(path, dialect)
    right = Path(index_path(str(path))).read_bytes()
    Path(index_path(str(path))).write_bytes(SPOILED[how](right))
    assert rows(dialect, where, splitBytes="30000") == expected
    if how != "marks beside entries":
        assert index_at(path) is None


@pytest.mark.parametrize("line", [b"[" * 100_000, b'{"version":2,"proof":0,"size":%d}' % -(2**70)])
def test_an_index_that_cannot_be_read_is_none(line, tmp_path):
    path, _ = write_log(tmp_path, "kestrel")
    index = Path(index_path(str(path)))
    index.parent.mkdir()
    index.write_bytes(b"%s\n%08x\n" % (line, google_crc32c.value(line)))
    assert index_at(path) is None


def test_a_pipe_in_place_of_an_index_is_none(tmp_path):
    path, _ = write_log(tmp_path, "kestrel")
    (tmp_path / indexes.INDEX_DIRECTORY).mkdir()
    os.mkfifo(index_path(str(path)))
    assert index_at(path) is None


def test_links_among_indexes_change_no_log(tmp_path):
    path, _ = write_log(tmp_path, "kestrel")
    target, whole = tmp_path / "jobs.0", path.read_bytes()
    directory = tmp_path / indexes.INDEX_DIRECTORY
    directory.symlink_to(".")
    indexes.try_to_save(DISK, str(path), IndexDraft())
    indexes.remove_index(DISK, str(path))
    indexes.move_index(DISK, str(path), str(target))
    assert (path.read_bytes(), target.exists()) == (whole, False)
    directory.unlink()
    directory.mkdir()
    (directory / f"{path.name}.new").symlink_to(path)
    indexes.try_to_save(DISK, str(path), IndexDraft())
    assert path.read_bytes() == whole
    assert index_at(path) is not None


@each_dialect
def test_a_file_that_was_appended_to_matches_as_far_as_its_index_goes(dialect, tmp_path):
    path, where = write_log(tmp_path, dialect)
    indexed(path, dialect)
    with path.open("ab") as file:
        for number in range(COUNT, COUNT + 300):
            file.write(CODECS[dialect].encode(record_of(dialect, number)))
    index = index_at(path)
    assert index is not None
    assert index.size < path.stat().st_size
    expected = rows(dialect, where, splitBytes="30000")
    assert len(expected) == COUNT + 320
    assert rows(dialect, where) == expected


@each_shape
@pytest.mark.parametrize("seed", range(2))
def test_damage_after_the_index_was_made_is_read_as_without_it(dialect, is_sealed, seed, tmp_path):
    path, where = write_log(tmp_path, dialect, is_sealed=is_sealed)
    marks = indexed(path, dialect).marks
    data, random = bytearray(path.read_bytes()), Random(seed)
    at_a_mark = random.choice(marks[1:-1]).offset
    for at in (at_a_mark, *(random.randrange(5000, len(data) - 5000) for _ in range(2))):
        data[at : at + 9] = bytes(random.choices(range(0x20, 0x70), k=9))
    path.write_bytes(data)
    with_index = rows(dialect, where, splitBytes="30000")
    assert index_at(path) is not None
    Path(index_path(str(path))).unlink()
    assert with_index == rows(dialect, where, splitBytes="30000")
    assert any(row["kind"] == "damage" for row in with_index)


def test_a_replaced_file_does_not_match_the_index_of_the_old_one(tmp_path):
    path, where = write_log(tmp_path, "workq")
    indexed(path, "workq")
    other = [record_of("workq", number) for number in range(500, 500 + COUNT)]
    path.write_bytes(workq.HEADER + b"".join(map(workq.CODEC.encode, other)))
    assert index_at(path) is None
    found = rows("workq", where, splitBytes="30000")
    assert len(found) == COUNT + 20


@pytest.mark.parametrize("dialect", ["workq", "kestrel", "ledger"])
def test_files_outside_of_the_time_asked_for_are_not_read(dialect, tmp_path):
    path, where = write_log(tmp_path, dialect)
    limits = {"startTime": str(START_NS + COUNT * SECOND_NS)}
    expected = rows(dialect, where, **limits)
    assert len(expected) == 20
    indexed(path, dialect)

    def read(**options: str) -> list[str]:
        _, partitions = plan(dialect, where, **options)
        return [posixpath.basename(piece.file.path) for piece in pieces(partitions)]

    first, second = NAMES[dialect]
    assert read(**limits) == [second]
    assert rows(dialect, where, **limits) == expected
    assert read(endTime=str(START_NS)) == [second], "the active file has no index"
    assert read(endTime=str(START_NS + 1)) == [first, second]
    assert read(asOf=str(START_NS - 1)) == [second]
    assert read(asOf=str(START_NS)) == [first, second]
    assert read() == [first, second]
    assert len(rows(dialect, where, endTime=str(START_NS + 5 * SECOND_NS))) == 5


@each_dialect
def test_one_key_is_read_only_where_it_can_be(dialect, tmp_path):
    path, where = write_log(tmp_path, dialect)
    keys = [row["key"] for row in rows(dialect, where)]
    indexed(path, dialect)
    for number, file in ((COUNT // 2, path.name), (COUNT + 5, NAMES[dialect][1])):
        _, partitions = plan(dialect, where, key=keys[number])
        read = [posixpath.basename(piece.file.path) for piece in pieces(partitions)]
        # The active file has no index, and that of a ledger no keys.
        is_left_out = file != path.name and dialect != "ledger"
        assert read == list(NAMES[dialect][is_left_out:])
        assert [row["key"] for row in rows(dialect, where, key=keys[number])] == [keys[number]]
    assert rows(dialect, where, key="no such key") == []
