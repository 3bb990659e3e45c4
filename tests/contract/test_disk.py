"""The disk contract, kept by the machine's file system, by PostgreSQL and by the simulated one."""

from __future__ import annotations

import os

import pytest

from journeyman.disk import RealDisk
from journeyman.disk.postgres import PostgresDisk
from tests.contract.disk_contract import DiskContract
from tests.support.simulated_disk import SimulatedDisk


class TestRealDisk(DiskContract):
    @pytest.fixture
    def disk(self):
        return RealDisk()

    @pytest.fixture
    def root(self, tmp_path):
        return str(tmp_path)


@pytest.mark.slow
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


@pytest.fixture
def own_disk(tmp_path):
    """A disk whose directory ``data`` is its own; it is a link, and so is what is above it."""
    (tmp_path / "real").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "data").symlink_to("real")
    disk = RealDisk()
    disk.refuse_links_below(str(tmp_path / "data"))
    return disk


OPENINGS = ["open_append", "open_read", "read_bytes", "view", "lock"]


@pytest.mark.parametrize("how", OPENINGS)
def test_a_link_in_place_of_a_file_of_our_own_is_refused(tmp_path, own_disk, how):
    target = tmp_path / "elsewhere" / "file"
    (tmp_path / "data" / "file").symlink_to(target)
    with pytest.raises(OSError, match="symbolic link"):
        getattr(own_disk, how)(str(tmp_path / "data" / "file"))
    assert not target.exists()
    target.write_bytes(b"kept")
    with pytest.raises(OSError, match="symbolic link"):
        getattr(own_disk, how)(str(tmp_path / "data" / "file"))
    assert target.read_bytes() == b"kept"


@pytest.mark.parametrize("how", [*OPENINGS, "make_dirs", "list_dir", "sync_dir", "remove"])
def test_a_link_in_place_of_a_folder_of_our_own_is_refused(tmp_path, own_disk, how):
    (tmp_path / "elsewhere" / "a").mkdir()
    (tmp_path / "data" / "folder").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic link"):
        getattr(own_disk, how)(str(tmp_path / "data" / "folder" / "a"))
    assert [path.name for path in (tmp_path / "elsewhere").iterdir()] == ["a"]


def test_no_file_is_renamed_through_a_link(tmp_path, own_disk):
    data, file = tmp_path / "data", tmp_path / "data" / "file"
    (data / "folder").symlink_to(tmp_path / "elsewhere")
    file.write_bytes(b"own")
    for source, target in (("file", "folder/file"), ("folder/file", "other")):
        with pytest.raises(OSError, match="symbolic link"):
            own_disk.rename(str(data / source), str(data / target))
    victim = tmp_path / "elsewhere" / "victim"
    victim.write_bytes(b"kept")
    victim.chmod(0o644)
    (data / "target").symlink_to(victim)
    file.chmod(0o600)
    own_disk.rename(str(file), str(data / "target"))
    assert not (data / "target").is_symlink()
    assert (data / "target").stat().st_mode & 0o777 == 0o600
    assert victim.read_bytes() == b"kept"


def test_nothing_is_made_through_a_link_anywhere(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "target")
    for make in (RealDisk().open_append, RealDisk().lock):
        with pytest.raises(OSError, match="symbolic link"):
            make(str(tmp_path / "link"))
    assert not (tmp_path / "target").exists()
    (tmp_path / "target").write_bytes(b"followed")
    assert RealDisk().read_bytes(str(tmp_path / "link")) == b"followed"  # as named by its user
