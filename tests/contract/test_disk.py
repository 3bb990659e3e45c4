"""The disk contract, kept by the machine's file system, by PostgreSQL and by the simulated one."""

from __future__ import annotations

import os

import pytest

from journeyman.disk import RealDisk
from journeyman.disk.postgres import PostgresDisk
from journeyman.testing import SimulatedDisk
from journeyman.testing.disk_contract import DiskContract


class TestRealDisk(DiskContract):
    @pytest.fixture
    def disk(self):
        return RealDisk()

    @pytest.fixture
    def root(self, tmp_path):
        return str(tmp_path)


class TestPostgresDisk(DiskContract):
    @pytest.fixture
    def disk(self, data_address):
        disk = PostgresDisk(data_address)
        disk.make_dirs(f"{data_address}/root")
        yield disk
        disk.close()

    @pytest.fixture
    def root(self, data_address):
        return f"{data_address}/root"


class TestSimulatedDisk(DiskContract):
    @pytest.fixture
    def disk(self):
        disk = SimulatedDisk()
        disk.make_dirs("/root")
        return disk

    @pytest.fixture
    def root(self):
        return "/root"


def test_a_real_lock_keeps_a_second_disk_object_out(tmp_path):
    """Locks are the operating system's, not the object's."""
    from journeyman.errors import LogLocked

    path = str(tmp_path / "lock")
    lock = RealDisk().lock(path)
    with pytest.raises(LogLocked):
        RealDisk().lock(path)
    lock.release()


def test_real_paths_may_be_relative(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    disk = RealDisk()
    disk.make_dirs("a/b")
    file = disk.open_append("a/b/file")
    file.write(b"x")
    file.close()
    disk.sync_dir("")
    assert (tmp_path / "a/b/file").read_bytes() == b"x"


@pytest.mark.parametrize("how", ["open_append", "open_read", "read_bytes", "view", "lock"])
def test_a_pipe_in_place_of_a_file_is_refused_and_not_waited_for(tmp_path, how):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(OSError, match="not a regular file"):
        getattr(RealDisk(), how)(str(path))
