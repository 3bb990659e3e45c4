"""A full disk under the work queue with its jobs in the store.

RLIMIT_FSIZE stands for the full disk: a write fails with EFBIG, as one on a full disk does with
ENOSPC.
"""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

from tests.support.servers.stores import is_whole
from tests.support.servers.trouble import READ_ONLY, limit
from tests.support.servers.workq_process import WorkqClient, WorkqProcess

STARTED_FULL = """
import resource
from journeyman import cli
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
cli.main()
"""
LINE = "add 00000000-0000-4000-8000-{:012} q 1000 600000 {}"
OVER_MS = 300
BIG = b"x" * 50_000


def log_bytes(server: WorkqProcess) -> int:
    return max(file.stat().st_size for file in (server.directory / "store").glob("*.log"))


def is_added(client: WorkqClient, number: int) -> bool:
    answer = client.ask(LINE.format(number, len(BIG)), BIG)
    assert answer in ("+OK", READ_ONLY)
    return answer == "+OK"


def test_full_disk_refuses_changes_goes_on_reading_and_recovers(tmp_path: Path):
    with WorkqProcess(tmp_path, in_store=True) as server, server.worker() as client:
        before = client.add("q", b"before")
        limit(server, log_bytes(server) + 1000)
        assert not is_added(client, 1)
        assert client.finish(before) == READ_ONLY
        assert client.ask("lease q 1000") == READ_ONLY
        assert client.ask("pause q") == READ_ONLY
        assert client.job(before)["state"] == "0"
        assert client.inspect("job 00000000-0000-4000-8000-000000000001") == "-NOT-FOUND"
        server.wait_for_line("ERROR the store cannot be written")
        limit(server, None)
        server.wait_until(lambda: is_added(client, 1))
        server.wait_for_line("the store can be written again")
        assert client.ask("pause q") == "+OK"
        server.kill()
    assert is_whole(tmp_path)
    with WorkqProcess(tmp_path, in_store=True) as server, server.worker() as client:
        (queue,) = client.blocks("queue q")
        assert queue["ready-len"] == "2"
        assert [block["id"] for block in client.blocks("paused-queues 0 10")] == ["q"]


def test_disk_that_fills_up_again_and_again_loses_nothing(tmp_path: Path):
    added = []
    with WorkqProcess(tmp_path, in_store=True) as server, server.worker() as client:
        for number in range(3):
            added.append(client.add("q", b"%d" % number))
            limit(server, log_bytes(server) + 1000)
            assert not is_added(client, number)
            limit(server, None)
            server.wait_until(partial(is_added, client, number))
        server.kill()
    with WorkqProcess(tmp_path, in_store=True) as server, server.worker() as client:
        assert [client.job(job_id)["payload"] for job_id in added] == ["0", "1", "2"]
        (queue,) = client.blocks("queue q")
        assert queue["ready-len"] == "6"


def test_start_on_a_full_disk_serves_reads_and_recovers(tmp_path: Path):
    with WorkqProcess(tmp_path, in_store=True) as server, server.worker() as client:
        kept, over = client.add("q", b"kept"), client.add("q", b"over", ttl=OVER_MS)
        server.kill()
    time.sleep(OVER_MS / 1000)  # the next start has an end to write, and no room for it
    with (
        WorkqProcess(tmp_path, in_store=True, program=STARTED_FULL) as server,
        server.worker() as client,
        server.client() as schedule,
    ):
        assert not is_added(client, 1)
        server.wait_for_line("ERROR the store cannot be written")
        assert client.job(kept)["payload"] == "kept"
        assert client.inspect(f"job {over}") == "-NOT-FOUND"
        assert schedule.ask("r SET job 4000000000000000000") == "r OK"
        second = WorkqProcess(tmp_path, in_store=True)
        assert second.start(wait=False).wait() == 2
        assert any("another server has its jobs here" in line for line in second.lines)
        limit(server, None)
        server.wait_until(lambda: is_added(client, 1))
        assert client.finish(kept, b"done") == "+OK"
        assert server.stop() == 0
    assert is_whole(tmp_path)
    with WorkqProcess(tmp_path, in_store=True) as server, server.worker() as client:
        assert client.result(kept) == (True, b"done")
        assert client.inspect(f"job {over}") == "-NOT-FOUND"
