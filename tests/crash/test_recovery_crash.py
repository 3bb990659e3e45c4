"""Repairs with the power cut at every operation; logs cut at every byte, every bit flipped."""

from __future__ import annotations

import re
from typing import Any

import pytest

from journeyman.logs.recovery import FileReport, recover_file
from tests.support.simulated_disk import PowerCut, SimulatedDisk
from tests.support.specimens import DIALECTS, DIRECTORY, KESTREL, WORKQ, ZTICK, Dialect

SURVIVALS = ("lose_all_unsynced", "keep_all_unsynced", *range(12))
QUARANTINE_NAME = re.compile(r"(?P<file>.+?)\.(?P<begin>\d+)-(?P<end>\d+)(?:\.\d+)?")


def planted(dialect: Dialect, data: bytes) -> SimulatedDisk:
    disk = SimulatedDisk()
    disk.plant(dialect.path, data)
    return disk


def assert_no_byte_is_lost(
    disk: SimulatedDisk, dialect: Dialect, data: bytes, report: FileReport
) -> None:
    """Every byte of the file as it was is in the file, in quarantine, or a reported zero."""
    missing = bytearray(b"\1" * len(data))
    for damage in report.damages:
        if damage.kind == "padding":
            assert not any(data[damage.offset : damage.end])
            missing[damage.offset : damage.end] = bytes(damage.length)
    for path, content in disk.files().items():
        directory, _, name = path.rpartition("/")
        if directory == f"{DIRECTORY}/quarantine" and "~~" not in name:
            match = QUARANTINE_NAME.fullmatch(name)
            assert match is not None
            assert match["file"] == dialect.file
            begin, end = int(match["begin"]), int(match["end"])
            assert content == data[begin:end]
            missing[begin:end] = bytes(end - begin)
    kept = bytes(byte for byte, absent in zip(data, missing, strict=True) if absent)
    if disk.exists(dialect.path):
        header = dialect.codec.header
        assert disk.read_bytes(dialect.path) in (kept, header + kept)
    else:
        assert kept == b""


def damaged(dialect: Dialect) -> dict[str, bytes]:
    records = dialect.records(8)
    whole = dialect.encode(records)
    starts = [len(dialect.encode(records[:n])) for n in range(9)]
    hole = bytearray(whole)
    hole[starts[2] : starts[3]] = bytes(starts[3] - starts[2])
    wounds = bytearray(whole)
    for number in (1, 4):
        wounds[starts[number] : starts[number] + 12] = b"\xee" * 12
    cases = {
        "clean": whole,
        "torn tail": whole[:-3],
        "zero tail": whole + bytes(100),
        "hole": bytes(hole),
        "two wounds": bytes(wounds),
        "two wounds and a torn tail": bytes(wounds)[:-3],
        "foreign": b"\xff" * 200,
    }
    if dialect.codec.header:
        cases["bad header"] = b"\xff\xff" + whole[2:]
        cases["header cut short"] = whole[:3]
        cases["empty"] = b""
        cases["zeros"] = bytes(50)
    return cases


CASES = [
    pytest.param(dialect, data, id=f"{dialect.name}-{about}")
    for dialect in DIALECTS
    for about, data in damaged(dialect).items()
]


@pytest.mark.usefixtures("kind_of_disk")
@pytest.mark.parametrize(("dialect", "data"), CASES)
def test_a_repair_cut_short_anywhere_can_be_done_again(dialect: Dialect, data: bytes):
    undisturbed = planted(dialect, data)
    expected, report = recover_file(undisturbed, dialect.codec, dialect.path)
    assert_no_byte_is_lost(undisturbed, dialect, data, report)
    for operation in range(1, undisturbed.operations + 1):
        disk = planted(dialect, data)
        disk.cut_power_at(operation, torn=0.5)
        with pytest.raises(PowerCut):
            recover_file(disk, dialect.codec, dialect.path)
        for survival in SURVIVALS:
            after = disk.after_crash(survival)
            found: list[Any] = []
            if after.exists(dialect.path):
                found, _ = recover_file(after, dialect.codec, dialect.path)
            assert found == expected, (operation, survival)
            assert_no_byte_is_lost(after, dialect, data, report)


