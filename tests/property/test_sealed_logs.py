"""Sealed logs, whole and damaged in every way: what seals prove is never altered, and all agree.

Server, ``dump``, ``verify`` and Spark read by one rule, so they find the same records; and what is
found in a sealed stretch is what was written there.
"""

from __future__ import annotations

import json
from itertools import islice, product
from pathlib import Path
from random import Random
from typing import Any

import pytest

from journeyman.columnar.seals import is_proven
from journeyman.disk import RealDisk
from journeyman.formats.framing import Codec, Entry
from journeyman.formats.kestrel import READER, ReadDone, ReadHead
from journeyman.formats.seals import SealKind, make_seal
from journeyman.logs.damage import Damage
from journeyman.logs.recovery import inspect_file, recover_file
from journeyman.logs.sealing import read_file
from tests.support.columnar_twins import CHECKPOINT, JOURNAL, ZTICK, Twins
from tests.support.effort import cases
from tests.support.spark.pieces import expected_items, items_of, log_file, options_of, pieces_of
from tests.support.specimens import KESTREL as KESTREL_LOG
from tests.support.specimens import ZTICK as ZTICK_LOG
from tests.support.specimens import Dialect
from tests.support.unsealed import without_seals
from tests.support.wounds import (
    WOUNDS,
    Wound,
    bad_header,
    borders,
    noise,
    run,
    several,
    short_memory,
)

RECORDS = 90
SEEDS = range(cases(2))
STAMP = 0x1234ABCD

LOGS = [
    pytest.param(ZTICK, ZTICK_LOG, id="ztick"),
    pytest.param(JOURNAL, KESTREL_LOG, id="kestrel"),
]
each_log = pytest.mark.parametrize(("twins", "dialect"), LOGS)
each_wound = pytest.mark.parametrize("wound", [*WOUNDS, several], ids=lambda w: w.__name__)

# o, b, c: seals, a batch after each b. f: records of another program.
SHAPES = {
    "closed": "obbbbbbbc",
    "crashed": "obbbbbbbb",
    "foreign first": "ffobbbbbb",
    "foreign last": "obbbbcff",
    "foreign between": "obbbcffobbbbc",
    "restarted": "obbbcobbbcobbb",
    "foreign after a crash": "obbbbff",
}


class Writer:
    """Writes the records of a log in a shape, and notes where entries begin."""

    def __init__(self, codec: Codec[Any], records: list[object], random: Random) -> None:
        assert codec.seals is not None
        self._codec, self._format = codec, codec.seals
        self._records, self._random = iter(records), random
        self.data = bytearray(codec.header)
        self.starts: list[int] = []
        self.sealed: list[object] = []

    def write(self, shape: str) -> None:
        for letter in shape:
            batch: list[object] = []
            if letter in "bf":
                batch = [
                    record
                    for record, _ in zip(
                        self._records, range(self._random.randrange(1, 9)), strict=False
                    )
                ]
                self.sealed += batch if letter != "f" else []
            encoded = [self._codec.encode(record) for record in batch]
            if letter != "f":
                self.starts.append(len(self.data))
                place, block = len(self.data), b"".join(encoded)
                self.data += make_seal(self._format, SealKind(letter), STAMP, place, block)
            for entry in encoded:
                self.starts.append(len(self.data))
                self.data += entry


def written(dialect: Dialect, shape: str, seed: int) -> Writer:
    writer = Writer(dialect.codec, dialect.records(RECORDS), Random(f"{shape} {seed}"))
    writer.write(SHAPES[shape])
    return writer


def records_of(codec: Codec[Any], data: bytes) -> list[object]:
    found = read_file(codec, data)
    return [item.record for item in found if not isinstance(item, Damage)]


def is_subsequence(found: list[object], of: list[object]) -> bool:
    rest = iter(of)
    return all(any(record == other for other in rest) for record in found)


