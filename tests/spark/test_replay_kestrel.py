"""Replay of kestrel queues on Spark is the local fold, row for row."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import strategies as st

from journeyman.folds import kestrel as fold
from journeyman.folds.kestrel import consumed_by_all, id_span
from journeyman.formats.kestrel import (
    READER,
    WRITER,
    ItemPut,
    ReadDone,
    ReadHead,
    Record,
    UnknownCommand,
)
from journeyman.logs.segments import kestrel_queues, kestrel_readers, kestrel_segments
from journeyman.spark import replay
from journeyman.spark.replay import waiting
from tests.support.effort import cases
from tests.support.spark.replay_world import (
    Found,
    by_host,
    copied,
    cut,
    gathered,
    mangled,
    read_log,
)

GOLDEN = Path("tests/golden/data/kestrel")

PUT = st.builds(
    ItemPut,
    st.integers(-2, 12),
    st.integers(0, 1),
    st.none() | st.integers(0, 1),
    st.integers(0, 1),
    st.sampled_from([b"", b"a", b"b", b"item" * 20]),
)
ASCENDING = st.lists(st.integers(1, 9000), unique=True).map(
    lambda ids: [ItemPut(i, 1, None, 0, b"%d" % i) for i in sorted(ids)]
)
READ = st.one_of(
    st.builds(ReadHead, st.integers(-1, 14)),
    st.builds(ReadDone, st.lists(st.integers(-1, 14), max_size=4).map(tuple)),
)
FOREIGN = st.just(UnknownCommand(0x10, b"", b""))
READERS = st.sampled_from([(), ("",), ("a",), ("", "a"), ("a", "b"), ("a", "b", "c")])
QUEUES = st.tuples(
    st.lists(PUT | READ | FOREIGN, max_size=30) | st.lists(PUT, max_size=30) | ASCENDING,
    READERS.flatmap(
        lambda names: st.fixed_dictionaries(
            {name: st.lists(READ | PUT | FOREIGN, max_size=3) for name in names}
        )
    ),
)


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("kestrel")
    random = Random(6)
    for number, (records, readers) in enumerate(gathered(QUEUES, cases(150))):
        directory = root / f"host={number}"
        directory.mkdir()
        for segment, part in enumerate(cut(records, random.randrange(1, 4), random)):
            # Numbers, not text: 9 comes before 10.
            write(directory / f"jobs.{9 + segment}", WRITER, list(part), random)
        for name, checkpoint in readers.items():
            write(directory / f"jobs.read.{name}", READER, checkpoint, random)
    for case in GOLDEN.iterdir():
        if case.is_dir():
            copied(case, root / f"host={case.name}")
    return root


def write(path: Path, codec: Any, records: list[Record], random: Random) -> None:
    path.write_bytes(mangled(codec.header + b"".join(map(codec.encode, records)), random))


def queues(root: Path) -> Iterator[tuple[str, str, str, Found, dict[str, Found]]]:
    """Host, log, queue, what its segments hold, and what each checkpoint holds."""
    for directory in root.iterdir():
        names = sorted(path.name for path in directory.iterdir())
        for queue in kestrel_queues(names):
            segments = kestrel_segments(queue, names)
            items = read_log((directory / name, WRITER) for name in segments)
            readers = {
                reader: read_log([(directory / name, READER)])
                for reader, name in kestrel_readers(queue, names).items()
            }
            host = directory.name.partition("=")[2]
            yield host, f"{directory}/{queue}", queue, items, readers


def item_rows(log: str, queue: str, found: Found) -> list[dict[str, Any]]:
    rows = []
    for item in fold.replay(found.records).values():
        puts = fold.snapshot(item)
        for ordinal, put in enumerate(puts):
            rows.append(
                {"_log": log, **found.place(put), "queue": queue, "item_id": put.item_id}
                | {"add_time_ms": put.add_time_ms, "expire_time_ms": put.expire_time_ms}
                | {"error_count": put.error_count, "data_size": len(put.data), "data": None}
                | {"ordinal": ordinal, "contested": len(puts) > 1}
            )
    return rows


def folded_readers(readers: dict[str, Found]) -> dict[str, fold.Reader | None]:
    return {
        name: None if found.damaged else fold.fold_reader(found.records)
        for name, found in readers.items()
    }


def reader_rows(queue: str, items: Found, readers: dict[str, Found]) -> list[dict[str, Any]]:
    ids = [record.item_id for record in items.records if isinstance(record, ItemPut)]
    folded = folded_readers(readers)
    view = fold.open_queue(ids, folded)
    rows = []
    for name in sorted({*folded, *view.readers}):
        reader, opened = folded.get(name), view.readers.get(name)
        rows.append(
            {"queue": queue, "reader": name}
            | {"head": None if reader is None else reader.head}
            | {"done": None if reader is None else sorted(reader.done)}
            | {"damaged": name in readers and bool(readers[name].damaged)}
            | {"opened_head": None if opened is None else opened.head}
            | {"opened_done": None if opened is None else sorted(opened.done)}
            | {"first_id": min(ids, default=view.next_id), "tail_id": view.tail}
        )
    return rows


@pytest.fixture(scope="module")
def replayed(spark, logs):
    """Items and readers of queues that are split anywhere."""
    held = replay.packets(spark, "kestrel", str(logs), splitBytes=2003).persist()
    reduced = replay.tables_of(held, "kestrel")
    frames = {
        "items": reduced["items"],
        "readers": reduced["readers"],
        "waiting": waiting(reduced["items"], reduced["readers"]),
    }
    yield {name: by_host(frame) for name, frame in frames.items()}
    held.unpersist()


def of_log(rows: dict[str, list[dict[str, Any]]], host: str, log: str) -> list[dict[str, Any]]:
    return [row for row in rows.get(host, []) if row["_log"] == log]


def test_items_are_those_of_the_fold(replayed, logs):
    contested = 0
    for host, log, queue, found, _ in queues(logs):
        rows = item_rows(log, queue, found)
        key = "item_id", "ordinal"
        assert by_key(of_log(replayed["items"], host, log), key) == by_key(rows, key), log
        contested += any(row["contested"] for row in rows)
    assert contested


def by_key(rows: list[dict[str, Any]], names: tuple[str, ...]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: tuple(row[name] for name in names))


def test_readers_are_those_of_the_fold_and_of_an_opened_queue(replayed, logs):
    damaged = 0
    for host, log, queue, items, readers in queues(logs):
        found = by_key(of_log(replayed["readers"], host, log), ("reader",))
        rows = reader_rows(queue, items, readers)
        assert [{name: row[name] for name in rows[0]} for row in found] == rows, log
        for row in found:
            if row["reader"] in readers and readers[row["reader"]].entries:
                last = readers[row["reader"]].entries[-1]
                assert (row["_offset"], row["_length"]) == (last.offset, last.length)
            assert (row["_file"] is None) is (row["reader"] not in readers)
        damaged += any(row["damaged"] for row in rows)
    assert damaged > 5


def test_waiting_items_are_those_that_a_dump_shows(replayed, logs):
    for host, log, _, items, readers in queues(logs):
        consumed = consumed_by_all(folded_readers(readers), id_span(items.records))
        expected = [
            put.item_id
            for item in fold.replay(items.records).values()
            for put in fold.snapshot(item)
            if not consumed(put.item_id)
        ]
        found = [row["item_id"] for row in of_log(replayed["waiting"], host, log)]
        assert sorted(found) == sorted(expected), log


def test_data_is_that_of_the_items(spark, logs):
    items = replay.states(spark, "kestrel", str(logs), payloads=True)["items"]
    rows = by_host(items.select("host", "_log", "item_id", "ordinal", "data"))
    for host, log, _, found, _ in queues(logs):
        expected = {
            (put.item_id, ordinal): put.data
            for item in fold.replay(found.records).values()
            for ordinal, put in enumerate(fold.snapshot(item))
        }
        assert {
            (row["item_id"], row["ordinal"]): bytes(row["data"]) for row in of_log(rows, host, log)
        } == expected, log