@pytest.mark.usefixtures("kind_of_disk")
@pytest.mark.parametrize(("dialect", "data"), CASES)
def test_a_finished_repair_survives_every_crash(dialect: Dialect, data: bytes):
    disk = planted(dialect, data)
    expected, _ = recover_file(disk, dialect.codec, dialect.path)
    for survival in SURVIVALS:
        after = disk.after_crash(survival)
        assert after.files() == disk.files()
    if disk.exists(dialect.path):
        operations = disk.operations
        again, second = recover_file(disk, dialect.codec, dialect.path)
        assert (again, second.clean) == (expected, True)
        assert disk.operations == operations, "nothing was left to do"


@pytest.mark.parametrize(("dialect", "data"), CASES)
def test_a_failing_operation_during_a_repair_loses_nothing(dialect: Dialect, data: bytes):
    undisturbed = planted(dialect, data)
    expected, report = recover_file(undisturbed, dialect.codec, dialect.path)
    for kind, count in undisturbed.counts.items():
        for skip in range(count):
            disk = planted(dialect, data)
            disk.fail(kind, skip=skip, partial=2)
            with pytest.raises(OSError, match="Input/output"):
                recover_file(disk, dialect.codec, dialect.path)
            found: list[Any] = []
            if disk.exists(dialect.path):
                found, _ = recover_file(disk, dialect.codec, dialect.path)
            assert found == expected, (kind, skip)
            assert_no_byte_is_lost(disk, dialect, data, report)


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda d: d.name)
def test_a_log_cut_at_any_byte_gives_exactly_its_whole_records(dialect: Dialect):
    records = dialect.records(8)
    data = dialect.encode(records)
    starts = [len(dialect.encode(records[:n])) for n in range(9)]
    for cut in range(len(data) + 1):
        disk = planted(dialect, data[:cut])
        entries, report = recover_file(disk, dialect.codec, dialect.path)
        whole = max((n for n, start in enumerate(starts) if start <= cut), default=0)
        assert [e.record for e in entries] == records[:whole], cut
        assert_no_byte_is_lost(disk, dialect, data[:cut], report)
        assert report.lost_at_least == 0, "what was cut short was never acknowledged"
        if cut in starts:
            assert report.clean
        else:
            (damage,) = report.damages
            is_zeros = damage.length > 0 and not any(data[damage.offset : cut])  # ztick lengths
            assert damage.kind == ("padding" if is_zeros else "torn"), cut


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda d: d.name)
def test_any_flipped_bit_costs_no_record_before_it_and_destroys_no_byte(dialect: Dialect):
    records = dialect.records(6)
    data = dialect.encode(records)
    starts = [len(dialect.encode(records[:n])) for n in range(7)]
    saved_behind = hit_by_flip = 0
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        hit = next(n for n, start in enumerate(starts) if start > bit // 8)  # 0: the header
        disk = planted(dialect, bytes(flipped))
        entries, report = recover_file(disk, dialect.codec, dialect.path)
        found = [entry.record for entry in entries]
        before = records[: max(0, hit - 1)]
        assert found[: len(before)] == before, bit
        assert_no_byte_is_lost(disk, dialect, bytes(flipped), report)
        if disk.exists(dialect.path):
            again, second = recover_file(disk, dialect.codec, dialect.path)
            assert (again, second.clean) == (entries, True), bit
        behind = records[hit:]
        hit_by_flip += len(behind)
        saved_behind += sum(record in found for record in behind)
        if dialect is WORKQ:
            assert all(record in records for record in found), "a checksum lets no bad one pass"
    # Formats differ in how much they tell; none loses all that follows as a rule.
    least = {ZTICK.name: 0.99, WORKQ.name: 1.0, KESTREL.name: 0.99}[dialect.name]
    assert saved_behind / hit_by_flip >= least