@pytest.mark.kernels
@each_log
@pytest.mark.parametrize("shape", SHAPES)
def test_a_whole_log_gives_its_records_and_no_seal(twins: Twins, dialect: Dialect, shape, tmp_path):
    writer = written(dialect, shape, 0)
    path = tmp_path / dialect.file
    path.write_bytes(writer.data)
    entries, report = recover_file(RealDisk(), dialect.codec, str(path))
    count = len(writer.starts) - sum(shape_letter != "f" for shape_letter in SHAPES[shape])
    assert report.clean
    assert len(entries) == count
    is_crash = shape == "foreign after a crash"
    assert (report.sealed_again > 0) == is_crash
    assert is_proven(dialect.codec, bytes(writer.data)) == (not is_crash)
    path.write_bytes(writer.data)
    file = log_file(path, twins)
    entries = [e for e in read_file(dialect.codec, bytes(writer.data)) if isinstance(e, Entry)]
    for step in (7, 61, file.size):
        cuts = range(0, file.size, step)
        assert items_of(pieces_of(file, cuts), options_of(twins)) == [twins.row(e) for e in entries]
    dumped = run("dump", "--json", "--dialect", dialect.name, path)
    assert len(dumped.splitlines()) == count
    with_seals = run("dump", "--json", "--seals", "--dialect", dialect.name, path)
    assert len(with_seals.splitlines()) == len(writer.starts)
    verified = json.loads(run("verify", "--json", "--dialect", dialect.name, path))
    assert verified["clean"]
    path.write_bytes(without_seals(dialect.codec, bytes(writer.data)))
    unsealed = json.loads(run("verify", "--json", "--dialect", dialect.name, path))
    for what in ("anomalies", "kinds", "records"):
        assert verified["logs"][0][what] == unsealed["logs"][0][what]


@each_log
@each_wound
@pytest.mark.parametrize("shape", SHAPES)
def test_all_agree_on_a_damaged_sealed_log(twins, dialect: Dialect, shape, wound: Wound, tmp_path):
    for seed in SEEDS:
        random = Random(f"{shape} {wound.__name__} {seed}")
        writer = written(dialect, shape, seed)
        wound(writer.data, writer.starts, random)
        data = bytes(writer.data)
        path = tmp_path / f"{seed}" / dialect.file
        path.parent.mkdir()
        path.write_bytes(data)
        file = log_file(path, twins)
        for held_bytes in (200, 256 * 1024):
            with short_memory(held_bytes):
                for salvage in (False, True):
                    expected = expected_items(twins, data, file, salvage=salvage)
                    options = options_of(twins, salvage=str(salvage))
                    cuts = borders(data, expected, random)
                    assert items_of(pieces_of(file, []), options) == expected
                    assert items_of(pieces_of(file, cuts), options) == expected
        found = records_of(dialect.codec, data)
        dumped = run("dump", "--json", "--dialect", dialect.name, path)
        assert len(dumped.splitlines()) == len(found)
        entries, _ = recover_file(RealDisk(), dialect.codec, str(path))
        assert [entry.record for entry in entries] == found
        if path.exists():
            again, report = recover_file(RealDisk(), dialect.codec, str(path))
            assert report.clean, "what was repaired is whole, seals and all"
            assert again == entries, "and records stand where they were said to"


