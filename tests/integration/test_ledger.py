"""The ledger of a real server: through kill -9, damage and loss, and read while it is written."""

from __future__ import annotations

import time
from pathlib import Path

from journeyman.client import Schedule, WorkQueue
from journeyman.logs.ledger import FLUSH_NS
from tests.support.cli_commands import rows, run
from tests.support.servers.workq_process import WorkqProcess

FAR_NS = 4_000_000_000_000_000_000


def server_in(directory: Path) -> WorkqProcess:
    return WorkqProcess(
        directory,
        settings={
            "data.directory": "data",
            "database.persistence": "logfile",
            "database.logfile_path": "data/schedule.log",
            "workq.cmdlog_path": "data/workq",
        },
    )


def paused(server: WorkqProcess) -> set[str]:
    with WorkQueue(port=server.workq_port) as work:
        return {queue.name for queue in work.inspect_paused_queues()}


def test_it_survives_kill_9_damage_and_loss(tmp_path: Path):
    ledger = tmp_path / "data" / "ledger"
    with server_in(tmp_path) as server:
        with Schedule(port=server.port) as schedule, WorkQueue(port=server.workq_port) as work:
            schedule.set("first", FAR_NS)
            between_ns = time.time_ns()
            schedule.set("second", FAR_NS)
            for name in ("mail", "reports", "slow"):
                work.pause(name)
            work.resume("slow")
        # A mark is written with the next batch after a second, or by the clock.
        time.sleep(FLUSH_NS / 10**9)
        server.wait_until(lambda: shown(tmp_path, time.time_ns()) == ["first", "second"], "marks")
        assert shown(tmp_path, between_ns) == ["first"]
        server.kill()
    with server_in(tmp_path) as server:
        assert paused(server) == {"mail", "reports"}
        server.kill()
    (segment,) = ledger.glob("*.ledger")
    data = segment.read_bytes()
    segment.write_bytes(data.replace(b'"mail"', b'"mall"'))
    with server_in(tmp_path) as server:
        assert paused(server) == {"reports"}
        server.wait_for_line("the log was damaged")
        assert server.stop() == 0
    assert run("verify", ledger).exit_code == 0
    for path in ledger.rglob("*"):
        if path.is_file():
            path.unlink()
    with server_in(tmp_path) as server:
        assert paused(server) == set()
        with Schedule(port=server.port) as schedule:
            assert schedule.get("second") is not None
        assert server.stop() == 0


def shown(directory: Path, as_of_ns: int) -> list[str]:
    """The jobs as of a time, by a dump beside the server."""
    result = run("dump", "--json", "--as-of", as_of_ns, directory / "data" / "schedule.log")
    return [row["identifier"] for row in rows(result)] if result.exit_code == 0 else []
