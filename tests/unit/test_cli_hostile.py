"""No bytes, however damaged, make a command fail in a way it did not foresee."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random
from typing import Any

import pytest

from journeyman.columnar.tables import read_table
from journeyman.disk import RealDisk
from journeyman.spark.files import filesystem_of
from tests.support.cli_commands import GOLDEN, run

SOURCES = {
    "ztick": GOLDEN / "ztick" / "a_all_entry_types.log",
    "workq": GOLDEN / "workq" / "a-all-types" / "cmdlog" / "000000001.log",
    "kestrel": GOLDEN / "kestrel" / "w12_payloads" / "jobs.1321401903634",
    "kestrel-reader": GOLDEN / "kestrel" / "r13_repeated" / "jobs.read.",
}


def damaged(random: Random, data: bytes) -> bytes:
    """Bits flipped, a stretch cut out, doubled, zeroed or made of noise, the end cut off."""
    for _ in range(random.randint(1, 3)):
        at = random.randrange(len(data) + 1)
        end = min(len(data), at + random.randint(1, 60))
        match random.randrange(6):
            case 0 if at < len(data):
                data = data[:at] + bytes([data[at] ^ 1 << random.randrange(8)]) + data[at + 1 :]
            case 1:
                data = data[:at] + data[end:]
            case 2:
                data = data[:end] + data[at:end] + data[end:]
            case 3:
                data = data[:at] + bytes(end - at) + data[end:]
            case 4:
                data = data[:at] + random.randbytes(end - at) + data[end:]
            case _:
                data = data[:at]
    return data


def place(directory: Path, name: str, data: bytes) -> Path:
    """Alone in a directory, under its own name: what all commands take."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    path = directory / SOURCES[name].name
    path.write_bytes(data)
    return path if name == "ztick" else directory


@pytest.mark.parametrize("name", sorted(SOURCES))
def test_damaged_logs_are_read_reported_and_repaired(name, tmp_path):
    random = Random(name)
    original = SOURCES[name].read_bytes()
    dialect = name.partition("-")[0]
    for _ in range(60):
        path = place(tmp_path / "log", name, damaged(random, original))
        options = ("--dialect", dialect, path)

        for arguments in (
            ("dump", *options),
            ("dump", "--json", *options),
            ("dump", "--compact", *options),
            ("dump", "--salvage", "--compact", "--json", *options),
        ):
            result = run(*arguments)
            assert result.exit_code == 0, (arguments, result.stderr)
        verified = run("verify", "--json", *options)
        assert verified.exit_code in (0, 1)
        assert "journeyman: error" not in verified.stderr
        repaired = run("repair", *options)
        assert repaired.exit_code == 0, (repaired.stdout, repaired.stderr)


@pytest.mark.parametrize("dialect", ["ztick", "workq", "kestrel"])
def test_noise_is_never_a_surprise(dialect, tmp_path):
    random = Random(dialect)
    for size in (0, 1, 3, 4, 5, 8, 9, 30, 300):
        for data in (random.randbytes(size), bytes(size), b"\xff" * size):
            path = tmp_path / "noise"
            path.write_bytes(data)

            for options in ((), ("--dialect", dialect)):
                for command in ("dump", "verify"):
                    result = run(command, *options, path)
                    assert result.exit_code in (0, 1, 2)
                    assert "unexpected" not in result.stderr


@pytest.mark.parametrize(
    "read",
    [
        read_table,
        lambda path: filesystem_of(path).read_at(path, 0, 10),
        RealDisk().read_bytes,
    ],
    ids=["columnar", "spark", "disk"],
)
def test_a_device_in_place_of_a_file_is_refused_before_it_is_read(tmp_path: Path, read: Any):
    """A pipe would never end; this one is at its end at once, so that the test always does."""
    path = tmp_path / "log"
    path.symlink_to("/dev/null")
    with pytest.raises(OSError, match="not a regular file"):
        read(str(path))