@each_log
@pytest.mark.parametrize("seed", [1725, 1960, *range(cases(10))])
def test_all_agree_where_another_program_wrote_to_a_damaged_log(twins, dialect, seed, tmp_path):
    """Of 1725 and 1960 one had been read for ever, the other in two ways."""
    shape = Random(seed).choice(list(SHAPES))
    wound = Random(seed * 7).choice([*WOUNDS, several])
    random = Random(f"{shape} {wound.__name__} {seed}")
    writer = written(dialect, shape, seed)
    wound(writer.data, writer.starts, random)
    data = bytes(writer.data)
    if random.random() < 0.5:
        foreign = (dialect.codec.encode(dialect.record(500 + n)) for n in range(6))
        cut = random.randrange(len(data) // 2, len(data))
        data = data[:cut] + b"".join(islice(foreign, random.randrange(6)))
    path = tmp_path / dialect.file
    path.write_bytes(data)
    file = log_file(path, twins)
    for held_bytes, salvage in product((200, 256 * 1024), (False, True)):
        with short_memory(held_bytes):
            expected = expected_items(twins, data, file, salvage=salvage)
            options = options_of(twins, salvage=str(salvage))
            cuts = borders(data, expected, random)
            assert items_of(pieces_of(file, []), options) == expected
            assert items_of(pieces_of(file, cuts), options) == expected
    entries, _ = recover_file(RealDisk(), dialect.codec, str(path))
    assert [entry.record for entry in entries] == records_of(dialect.codec, data)
    if path.exists():
        once_more, report = recover_file(RealDisk(), dialect.codec, str(path))
        assert report.clean
        assert not report.sealed_again
        assert once_more == entries


@each_log
@pytest.mark.parametrize(
    "wound", [w for w in WOUNDS if w not in (bad_header, noise)], ids=lambda w: w.__name__
)
@pytest.mark.parametrize("shape", ["closed", "crashed"])
def test_no_damage_alters_or_invents_a_sealed_record(twins, dialect: Dialect, shape, wound: Wound):
    """After an opening seal, which was durable before anything followed it.

    Not noise: where a batch at the end of a log has another length than announced, another program
    may have written there, and what stands before its records is not proven.
    """
    for seed in range(cases(15)):
        writer = written(dialect, shape, seed)
        wound(writer.data, writer.starts[1:], Random(seed))
        found = records_of(dialect.codec, bytes(writer.data))
        assert is_subsequence(found, writer.sealed), seed


@each_log
def test_no_flipped_bit_of_a_sealed_log_goes_unnoticed(twins: Twins, dialect: Dialect):
    writer = written(dialect, "closed", 1)
    for place in range(8 * len(dialect.codec.header), 8 * len(writer.data)):
        flipped = bytearray(writer.data)
        flipped[place // 8] ^= 1 << (place % 8)
        items = list(read_file(dialect.codec, bytes(flipped)))
        assert any(isinstance(item, Damage) for item in items), place
        records = [item.record for item in items if not isinstance(item, Damage)]
        assert is_subsequence(records, writer.sealed)
        assert not is_proven(dialect.codec, bytes(flipped))


@each_log
def test_a_flipped_bit_in_a_seal_without_a_block_costs_no_record(twins: Twins, dialect: Dialect):
    writer = written(dialect, "closed", 2)
    assert dialect.codec.seals is not None
    size = dialect.codec.seals.size
    for begin in (len(dialect.codec.header), len(writer.data) - size):
        for place in range(8 * begin, 8 * (begin + size)):
            flipped = bytearray(writer.data)
            flipped[place // 8] ^= 1 << (place % 8)
            assert records_of(dialect.codec, bytes(flipped)) == writer.sealed, place


@each_log
def test_no_prefix_followed_by_zeros_alters_a_record(twins: Twins, dialect: Dialect):
    """The last batch, with its seal, is there in part and zeros stand for the rest of it."""
    writer = written(dialect, "crashed", 3)
    data = bytes(writer.data)
    begin = last_block(dialect, data)
    kept = records_of(dialect.codec, data[:begin])
    for cut in range(begin, len(data)):
        for count in (len(data) - cut, (len(data) - cut) // 2, 0):
            hollow = data[:cut] + bytes(count)
            # A write is not cut between two records: formats/seals.py.
            if hollow != data and cut + count not in writer.starts:
                assert records_of(dialect.codec, hollow) == kept, (cut, count)


def last_block(dialect: Dialect, data: bytes) -> int:
    assert dialect.codec.seals is not None
    *_, last = dialect.codec.seals.places(data, 0)
    return last


def test_no_flipped_bit_of_a_sealed_checkpoint_goes_unnoticed(tmp_path: Path):
    records: list[Any] = [ReadHead(77), ReadDone((79, 80, 95))]
    writer = Writer(READER, records, Random(3))
    while len(writer.sealed) < len(records):
        writer = Writer(READER, records, Random(len(writer.data)))
        writer.write("obc")
    path = tmp_path / "q.read.r"
    for place in range(8 * len(writer.data)):
        flipped = bytearray(writer.data)
        flipped[place // 8] ^= 1 << (place % 8)
        path.write_bytes(flipped)
        report = inspect_file(RealDisk(), READER, str(path))
        found = records_of(READER, bytes(flipped))
        assert not report.clean, place
        assert is_subsequence(found, records)
        file = log_file(path, CHECKPOINT)
        expected = expected_items(CHECKPOINT, bytes(flipped), file)
        assert items_of(pieces_of(file, []), options_of(CHECKPOINT)) == expected
