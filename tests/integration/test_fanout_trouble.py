"""A disk that is full or fails, under the fan-out queues of a real server."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.servers.fanout_process import FanOutProcess
from tests.support.servers.trouble import FAILING_SYNC, limit

OLD_JOURNALS = Path(__file__).parents[1] / "golden" / "data" / "kestrel2" / "fanout"
NO_ROOM = "SERVER_ERROR the journal cannot be written"


def segment(server: FanOutProcess, queue: str = "q") -> Path:
    (found,) = (p for p in server.queues.glob(f"{queue}.*") if p.name.split(".")[1].isdecimal())
    return found


@pytest.mark.parametrize("sync", ["always", "interval", "os"])
def test_full_disk_refuses_puts_goes_on_reading_and_recovers(tmp_path: Path, sync: str):
    with FanOutProcess(tmp_path, kestrel__sync=sync) as server, server.reader() as client:
        for data in (b"one", b"two"):
            assert client.put("q", data) == "STORED"
        size = segment(server).stat().st_size
        limit(server, size + 10)
        assert client.put("q", b"x" * 100) == NO_ROOM
        assert client.put("q", b"x" * 100) == NO_ROOM
        assert client.get("q/open") == b"one"
        assert client.ask("confirm q 1") == "END"
        server.wait_for_line("ERROR a journal cannot be written")
        assert segment(server).stat().st_size == size
        limit(server, None)
        assert client.put("q", b"three") == "STORED"
        server.wait_for_line("the journals can be written again")
        server.stop()
    with FanOutProcess(tmp_path) as server, server.reader() as client:
        assert [client.get("q") for _ in range(3)] == [b"two", b"three", None]


def test_who_waits_goes_on_waiting_while_the_disk_is_full(tmp_path: Path):
    with FanOutProcess(tmp_path) as server, server.reader() as client, server.reader() as waiting:
        client.put("q", b"first")
        assert client.get("q") == b"first"
        waiting.send("get q/t=60000\r\n")
        server.wait_until(lambda: client.stats()["queue_q_waiters"] == "1")
        limit(server, segment(server).stat().st_size + 10)
        assert client.put("q", b"x" * 100) == NO_ROOM
        assert client.stats()["queue_q_waiters"] == "1"
        limit(server, None)
        assert client.put("q", b"second") == "STORED"
        assert waiting.read_item() == b"second"


def test_commands_behind_a_refused_put_are_answered_in_order(tmp_path: Path):
    with FanOutProcess(tmp_path) as server, server.reader() as client:
        client.put("q", b"one")
        limit(server, segment(server).stat().st_size + 10)
        client.send(b"set q 0 0 100\r\n%b\r\nget q\r\nversion\r\nget q\r\n" % bytes(100))
        assert client.read_line() == NO_ROOM
        assert client.read_item() == b"one"
        assert client.read_line().startswith("VERSION ")
        assert client.read_item() is None
        limit(server, None)


UNREADABLE = """
import errno
from journeyman import cli
from journeyman.disk import RealDisk
read_at, failures = RealDisk.read_at, [1]
def failing(self, path, offset, length):
    if failures:
        raise OSError(failures.pop() and errno.EIO, "Input/output error", path)
    return read_at(self, path, offset, length)
