"""Running ``journeyman`` in the tests of the command line, and logs to run it on."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from journeyman.cli import journeyman
from journeyman.clock import SystemClock
from journeyman.disk import RealDisk
from journeyman.formats import kestrel, workq, ztick
from journeyman.formats.timed_frame import Instant

GOLDEN = Path(__file__).parent.parent / "golden" / "data"
NOW_NS = 1_800_000_000_000_000_000
DISK = RealDisk()
CLOCK = SystemClock()


def run(*args: object, env: dict[str, str] | None = None) -> Result:
    """Run a command in this process."""
    return CliRunner().invoke(journeyman, [str(arg) for arg in args], env=env)


def run_script(*args: object) -> subprocess.CompletedProcess[bytes]:
    """Run a command as a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "journeyman", *map(str, args)], capture_output=True, check=False
    )


def rows(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def assert_one_line_error(result: Result, code: int, *words: str) -> None:
    """The promise of every failure: exit code, one line, no traceback, nothing on stdout."""
    assert result.exit_code == code, (result.stdout, result.stderr)
    assert re.fullmatch(r"journeyman: error: [^\n]+\n", result.stderr)
    assert result.stdout == ""
    for word in words:
        assert word in result.stderr


def job(identifier: str, execution_ns: int = NOW_NS) -> ztick.JobSet:
    return ztick.JobSet(identifier, execution_ns, ztick.Status.PLANNED)


def write_ztick(path: Path, *records: ztick.Record) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(map(ztick.CODEC.encode, records)))
    return path


def job_id(number: int) -> bytes:
    return number.to_bytes(6, "big") + bytes.fromhex("40008000") + bytes(6)


def added(
    number: int, *, at_ns: int = NOW_NS, ttl_ms: int = 60_000, name: str = "work"
) -> workq.JobAdded:
    at = Instant(at_ns)
    return workq.JobAdded(at, job_id(number), name, 1000, ttl_ms, 0, 0, 0, b"payload", None, at)


def event(number: int, command: workq.Command, *, at_ns: int = NOW_NS) -> workq.JobEvent:
    return workq.JobEvent(Instant(at_ns), job_id(number), command)


def write_workq(directory: Path, *segments: Sequence[workq.Record]) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    for number, records in enumerate(segments, start=1):
        data = workq.HEADER + b"".join(map(workq.CODEC.encode, records))
        (directory / f"{number:09d}.log").write_bytes(data)
    return directory


def put(
    item_id: int, data: bytes = b"data", *, add_time_ms: int = 1_800_000_000_000
) -> kestrel.ItemPut:
    return kestrel.ItemPut(item_id, add_time_ms, None, 0, data)


def write_segment(path: Path, *records: kestrel.Record) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(kestrel.WRITER_MAGIC + b"".join(map(kestrel.WRITER.encode, records)))
    return path


def write_checkpoint(path: Path, head: int, *done: int) -> Path:
    records: list[kestrel.Record] = [kestrel.ReadHead(head), kestrel.ReadDone(done)]
    path.write_bytes(kestrel.READER_MAGIC + b"".join(map(kestrel.READER.encode, records)))
    return path


def flip_bit(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x10
    path.write_bytes(data)
