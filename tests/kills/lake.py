"""Kill an ingest, driver and Java, at random moments while its log grows; then count every record.

    python -m tests.kills.lake [--kills 20] [--seed 1] [--s3]

With --s3 the lake is in a bucket. After the last kill one ingest is left to end. Every record must
be in bronze once, in order, and attempts must be those of a plain count
(tests/support/report_counts.py). Exit code 1 if not.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from random import Random

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from journeyman.columnar import read_table  # noqa: E402
from journeyman.formats import workq  # noqa: E402
from tests.support.object_store import object_store  # noqa: E402
from tests.support.report_counts import count_workq  # noqa: E402
from tests.support.spark.histories import busy_log  # noqa: E402

LONGEST_S = 40.0


def start(log: Path, lake: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "journeyman", "pipeline", "ingest", str(log), "--quiet"]
    return subprocess.Popen(
        [*command, "--lake", lake, "--host", "a", "--master", "local[2]"],
        start_new_session=True,
        stdout=subprocess.DEVNULL,
    )


def grow(log: Path, records: list[workq.Record], begin: int, end: int, number: int) -> None:
    """Append to a segment; every third time a new one is begun."""
    path = log / f"{number // 3 + 1:09d}.log"
    data = b"" if path.exists() else workq.HEADER
    with path.open("ab") as file:
        file.write(data + b"".join(map(workq.CODEC.encode, records[begin:end])))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--s3", action="store_true", help="the lake is in a bucket")
    asked = parser.parse_args()
    chance = Random(asked.seed)
    records = busy_log(asked.seed, jobs=40 * (asked.kills + 1))
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="journeyman-kills-"))
        log, lake = Path(directory, "workq"), f"{directory}/lake"
        if asked.s3:
            os.environ.update(stack.enter_context(object_store("lakes")))
            lake = "s3://lakes/lake"
        log.mkdir()
        ended, done, took_s = 0, 0, 10.0
        for number in range(asked.kills):
            upto = len(records) * (number + 1) // (asked.kills + 1)
            grow(log, records, done, upto, number)
            done = upto
            process, began = start(log, lake), time.monotonic()
            try:
                process.wait(chance.uniform(0.3, 1.1) * took_s)
                ended += 1
                took_s = min(LONGEST_S, time.monotonic() - began)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                took_s = min(LONGEST_S, took_s * 1.1)
        grow(log, records, done, len(records), asked.kills)
        assert start(log, lake).wait() == 0
        return report(records, lake, asked.kills - ended, ended)


def report(records: list[workq.Record], lake: str, kills: int, ended: int) -> int:
    bronze = read_table(f"{lake}/bronze/workq").sort_by("_position")["logged_ns"].to_pylist()
    attempts = read_table(f"{lake}/silver/attempts")
    columns = (attempts[name].to_pylist() for name in ("ready_ns", "started_ns", "outcome"))
    found = sorted(map(repr, zip(*columns, strict=True)))
    expected = sorted(repr((t.ready, t.started, t.outcome)) for t in count_workq(records).tries)
    is_same = bronze == [record.logged.unix_ns for record in records]
    lines = [
        f"{kills} kills, {ended} ingests ended before theirs",
        f"{len(bronze)} of {len(records)} records, {'in order' if is_same else 'NOT the same'}",
        f"{len(found)} of {len(expected)} attempts, {'same' if found == expected else 'NOT'}",
    ]
    sys.stdout.write("\n".join(lines) + "\n")
    return 0 if is_same and found == expected else 1


if __name__ == "__main__":
    raise SystemExit(main())