RealDisk.read_at = failing
cli.main()
"""


def test_items_that_cannot_be_read_are_read_later_and_nobody_else_waits(tmp_path: Path):
    process = FanOutProcess(tmp_path, program=UNREADABLE, kestrel__window_items=1)
    with process as server, server.reader() as client, server.reader() as other:
        for data in (b"one", b"two", b"three"):
            assert client.put("q", data) == "STORED"
        client.send("get q\r\n")
        server.wait_for_line("WARN items could not be read; trying again")
        assert other.put("r", b"else") == "STORED"
        assert other.get("r") == b"else"
        assert client.read_item() == b"one"
        assert [client.get("q") for _ in range(3)] == [b"two", b"three", None]


@pytest.mark.parametrize("sync", ["always", "interval"])
def test_failed_sync_ends_the_process(tmp_path: Path, sync: str):
    settings = {"kestrel.sync": sync, "kestrel.sync_interval_ms": 20}
    with (
        FanOutProcess(tmp_path, program=FAILING_SYNC, settings=settings) as server,
        server.reader() as client,
        server.client() as schedule,
    ):
        assert client.put("q", b"safe") == "STORED"
        assert schedule.ask("r SET job 4000000000000000000") == "r OK"
        (tmp_path / "fail").touch()
        client.send("set q 0 0 1\r\nx\r\n")
        answer = client.read_to_the_end()
        # With an interval, the sync of the item before may fail before this one is answered.
        assert answer in ([b""] if sync == "always" else [b"", b"STORED\r\n"])
        assert server.wait() == 1
        assert schedule.read_line() is None
        server.wait_for_line("^journeyman: error: .*sync failed")
    (tmp_path / "fail").unlink()
    with FanOutProcess(tmp_path) as server, server.reader() as client:
        assert client.get("q") == b"safe"


def test_port_in_use_leaves_nothing_open(tmp_path: Path):
    with FanOutProcess(tmp_path) as first:
        second_place = tmp_path / "second"
        second_place.mkdir()
        settings = {"kestrel.listen": f"127.0.0.1:{first.fanout_port}"}
        second = FanOutProcess(second_place, settings=settings)
        second.start(wait=False)
        assert second.wait() == 1
        second.wait_for_line("^journeyman: error: .*another process has this address")


def test_folder_that_is_a_file_is_told_in_one_line(tmp_path: Path):
    (tmp_path / "queues").write_text("not a folder")
    server = FanOutProcess(tmp_path)
    try:
        server.start(wait=False)
        server.wait_for_line("^journeyman: error: .*queues")
        assert server.wait() == 1
    finally:
        server.kill()


def test_checkpoints_that_could_not_be_written_are_told_once_and_written_later(tmp_path: Path):
    process = FanOutProcess(tmp_path, kestrel__checkpoint_interval_ms=20)
    with process as server, server.reader() as client:
        for data in (b"one", b"two"):
            assert client.put("q", data) == "STORED"
        checkpoint = server.queues / "q.read."
        before = checkpoint.read_bytes()
        limit(server, 10)
        assert client.get("q") == b"one"
        server.wait_for_line("WARN checkpoints could not be written")
        time.sleep(0.2)
        assert checkpoint.read_bytes() == before
        assert sum("could not be written" in line for line in server.lines) == 1
        limit(server, None)
        server.wait_until(lambda: checkpoint.read_bytes() != before, "the checkpoint is written")
        server.kill()
    with FanOutProcess(tmp_path) as server, server.reader() as client:
        assert client.get("q") == b"two"


def test_indexes_that_cannot_be_written_are_called_so(tmp_path: Path):
    settings = {"kestrel.checkpoint_interval_ms": 20, "kestrel.segment_bytes": 4096}
    (tmp_path / "queues").mkdir()
    (tmp_path / "queues" / ".index").symlink_to("nowhere")
    with FanOutProcess(tmp_path, settings=settings) as server, server.reader() as client:
        for _ in range(3):
            assert client.put("q", bytes(4000)) == "STORED"
        server.wait_for_line("WARN indexes of journals could not be written")
        assert client.get("q") == bytes(4000)
        server.stop()
        assert not any("checkpoints could not" in line for line in server.lines)


@pytest.mark.parametrize("lost", [["q.read."], ["q.read.", "q.lock"]])
def test_lost_checkpoint_brings_the_oldest_item_and_is_said(tmp_path, lost):
    with FanOutProcess(tmp_path) as server, server.reader() as client:
        client.put("q", b"1")
        client.put("q", b"2")
        assert client.get("q") == b"1"
        client.close()
        assert server.stop() == 0
    for name in lost:
        (server.queues / name).unlink()
    verify = [sys.executable, "-m", "journeyman", "verify", str(server.queues)]
    verified = subprocess.run(verify, capture_output=True, text=True, check=True)
    assert "starts at the oldest item, 1" in verified.stdout
    with FanOutProcess(tmp_path) as server, server.reader() as client:
        server.wait_for_line("starts at the oldest item, 1")
        assert [client.get("q"), client.get("q")] == [b"1", b"2"]


def test_start_on_journals_of_kestrel_2_says_what_it_found_and_moves_nothing(tmp_path):
    queues = tmp_path / "queues"
    shutil.copytree(OLD_JOURNALS, queues)
    (queues / "case.json").unlink()
    before = {path.name: path.read_bytes() for path in queues.iterdir()}
    with FanOutProcess(tmp_path) as server, server.reader() as client:
        server.wait_for_line("found 4 journals of kestrel 1.x or 2.x: this server cannot read them")
        assert client.put("orders", b"x").startswith(
            "SERVER_ERROR the queue has journals of kestrel"
        )
        assert client.put("other", b"x") == "STORED"
        assert server.stop() == 0
    assert (
        before.items() <= {p.name: p.read_bytes() for p in queues.iterdir() if p.is_file()}.items()
    )
    assert not (queues / "quarantine").exists()
