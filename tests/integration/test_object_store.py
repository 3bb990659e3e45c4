"""Backups in an object store: an S3 server on loopback."""

from __future__ import annotations

from pathlib import Path

import pytest
from moto.server import ThreadedMotoServer
from pyarrow import fs

from journeyman.backup import open_vault
from journeyman.cli.backup import _Follow
from journeyman.clock import SystemClock
from journeyman.disk import RealDisk
from journeyman.formats import ztick
from journeyman.logs.ztick.log import ZtickLog
from tests.support.cli_commands import assert_one_line_error, run

KEYS = {
    "AWS_ACCESS_KEY_ID": "key",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


@pytest.fixture(scope="module")
def store():
    """The address of a store with one empty bucket."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def bucket(store, tmp_path, monkeypatch):
    """The keys to the store in the environment; an empty folder of our own."""
    for name, value in {**KEYS, "AWS_ENDPOINT_URL": store}.items():
        monkeypatch.setenv(name, value)
    made = fs.S3FileSystem(endpoint_override=store, allow_bucket_creation=True)
    made.create_dir("backups")
    return f"s3://backups/{tmp_path.name}"


def filled(data: Path, *identifiers: str) -> None:
    with ZtickLog.open(RealDisk(), SystemClock(), str(data / "schedule.log")) as log:
        log.append([ztick.JobSet(each, 1, ztick.Status.PLANNED) for each in identifiers])


def test_backups_in_a_bucket_are_followed_checked_and_restored(bucket, tmp_path):
    data, target = tmp_path / "data", f"{bucket}/journeyman"
    filled(data, "a", "b")
    first = run("backup", target, "--data", data)
    assert first.exit_code == 0, first.output
    follow = _Follow(open_vault(target), str(data), 1.0, 100)
    follow.once()
    filled(data, "c")
    follow.once()
    follow.once()  # nothing is new
    assert len(run("backup", target, "--list").stdout.splitlines()) == 3
    assert run("backup", target, "--check").exit_code == 0
    restored = run("restore", target, "--data", tmp_path / "restored")
    assert restored.exit_code == 0, restored.output
    name = "schedule.log"
    assert (tmp_path / "restored" / name).read_bytes() == (data / name).read_bytes()
    # One object is lost.
    vault = open_vault(target)
    vault.remove("chunks", next(vault.names("chunks")))
    lost = run("backup", target, "--check")
    assert lost.exit_code == 1
    assert "missing" in lost.stdout


@pytest.mark.usefixtures("bucket")
def test_a_bucket_that_is_not_there_is_an_error_in_one_line(tmp_path):
    filled(tmp_path / "data", "a")
    missing = run("backup", "s3://no-such-bucket/journeyman", "--data", tmp_path / "data")
    assert_one_line_error(missing, 1)
