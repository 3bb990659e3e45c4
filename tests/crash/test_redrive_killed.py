"""Redrives are killed again and again; the server's own log tells that no job went twice."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from journeyman.clock import SystemClock
from journeyman.disk import RealDisk
from journeyman.formats import ztick
from journeyman.formats.framing import scan
from journeyman.spark.redrive import RedriveLedger, read_done, redrive_rows
from journeyman.spark.sinks.server_options import ServerOptions
from tests.support.runner_world import wait_until
from tests.support.servers.schedule_process import ScheduleProcess

COUNT = 400
KILLS = 8
ROWS_A_LIFE = 45  # each life is killed on its way through these, or where it waits behind them


# Each life is a process of its own, forked off one that has imported all this.
LIVES = multiprocessing.get_context("forkserver")
LIVES.set_forkserver_preload([__name__])


def redrive(port: int, record: str, stop: int) -> None:
    options = ServerOptions.parse(
        {"door": "ztick", "address": f"127.0.0.1:{port}", "batchSize": "5"}
    )
    with RedriveLedger(RealDisk(), record) as ledger:
        redrive_rows(rows_until(stop), options, ledger, SystemClock(), at_ns=None)


def rows_until(stop: int) -> Iterator[dict[str, object]]:
    for number in range(COUNT):
        if number == stop:
            signal.pause()
        yield {"identifier": f"job.{number}", "execution_ns": number}


def has_grown(path: Path, size: int) -> bool:
    return path.exists() and path.stat().st_size > size


def test_no_job_goes_twice_when_redrives_are_killed_again_and_again(tmp_path):
    """By kill -9, with a server that has run the jobs by the time they are looked at again."""
    record = tmp_path / "redrive.jsonl"
    (tmp_path / "server").mkdir()
    with ScheduleProcess(tmp_path / "server", database__logfile_path="log") as server:
        for kill in range(KILLS + 1):
            assert len(read_done(RealDisk(), str(record))) < COUNT
            stop = ROWS_A_LIFE * (kill + 1) if kill < KILLS else COUNT
            size = record.stat().st_size if record.exists() else 0
            life = LIVES.Process(target=redrive, args=(server.port, str(record), stop))
            life.start()
            if kill < KILLS:
                enough = size + 400 * (kill % 4)
                wait_until(partial(has_grown, record, enough), "a kill is due")
                life.kill()
            life.join()
            assert life.exitcode == (-signal.SIGKILL if kill < KILLS else 0)
        assert len(read_done(RealDisk(), str(record))) == COUNT
        server.stop()
    entries, _ = scan(ztick.CODEC, (tmp_path / "server" / "log").read_bytes())
    planned = [
        entry.record.identifier
        for entry in entries
        if isinstance(entry.record, ztick.JobSet) and entry.record.status is ztick.Status.PLANNED
    ]
    assert sorted(planned) == sorted({f"job.{number}" for number in range(COUNT)})
