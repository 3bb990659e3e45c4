"""Redrives are killed again and again; the server's own log tells that no job went twice."""

from __future__ import annotations

import subprocess
import sys
import time

from journeyman.disk import RealDisk
from journeyman.formats import ztick
from journeyman.formats.framing import scan
from journeyman.spark.redrive.redrive import read_done
from tests.support.servers.schedule_process import ScheduleProcess

PROGRAM = """
import sys
from journeyman.clock import SystemClock
from journeyman.disk import RealDisk
from journeyman.spark.redrive.redrive import RedriveLedger, redrive_rows
from journeyman.spark.sinks.server import ServerOptions

port, record, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
options = ServerOptions.parse({"door": "ztick", "address": "127.0.0.1:" + port, "batchSize": "5"})
rows = ({"identifier": f"job.{n}", "execution_ns": n} for n in range(count))
with RedriveLedger(RealDisk(), record) as ledger:
    print("begun", flush=True)
    redrive_rows(rows, options, ledger, SystemClock(), at_ns=None)
"""
COUNT = 400


def test_no_job_goes_twice_when_redrives_are_killed_again_and_again(tmp_path):
    """By kill -9, with a server that has run the jobs by the time they are looked at again."""
    record = tmp_path / "redrive.jsonl"
    (tmp_path / "server").mkdir()
    with ScheduleProcess(tmp_path / "server", database__logfile_path="log") as server:
        kills = 0
        while len(read_done(RealDisk(), str(record))) < COUNT:
            assert kills < 60
            process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, str(server.port), str(record), str(COUNT)],
                stdout=subprocess.PIPE,
            )
            assert process.stdout is not None
            with process.stdout:
                process.stdout.readline()
                if kills < 8:
                    size = record.stat().st_size
                    while record.stat().st_size < size + 700 * (kills % 4) + 1:
                        if process.poll() is not None:
                            break
                        time.sleep(0.0005)
                    process.kill()  # no matter if it has ended by itself
                process.wait()
            kills += 1
        assert kills > 3
        server.stop()
    entries, _ = scan(ztick.CODEC, (tmp_path / "server" / "log").read_bytes())
    planned = [
        entry.record.identifier
        for entry in entries
        if isinstance(entry.record, ztick.JobSet) and entry.record.status is ztick.Status.PLANNED
    ]
    assert sorted(planned) == sorted({f"job.{number}" for number in range(COUNT)})
