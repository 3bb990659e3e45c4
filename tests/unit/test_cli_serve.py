"""``journeyman serve``: its options are settings."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from journeyman.cli import journeyman
from journeyman.config import Address, Configuration, Settings, WorkqSync
from journeyman.servers import process


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """The settings with which a server would have been started."""
    found: list[Settings] = []

    def run(configuration: Configuration, **_: object) -> int:
        found.append(configuration.settings)
        return 0

    monkeypatch.setattr(process, "run", run)
    for name in Settings.__struct_fields__:
        monkeypatch.delenv(f"JOURNEYMAN_{name.upper()}_LISTEN", raising=False)
    return found


def serve(*options: str) -> int:
    return CliRunner().invoke(journeyman, ["serve", *options]).exit_code


def test_work_queue_is_open_and_durable_by_default(served: list[Settings]):
    assert serve() == 0
    workq = served[0].workq
    assert workq.enabled
    assert workq.listen == Address("127.0.0.1", 9922)
    assert workq.cmdlog_path == "journeyman-data/workq"
    assert workq.cmdlog_sync is WorkqSync.ALWAYS
    assert workq.cmdlog_sync_int_ms == 1000
    assert workq.cmdlog_clean_int_ms == 300_000
    assert workq.cmdlog_seg_size_bytes == 64 * 1024 * 1024


def test_fan_out_queues_are_durable_by_default(served: list[Settings]):
    assert serve() == 0
    kestrel = served[0].kestrel
    assert kestrel.enabled
    assert kestrel.listen == Address("127.0.0.1", 22133)
    assert (kestrel.queue_path, kestrel.sync) == ("journeyman-data/kestrel", WorkqSync.ALWAYS)
    assert not kestrel.allow_shutdown


def test_data_is_the_directory_of_all_three(served: list[Settings]):
    assert serve("--data", "d", "--queue-path", "q") == 0
    assert served[0].database.logfile_path == "d/schedule.log"
    assert served[0].workq.cmdlog_path == "d/workq"
    assert served[0].kestrel.queue_path == "q"


def test_fan_out_queues_have_options(served: list[Settings]):
    options = "--kestrel-listen 127.0.0.1:8 --queue-path q --queue-sync interval --queue-sync-int 9"
    assert serve(*options.split()) == 0
    kestrel = served[0].kestrel
    assert (kestrel.listen.port, kestrel.queue_path) == (8, "q")
    assert (kestrel.sync, kestrel.sync_interval_ms) == (WorkqSync.INTERVAL, 9)


def test_options_of_the_work_queue_are_those_of_the_original(served: list[Settings]):
    options = "--workq-listen 127.0.0.1:7 --cmdlog-path d --cmdlog-sync always "
    options += "--cmdlog-sync-int 5 --cmdlog-clean-int 6 --cmdlog-seg-size 700"
    assert serve(*options.split()) == 0
    workq = served[0].workq
    assert (workq.listen.port, workq.cmdlog_path) == (7, "d")
    assert workq.cmdlog_sync is WorkqSync.ALWAYS
    assert (workq.cmdlog_sync_int_ms, workq.cmdlog_clean_int_ms) == (5, 6)
    assert workq.cmdlog_seg_size_bytes == 700


def test_work_queue_can_be_turned_off(served: list[Settings]):
    assert serve("--workq-listen", "off") == 0
    assert not served[0].workq.enabled
    assert served[0].kestrel.enabled


def test_fan_out_queues_can_be_turned_off(served: list[Settings]):
    assert serve("--kestrel-listen", "off") == 0
    assert not served[0].kestrel.enabled
    assert served[0].workq.enabled


@pytest.mark.parametrize(
    "options",
    [
        ("--cmdlog-sync", "sometimes"),
        ("--cmdlog-sync-int", "0"),
        ("--cmdlog-seg-size", "-1"),
        ("--workq-listen", "9922"),
        ("--cmdlog-path", ""),
        ("--data", ""),
        ("--kestrel-listen", "22133"),
        ("--queue-path", ""),
        ("--queue-sync", "sometimes"),
        ("--queue-sync-int", "0"),
    ],
)
def test_values_that_cannot_be_are_refused(served: list[Settings], options: tuple[str, str]):
    assert serve(*options) == 2
    assert served == []


def test_file_says_the_same(served: list[Settings], tmp_path):
    path = tmp_path / "server.toml"
    path.write_text('[workq]\nenabled = false\ncmdlog_path = "x"\ncmdlog_sync = "os"\n')
    assert serve("-c", str(path)) == 0
    workq = served[0].workq
    assert (workq.enabled, workq.cmdlog_path, workq.cmdlog_sync) == (False, "x", WorkqSync.OS)


# -- workq-server ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dash", ["-", "--"])
@pytest.mark.parametrize("joined", [False, True])
def test_workq_server_takes_the_flags_of_the_original(
    served: list[Settings], dash: str, joined: bool
):
    flags = {
        "listen": "127.0.0.1:1234",
        "cmdlog-path": "d",
        "cmdlog-sync": "always",
        "cmdlog-sync-int": "0",
        "cmdlog-clean-int": "5",
        "cmdlog-seg-size": "1000000",
    }
    words = [f"{dash}{name}={value}" for name, value in flags.items()]
    if not joined:
        words = [part for word in words for part in word.split("=")]
    assert CliRunner().invoke(journeyman, ["workq-server", *words]).exit_code == 0
    settings = served[0]
    workq = settings.workq
    assert (workq.listen, workq.cmdlog_path) == (Address("127.0.0.1", 1234), "d")
    assert workq.cmdlog_sync is WorkqSync.ALWAYS
    assert (workq.cmdlog_clean_int_ms, workq.cmdlog_seg_size_bytes) == (5, 1_000_000)
    assert (workq.enabled, settings.controller.enabled, settings.kestrel.enabled) == (
        True,
        False,
        False,
    )


def test_workq_server_keeps_its_jobs_where_nothing_is_said(served: list[Settings]):
    assert CliRunner().invoke(journeyman, ["workq-server", "--data", "d"]).exit_code == 0
    assert served[0].workq.cmdlog_path == "d/workq"


def test_workq_server_needs_an_interval_where_it_syncs_by_one(served: list[Settings]):
    words = ["workq-server", "-cmdlog-sync", "interval", "-cmdlog-sync-int", "0"]
    done = CliRunner().invoke(journeyman, words)
    assert done.exit_code == 2
    assert "cmdlog_sync_int" in done.output
    assert served == []
