"""The state of ledgers by Spark: entry for entry what the fold says."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from journeyman.errors import UsageError
from journeyman.folds import ledger as fold
from journeyman.formats.ledger import (
    CODEC,
    HEADER,
    ActionAudited,
    NewerRecord,
    QueuePaused,
    QueueResumed,
    Record,
    TimetableRemoved,
    TimetableSet,
    encode_payload,
)
from journeyman.formats.timed_frame import Instant
from journeyman.spark import read, states, write
from journeyman.spark.sql import LogTables

NEWER = b'{"v":2,"kind":"queue-paused","queue":"a"}'


def some_records(seed: int, count: int) -> list[Record]:
    random = Random(seed)
    found: list[Record] = []
    for number in range(count):
        at, name = Instant(10**18 + number // 3), random.choice("abc")
        choices: list[Record] = [
            QueuePaused(at, name),
            QueueResumed(at, name),
            TimetableSet(at, name, {"n": random.randrange(3)}),
            TimetableRemoved(at, name),
            ActionAudited(at, name, "http", "pause", "q", "done"),
            NewerRecord(at, 2, "queue-paused", NEWER),
        ]
        found.append(random.choice(choices))
    return found


def written(directory: Path, *segments: list[Record]) -> Path:
    directory.mkdir()
    for number, records in enumerate(segments, start=1):
        data = HEADER + b"".join(CODEC.encode(record) for record in records)
        (directory / f"{number:09d}.ledger").write_bytes(data)
    return directory


def expected(records: list[Record]) -> list[tuple[Any, ...]]:
    rows = []
    for (family, key), record in fold.replay(records).items():
        is_history = family in ("", "audit")
        payload = encode_payload(record).decode()
        name, about = family or None, None if is_history else key
        rows.append((name, about, record.logged.unix_ns, payload))
    return sorted(rows, key=repr)


def test_spark_and_the_fold_agree(spark, tmp_path: Path):
    ledgers = {}
    for seed in range(4):
        first, second = some_records(seed, 40), some_records(seed + 100, 15)
        path = written(tmp_path / str(seed), first, second)
        ledgers[str(path)] = expected(first + second)
    found: dict[str, list[tuple[Any, ...]]] = {path: [] for path in ledgers}
    for row in states(spark, "ledger", *ledgers)["entries"].collect():
        found[row["_log"]].append((row["family"], row["key"], row["logged_ns"], row["payload"]))
    assert {path: sorted(rows, key=repr) for path, rows in found.items()} == ledgers


def test_it_is_a_table_in_sql_and_is_not_written(spark, tmp_path: Path):
    path = str(written(tmp_path / "ledger", [*some_records(1, 30), QueuePaused(Instant(1), "z")]))
    tables = LogTables(spark, {"ledger": [path]})
    assert tables.names == ["ledger_entries", "ledger_log"]
    query = "SELECT payload FROM ledger_entries WHERE family = 'queue-pause' AND key = 'z'"
    (row,) = tables.query(query).collect()
    assert json.loads(row["payload"]) == {"v": 1, "kind": "queue-paused", "queue": "z"}
    with pytest.raises(UsageError, match="read, not written"):
        write(read(spark, "ledger", path), "ledger", str(tmp_path / "copy"))
