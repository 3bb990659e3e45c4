"""An original program writes to the files of a server that was killed; then the server returns."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from journeyman.cli import journeyman
from journeyman.formats import ztick
from journeyman.formats.kestrel import READER, ReadDone, ReadHead
from journeyman.logs.segments import kestrel_segments
from tests.support.originals import appended_by_libkestrel, appended_by_ztick
from tests.support.servers.fanout_process import FanOutProcess
from tests.support.servers.schedule_process import ScheduleProcess

FAR_NS = 4_000_000_000_000_000_000


def test_a_job_that_ztick_set_after_a_kill_is_there(tmp_path: Path):
    with ScheduleProcess(tmp_path) as server:
        with server.client() as client:
            assert client.ask(f"1 SET ours {FAR_NS}") == "1 OK"
        server.kill()
    log = tmp_path / "logfile"
    foreign: list[ztick.Record] = [ztick.JobSet("theirs", FAR_NS + 1, ztick.Status.PLANNED)]
    log.write_bytes(appended_by_ztick(log.read_bytes(), foreign))
    dumped = CliRunner().invoke(journeyman, ["dump", str(log)])
    assert [line.split()[1] for line in dumped.stdout.splitlines()] == ["ours", "theirs"]
    with ScheduleProcess(tmp_path) as server:
        server.wait_for_line("another program has written to the log")
        with server.client() as client:
            assert client.ask("1 GET theirs").startswith("1 OK")
            assert client.ask("1 GET ours").startswith("1 OK")
    assert CliRunner().invoke(journeyman, ["verify", str(log)]).exit_code == 0


def test_items_and_the_checkpoint_of_libkestrel_after_a_kill_are_there(tmp_path: Path):
    with FanOutProcess(tmp_path) as server:
        with server.reader() as client:
            assert client.put("q", b"one") == "STORED"
            assert client.put("q", b"two") == "STORED"
        server.kill()
    names = kestrel_segments("q", [path.name for path in server.queues.iterdir()])
    segments = {name: (server.queues / name).read_bytes() for name in names}
    after, items = appended_by_libkestrel(segments, "q", [b"three", b"four"], killed=True)
    for name, data in after.items():
        (server.queues / name).write_bytes(data)
    done = READER.encode(ReadHead(items[0].item_id)) + READER.encode(ReadDone(()))
    (server.queues / "q.read.").write_bytes(READER.header + done)
    with FanOutProcess(tmp_path) as server:
        server.wait_for_line("another program has written to the log")
        with server.reader() as client:
            assert [client.get("q") for _ in range(2)] == [b"four", None]
            assert client.put("q", b"five") == "STORED"
            assert client.get("q") == b"five"
