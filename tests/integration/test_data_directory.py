"""One data directory: what a plain start keeps is durable, and only what was asked for is open."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from journeyman.client import KestrelClient, Schedule, WorkQueue
from journeyman.formats import workq
from journeyman.formats.framing import scan
from journeyman.formats.ztick import JobSet, Status
from tests.support import ztick_original
from tests.support.cli_commands import run
from tests.support.servers.schedule_process import ScheduleProcess
from tests.support.workq_original import replay_all

FAR_NS = 4_000_000_000_000_000_000
_ADDRESS = re.compile(r"(schedule|work queue|fan-out queues) listens? on [^\s]+:(\d+)")


class PlainServer(ScheduleProcess):
    """``journeyman serve`` with nothing set but free ports for the services named."""

    def __init__(self, directory: Path, *, config: str = "", options: tuple[str, ...] = ()):
        super().__init__(directory, config=config)
        services = ("controller", "workq", "kestrel") if not config else ("controller",)
        self._settings = {f"{name}.listen": "127.0.0.1:0" for name in services}
        self._settings["http.enabled"] = "false"  # its own port may be in use on this machine
        self._options = options

    def start(self, *, wait: bool = True) -> PlainServer:
        self._settings |= dict(option.split("=", 1) for option in self._options)
        super().start(wait=wait)
        return self

    @property
    def ports(self) -> dict[str, int]:
        found = (_ADDRESS.search(line) for line in self.lines)
        return {match[1]: int(match[2]) for match in found if match}


def test_a_plain_start_keeps_everything_through_kill_9(tmp_path: Path):
    with PlainServer(tmp_path) as server:
        ports = server.ports
        with (
            Schedule(port=ports["schedule"]) as schedule,
            WorkQueue(port=ports["work queue"]) as work,
            KestrelClient(port=ports["fan-out queues"]) as queues,
        ):
            schedule.set("job", FAR_NS)
            job_id = work.add("mail", b"to: all")
            assert queues.get("orders", reader="billing") is None
            assert queues.put("orders", b"one")
            server.stop(by=signal.SIGKILL)
    with PlainServer(tmp_path) as server:
        ports = server.ports
        with (
            Schedule(port=ports["schedule"]) as schedule,
            WorkQueue(port=ports["work queue"]) as work,
            KestrelClient(port=ports["fan-out queues"]) as queues,
        ):
            assert schedule.get("job") is not None
            leased = work.lease("mail", wait_ms=100)
            assert leased is not None
            assert leased.job_id == job_id
            assert queues.get("orders", reader="billing") == b"one"
        assert server.stop() == 0
    assert [path.name for path in tmp_path.iterdir()] == ["journeyman-data"]
    inside = {path.name for path in (tmp_path / "journeyman-data").iterdir()}
    assert {"schedule.log", "workq", "kestrel"} <= inside
    warnings = [line for line in server.lines if " WARN " in line]
    assert all("no tokens: every user of this machine" in line for line in warnings)


def test_what_a_killed_server_leaves_is_handed_to_the_originals_and_comes_back(tmp_path: Path):
    data = tmp_path / "journeyman-data"
    with PlainServer(tmp_path) as server:
        ports = server.ports
        with (
            Schedule(port=ports["schedule"]) as schedule,
            WorkQueue(port=ports["work queue"]) as work,
            KestrelClient(port=ports["fan-out queues"]) as queues,
        ):
            schedule.set("ours", FAR_NS)
            job_id = work.add("mail", b"to: all")
            assert queues.get("orders", reader="billing") is None
            assert queues.put("orders", b"one")
            busy = run("handover", data)
            server.stop(by=signal.SIGKILL)
    assert busy.exit_code == 1
    assert "stop the process that uses it" in busy.stderr

    assert run("handover", data).exit_code == 0

    log = data / "schedule.log"
    assert [each.identifier for each in ztick_original.load(log.read_bytes()).values()] == ["ours"]
    ztick_original.append(log, JobSet("theirs", FAR_NS, Status.PLANNED))
    (segment,) = (data / "workq").glob("*.log")
    entries, ending = scan(workq.CODEC, segment.read_bytes())
    assert ending.clean
    assert len(replay_all(entry.record for entry in entries)) == 1
    with PlainServer(tmp_path) as server:
        ports = server.ports
        with (
            Schedule(port=ports["schedule"]) as schedule,
            WorkQueue(port=ports["work queue"]) as work,
            KestrelClient(port=ports["fan-out queues"]) as queues,
        ):
            assert schedule.get("ours") is not None
            assert schedule.get("theirs") is not None
            leased = work.lease("mail", wait_ms=100)
            assert leased is not None
            assert leased.job_id == job_id
            assert queues.get("orders", reader="billing") == b"one"
        assert server.stop() == 0
    warnings = [line for line in server.lines if " WARN " in line]
    assert all("no tokens: every user of this machine" in line for line in warnings)


def test_a_ztick_file_opens_the_schedule_alone(tmp_path: Path):
    with PlainServer(tmp_path, config="[database]\nframerate = 100\n") as server:
        assert server.ask(f"r SET job {FAR_NS}") == "r OK"
        server.wait_for_line(r"the work queue: off .*server\.toml has only sections of ztick")
        server.wait_for_line(r"the fan-out queues: off .*server\.toml has only sections of ztick")
        assert set(server.ports) == {"schedule"}
        assert server.stop() == 0
    # ztick's own default, so that both find the same log.
    assert (tmp_path / "logfile").stat().st_size > 0
    assert not (tmp_path / "journeyman-data").exists()


def test_two_ztick_files_are_two_servers_on_one_machine(tmp_path: Path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    config = "[database]\nframerate = 100\n"
    with (
        PlainServer(tmp_path / "a", config=config) as first,
        PlainServer(tmp_path / "b", config=config) as second,
    ):
        assert first.stat()["jobs_total"] == second.stat()["jobs_total"] == "0"


def test_a_file_with_another_section_than_those_of_ztick_opens_every_service(tmp_path: Path):
    anywhere = 'listen = "127.0.0.1:0"\n'
    config = f"[controller]\n{anywhere}[workq]\n{anywhere}[kestrel]\n{anywhere}[http]\n{anywhere}"
    with PlainServer(tmp_path, config=config) as server:
        assert {"schedule", "work queue", "fan-out queues"} <= set(server.ports)
    in_data = {path.name for path in (tmp_path / "journeyman-data").iterdir()}
    assert {"schedule.log", "workq", "kestrel", "ledger"} <= in_data


def test_memory_is_said_at_warn_and_makes_no_file(tmp_path: Path):
    with PlainServer(tmp_path, config='[database]\npersistence = "memory"\n') as server:
        server.wait_for_line("WARN the schedule is in memory only")
        assert server.ask(f"r SET job {FAR_NS}") == "r OK"
        assert server.stop() == 0
    assert [path.name for path in tmp_path.iterdir()] == ["server.toml"]


def test_data_names_the_directory_of_everything(tmp_path: Path):
    with PlainServer(tmp_path, options=("data.directory=here/data",)) as server:
        assert server.ask(f"r SET job {FAR_NS}") == "r OK"
        assert server.stop() == 0
    assert [path.name for path in tmp_path.iterdir()] == ["here"]
    assert (tmp_path / "here/data/schedule.log").stat().st_size > 0
    assert (tmp_path / "here/data/workq").is_dir()
    assert (tmp_path / "here/data/kestrel").is_dir()


def test_what_an_earlier_version_kept_elsewhere_is_named(tmp_path: Path):
    (tmp_path / "logfile").write_bytes(b"")
    (tmp_path / "queues").mkdir()
    with PlainServer(tmp_path) as server:
        server.wait_for_line(r"WARN \./logfile is there and is not read.*--log logfile")
        server.wait_for_line(r"WARN \./queues is there and is not read.*--queue-path queues")
        server.stop()
    with PlainServer(tmp_path) as server:  # the choice was made: the new place has data
        assert not any("is not read" in line for line in server.lines)


# -- a working directory that cannot be written to -----------------------------------------------

READ_ONLY = Path("/proc")  # nobody can make a file there, not even root


def test_data_directory_that_cannot_be_made_is_one_line():
    server = PlainServer(READ_ONLY).start(wait=False)
    with server:
        assert server.wait() == 1
    [line] = [line for line in server.lines if line.startswith("journeyman: error: ")]
    assert line.startswith("journeyman: error: journeyman-data: cannot make the data directory: ")
    assert line.endswith("; name another one with --data DIR")
    assert not any("Traceback" in line for line in server.lines)


@pytest.mark.parametrize(
    "options",
    [
        ("data.directory={}",),
        ("database.persistence=memory", "workq.enabled=false", "kestrel.enabled=false"),
        ("database.persistence=memory", "workq.persistence=memory", "kestrel.queue_path={}/q"),
    ],
)
def test_read_only_working_directory_is_no_obstacle_by_itself(options: tuple[str], tmp_path: Path):
    given = tuple(option.format(tmp_path) for option in options)
    with PlainServer(READ_ONLY, options=given) as server:
        assert server.ask(f"r SET job {FAR_NS}") == "r OK"
        assert server.stop() == 0


@pytest.mark.parametrize(
    ("place", "is_folder"),
    [
        ("schedule.log", False),
        ("schedule.log.lock", False),
        ("workq", True),
        ("workq/append.lock", False),
        ("workq/000000001.log", False),
        ("kestrel", True),
        ("ledger", True),
        ("ledger/000000001.ledger", False),
    ],
)
def test_a_link_in_place_of_data_is_refused_in_one_line(
    tmp_path: Path, place: str, is_folder: bool
):
    target = tmp_path / "elsewhere"
    if is_folder:
        target.mkdir()
    else:
        target.write_bytes(b"kept")
    link = tmp_path / "journeyman-data" / place
    link.parent.mkdir(parents=True)
    link.symlink_to(target)
    with PlainServer(tmp_path).start(wait=False) as server:
        assert server.wait() == 1
    [line] = [line for line in server.lines if line.startswith("journeyman: error: ")]
    assert link.name in line
    assert "symbolic link" in line
    assert not any("Traceback" in line for line in server.lines)
    assert list(target.iterdir()) == [] if is_folder else target.read_bytes() == b"kept"


def test_the_data_directory_itself_may_be_a_link(tmp_path: Path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "journeyman-data").symlink_to("disk")
    with PlainServer(tmp_path) as server, WorkQueue(port=server.ports["work queue"]) as work:
        work.add("mail", b"to: all")
    assert (tmp_path / "disk" / "workq").is_dir()
