"""The comparison counts what the records say, and its power cut keeps exactly what was synced."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

from bench.compare import checker
from bench.compare.faults import complains, flip_one_bit
from bench.compare.power import TRACE, Files

from tests.support.crash.traces import skip_if_refused


def test_counts_of_a_run(tmp_path: Path):
    sent, runs = tmp_path / "sent", tmp_path / "runs"
    sent.write_text("send 1\nack 1\nsend 2\nfail 2\nsend 3\nack 3\nsend 4\nack 4\n")
    runs.write_text("start 1\ndone 1\nstart 1\ndone 1\nstart 3\nstart 4\ndone 4\ndone 9\n")
    counts = checker.Counts(acknowledged=3, lost=1, done_twice=1, invented=1, refused=1)
    assert checker.read(sent, runs) == counts
    assert checker.wait_until_done(sent, runs, patience_s=0.0) == counts


def test_nothing_is_lost_before_anything_was_sent(tmp_path: Path):
    counts = checker.wait_until_done(tmp_path / "sent", tmp_path / "runs", patience_s=0.0)
    assert counts == checker.Counts(0, 0, 0, 0, 0)


PROGRAM = """
import os, sys
synced = os.open(sys.argv[1] + "/synced", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
os.write(synced, b"kept"); os.fsync(synced); os.write(synced, b" lost")
never = os.open(sys.argv[1] + "/never", os.O_WRONLY | os.O_CREAT)
os.write(never, b"lost")
middle = os.open(sys.argv[1] + "/old", os.O_RDWR)
os.pwrite(middle, b"XX", 2); os.fdatasync(middle); os.pwrite(middle, b"YY", 6)
os.lseek(middle, 4, 0); os.write(middle, b"ZZ")
renamed = os.open(sys.argv[1] + "/new", os.O_WRONLY | os.O_CREAT)
os.write(renamed, b"whole"); os.fsync(renamed)
os.rename(sys.argv[1] + "/new", sys.argv[1] + "/renamed")
"""


def test_a_power_cut_keeps_what_was_synced(tmp_path: Path):
    skip_if_refused(tmp_path)
    data = tmp_path / "data"
    data.mkdir()
    (data / "old").write_bytes(b"01234567")
    files = Files(data)
    trace = tmp_path / "trace"
    subprocess.run([*TRACE, "-o", str(trace), sys.executable, "-c", PROGRAM, str(data)], check=True)
    files.follow([trace])
    assert files.leave() == len(" lost") + len("lost") + len("ZZ") + len("YY")
    left = {path.name: path.read_bytes() for path in data.iterdir()}
    assert left == {"synced": b"kept", "never": b"", "old": b"01XX4567", "renamed": b"whole"}


def test_one_bit_is_flipped_and_complaints_are_recognised(tmp_path: Path):
    file = tmp_path / "log"
    file.write_bytes(bytes(range(1, 200)) * 10)
    before = file.read_bytes()
    flip_one_bit(tmp_path, random.Random(1))
    after = file.read_bytes()
    differing = [a ^ b for a, b in zip(before, after, strict=True) if a != b]
    assert len(differing) == 1
    assert differing[0].bit_count() == 1
    assert complains("Bad file format reading the append only file")
    assert not complains("ready to accept connections")
