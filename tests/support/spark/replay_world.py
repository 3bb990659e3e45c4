"""Many logs in one directory, each under ``host=<name>/``, and what they hold read without Spark.

Spark replays all of them in one go, which costs little more than one; each is then compared with
the fold of its own records. Random logs are made by hypothesis, then cut into files and damaged
with a random generator of fixed seed, so that a failure can be had again.
"""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame

from journeyman.formats.framing import Codec, Entry
from journeyman.logs.damage import Damage, read_past_damage

SEGMENT_SHIFT = 44

T = TypeVar("T")
Place = tuple[int, int, int]  # segment, offset, length


def gathered(strategy: st.SearchStrategy[T], count: int) -> list[T]:
    """This many values, as hypothesis would try them."""
    found: list[T] = []

    @seed(20_240_328)
    @settings(
        max_examples=count,
        phases=[Phase.generate],
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def gather(value: T) -> None:
        found.append(value)

    gather()
    return found


@dataclass
class Found:
    """The good entries of one log in order, with their places, and its damaged files."""

    entries: list[Entry[Any]] = field(default_factory=list)
    places: dict[int, Place] = field(default_factory=dict)  # by identity of the record
    files: list[str] = field(default_factory=list)
    damaged: set[str] = field(default_factory=set)

    @property
    def records(self) -> list[Any]:
        return [entry.record for entry in self.entries]

    def place(self, record: object) -> dict[str, Any]:
        """The columns that say where a record stands."""
        segment, offset, length = self.places[id(record)]
        return {
            "_file": self.files[segment],
            "_segment": segment,
            "_offset": offset,
            "_length": length,
            "_position": segment << SEGMENT_SHIFT | offset,
        }

    def position(self, record: object) -> int:
        return int(self.place(record)["_position"])


def read_log(files: Iterable[tuple[Path, Codec[Any]]]) -> Found:
    """What is whole in these files, in their order; missing ones do not count."""
    found = Found()
    for path, codec in files:
        if not path.exists():
            continue
        segment = len(found.files)
        found.files.append(str(path))
        data = path.read_bytes()
        for item in read_past_damage(codec, data):
            if not isinstance(item, Damage):
                found.entries.append(item)
                found.places[id(item.record)] = (segment, item.offset, item.length)
            elif item.length and (item.kind != "padding" or item.end != len(data)):
                found.damaged.add(str(path))
    return found


def mangled(data: bytes, random: Random) -> bytes:
    """The bytes as a bad day leaves them: two times in three unharmed."""
    at = random.randrange(len(data) + 1)
    match random.randrange(12):
        case 0:
            return data[:at]
        case 1 if at < len(data):
            return data[:at] + bytes([data[at] ^ 1 << random.randrange(8)]) + data[at + 1 :]
        case 2:
            return data[:at] + random.randbytes(random.randrange(1, 40)) + data[at:]
        case 3:
            return data + bytes(random.randrange(1, 60))
    return data


def cut(records: Sequence[T], parts: int, random: Random) -> list[Sequence[T]]:
    """The records as this many files, some of which may be empty."""
    cuts = sorted(random.randrange(len(records) + 1) for _ in range(parts - 1))
    return [records[a:b] for a, b in zip([0, *cuts], [*cuts, len(records)], strict=True)]


def copied(directory: Path, target: Path) -> None:
    """A golden log, as one host's."""
    shutil.copytree(directory, target)


def by_host(frame: DataFrame) -> dict[str, list[dict[str, Any]]]:
    """All rows as dictionaries, by the host they come from."""
    hosts: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in frame.collect():
        values = row.asDict(recursive=True)
        hosts[values.pop("host")].append(values)
    return hosts
