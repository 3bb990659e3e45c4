"""What every Disk does. Subclass DiskContract, name the disk and a directory, and run pytest.

    class TestMyDisk(DiskContract):
        @pytest.fixture
        def disk(self): ...
        @pytest.fixture
        def root(self): ...      # an existing, empty directory on that disk

What survives a crash cannot be asked of a real disk from within a test; SimulatedDisk answers for
it, and its own tests pin that down.
"""

from __future__ import annotations

import threading

import pytest

from journeyman.disk import AppendFile, Disk, Lock
from journeyman.errors import LogLocked

_LONG_ENOUGH_S = 30.0
_OPENED_BY_THEN_S = 0.05  # if not, the test proves less, and passes all the same


def _write(disk: Disk, path: str, data: bytes) -> None:
    file = disk.open_append(path)
    file.write(data)
    file.close()


class DiskContract:
    """The tests. Fixtures ``disk`` and ``root`` come from the subclass."""

    @pytest.fixture
    def path(self, root: str) -> str:
        return f"{root}/file"

    # --- appending ---

    def test_open_append_makes_an_empty_file(self, disk: Disk, path: str) -> None:
        file = disk.open_append(path)
        assert (file.path, file.size(), disk.read_bytes(path)) == (path, 0, b"")
        file.close()

    def test_writes_go_to_the_end(self, disk: Disk, path: str) -> None:
        _write(disk, path, b"one,")
        file = disk.open_append(path)
        file.write(b"two,")
        file.write(b"three")
        assert file.size() == disk.size(path) == 13
        assert disk.read_bytes(path) == b"one,two,three"
        file.close()

    def test_two_writers_both_append_at_the_end(self, disk: Disk, path: str) -> None:
        first, second = disk.open_append(path), disk.open_append(path)
        for file, data in ((first, b"a"), (second, b"b"), (first, b"c")):
            file.write(data)
        assert disk.read_bytes(path) == b"abc"
        first.close()
        second.close()

    def test_truncate_cuts_and_writing_goes_on_at_the_cut(self, disk: Disk, path: str) -> None:
        file = disk.open_append(path)
        file.write(b"kept,gone")
        file.truncate(5)
        assert file.size() == 5
        file.write(b"new")
        assert disk.read_bytes(path) == b"kept,new"
        file.close()

    def test_truncate_past_the_end_fills_with_zeros(self, disk: Disk, path: str) -> None:
        file = disk.open_append(path)
        file.write(b"x")
        file.truncate(4)
        file.write(b"y")
        assert disk.read_bytes(path) == b"x\0\0\0y"
        file.close()

    def test_sync_changes_nothing_a_reader_sees(self, disk: Disk, path: str) -> None:
        file = disk.open_append(path)
        file.write(b"data")
        file.sync()
        assert disk.read_bytes(path) == b"data"
        file.close()

    @pytest.mark.parametrize("use", [AppendFile.size, AppendFile.sync])
    def test_a_closed_file_refuses_use(self, disk: Disk, path: str, use: object) -> None:
        file = disk.open_append(path)
        file.close()
        file.close()
        with pytest.raises(OSError, match=r"[Bb]ad file descriptor"):
            getattr(file, use.__name__)()  # type: ignore[attr-defined]
        with pytest.raises(OSError, match=r"[Bb]ad file descriptor"):
            file.write(b"late")

    def test_a_file_cannot_be_made_in_a_missing_directory(self, disk: Disk, root: str) -> None:
        with pytest.raises(FileNotFoundError):
            disk.open_append(f"{root}/missing/file")

    def test_a_directory_cannot_be_appended_to(self, disk: Disk, root: str) -> None:
        with pytest.raises(IsADirectoryError):
            disk.open_append(root)

    # --- reading ---

    def test_read_at_gives_fewer_bytes_at_the_end(self, disk: Disk, path: str) -> None:
        _write(disk, path, b"0123456789")
        assert disk.read_at(path, 2, 3) == b"234"
        assert disk.read_at(path, 8, 100) == b"89"
        assert disk.read_at(path, 10, 1) == b""
        assert disk.read_at(path, 99, 1) == b""

    @pytest.mark.parametrize("data", [b"", b"some bytes"])
    def test_view_is_the_whole_file_and_read_only(self, disk: Disk, path: str, data: bytes) -> None:
        _write(disk, path, data)
        view = disk.view(path)
        assert bytes(view) == data
        assert view.readonly

    def test_a_view_outlives_the_name_of_its_file(self, disk: Disk, path: str) -> None:
        _write(disk, path, b"still here")
        view = disk.view(path)
        disk.remove(path)
        assert bytes(view) == b"still here"

    def test_a_missing_file_cannot_be_read(self, disk: Disk, path: str) -> None:
        for read in (disk.read_bytes, disk.view, disk.size):
            with pytest.raises(FileNotFoundError):
                read(path)
        with pytest.raises(FileNotFoundError):
            disk.read_at(path, 0, 1)

    def test_an_open_file_stays_the_same_whatever_its_name(
        self, disk: Disk, root: str, path: str
    ) -> None:
        _write(disk, path, b"first")
        file = disk.open_read(path)
        assert (file.size(), file.read_at(1, 3), file.still_at(path)) == (5, b"irs", True)
        disk.rename(path, f"{root}/elsewhere")
        _write(disk, path, b"the next")
        assert (file.size(), file.read_at(0, 99), file.still_at(path)) == (5, b"first", False)
        assert file.still_at(f"{root}/elsewhere")
        disk.remove(f"{root}/elsewhere")
        assert file.read_at(0, 99) == b"first"
        assert not file.still_at(f"{root}/elsewhere")
        file.close()

    def test_what_was_written_is_read_before_and_after_a_flush(self, disk: Disk, path: str) -> None:
        file, reading = disk.open_append(path), disk.open_read(path)
        file.write(b"one,")
        file.sync()
        file.write(b"two")
        assert (reading.read_at(2, 4), reading.size()) == (b"e,tw", 7)
        disk.flush()
        assert (reading.read_at(2, 4), reading.size()) == (b"e,tw", 7)
        assert (reading.read_at(7, 1), reading.read_at(99, 1)) == (b"", b"")
        file.close()
        reading.close()

    # --- names ---

    def test_stat_tells_one_file_from_another(self, disk: Disk, root: str, path: str) -> None:
        with pytest.raises(FileNotFoundError):
            disk.stat(path)
        _write(disk, path, b"12345")
        first = disk.stat(path)
        assert (first.size, first.is_dir) == (5, False)
        _write(disk, f"{root}/other", b"12")
        disk.rename(f"{root}/other", path)
        assert disk.stat(path).size == 2
        assert disk.stat(path).identity != first.identity
        disk.make_dirs(f"{root}/sub")
        assert disk.stat(f"{root}/sub").is_dir

    def test_scan_gives_the_status_of_all_that_is_in_a_directory(
        self, disk: Disk, root: str, path: str
    ) -> None:
        _write(disk, path, b"12345")
        disk.make_dirs(f"{root}/a")
        assert disk.scan(root) == {"a": disk.stat(f"{root}/a"), "file": disk.stat(path)}
        with pytest.raises(FileNotFoundError):
            disk.scan(f"{root}/missing")
        with pytest.raises(NotADirectoryError):
            disk.scan(path)

    def test_exists_and_is_dir_tell_files_from_directories(
        self, disk: Disk, root: str, path: str
    ) -> None:
        assert (disk.exists(path), disk.is_dir(path)) == (False, False)
        _write(disk, path, b"")
        assert (disk.exists(path), disk.is_dir(path)) == (True, False)
        assert (disk.exists(root), disk.is_dir(root)) == (True, True)
        assert not disk.exists(f"{path}/below-a-file")

    def test_list_dir_is_sorted_and_names_directories_too(self, disk: Disk, root: str) -> None:
        for name in ("b", "a", "10", "9"):
            _write(disk, f"{root}/{name}", b"")
        disk.make_dirs(f"{root}/c/d")
        assert disk.list_dir(root) == ["10", "9", "a", "b", "c"]
        assert disk.list_dir(f"{root}/c") == ["d"]

    def test_only_an_existing_directory_can_be_listed(
        self, disk: Disk, root: str, path: str
    ) -> None:
        with pytest.raises(FileNotFoundError):
            disk.list_dir(f"{root}/missing")
        _write(disk, path, b"")
        with pytest.raises(NotADirectoryError):
            disk.list_dir(path)

    def test_make_dirs_makes_parents_and_may_be_repeated(self, disk: Disk, root: str) -> None:
        disk.make_dirs(f"{root}/a/b/c")
        disk.make_dirs(f"{root}/a/b/c")
        assert disk.is_dir(f"{root}/a/b/c")

    def test_make_dirs_does_not_replace_a_file(self, disk: Disk, path: str) -> None:
        _write(disk, path, b"kept")
        with pytest.raises(FileExistsError):
            disk.make_dirs(path)
        assert disk.read_bytes(path) == b"kept"

    def test_rename_replaces_the_target(self, disk: Disk, root: str, path: str) -> None:
        _write(disk, path, b"new")
        _write(disk, f"{root}/target", b"old")
        disk.rename(path, f"{root}/target")
        assert disk.list_dir(root) == ["target"]
        assert disk.read_bytes(f"{root}/target") == b"new"

    def test_rename_goes_across_directories(self, disk: Disk, root: str, path: str) -> None:
        _write(disk, path, b"moved")
        disk.make_dirs(f"{root}/sub")
        disk.rename(path, f"{root}/sub/file")
        assert disk.list_dir(root) == ["sub"]
        assert disk.read_bytes(f"{root}/sub/file") == b"moved"

    def test_an_open_file_follows_its_rename(self, disk: Disk, root: str, path: str) -> None:
        file = disk.open_append(path)
        file.write(b"before,")
        disk.rename(path, f"{root}/elsewhere")
        file.write(b"after")
        file.sync()
        file.close()
        assert disk.read_bytes(f"{root}/elsewhere") == b"before,after"
        assert not disk.exists(path)

    def test_what_is_missing_cannot_be_renamed_or_removed(
        self, disk: Disk, root: str, path: str
    ) -> None:
        with pytest.raises(FileNotFoundError):
            disk.rename(path, f"{root}/target")
        with pytest.raises(FileNotFoundError):
            disk.remove(path)

    def test_remove_takes_files_and_leaves_directories(
        self, disk: Disk, root: str, path: str
    ) -> None:
        _write(disk, path, b"")
        disk.remove(path)
        assert not disk.exists(path)
        disk.make_dirs(f"{root}/sub")
        with pytest.raises(IsADirectoryError):
            disk.remove(f"{root}/sub")

    def test_sync_dir_takes_directories_only(self, disk: Disk, root: str, path: str) -> None:
        disk.sync_dir(root)
        with pytest.raises(FileNotFoundError):
            disk.sync_dir(f"{root}/missing")
        _write(disk, path, b"")
        with pytest.raises(NotADirectoryError):
            disk.sync_dir(path)

    # --- locks ---

    def test_a_lock_keeps_others_out_until_released(self, disk: Disk, path: str) -> None:
        lock = disk.lock(path)
        with pytest.raises(LogLocked):
            disk.lock(path)
        with pytest.raises(LogLocked):
            disk.lock(path, shared=True)
        lock.release()
        lock.release()
        disk.lock(path).release()
        assert disk.exists(path)

    def test_shared_locks_keep_only_exclusive_ones_out(self, disk: Disk, path: str) -> None:
        first, second = disk.lock(path, shared=True), disk.lock(path, shared=True)
        first.release()
        with pytest.raises(LogLocked):
            disk.lock(path)
        second.release()
        disk.lock(path).release()

    def test_locks_of_different_files_are_apart(self, disk: Disk, root: str) -> None:
        first, second = disk.lock(f"{root}/a"), disk.lock(f"{root}/b")
        first.release()
        second.release()

    def test_waiting_for_a_lock_ends_with_its_release(self, disk: Disk, path: str) -> None:
        held = disk.lock(path)
        had: list[bool] = []

        def wait() -> None:
            disk.lock(path, timeout_s=_LONG_ENOUGH_S).release()
            had.append(True)

        thread = threading.Thread(target=wait)
        thread.start()
        held.release()
        thread.join()
        assert had == [True]

    def test_a_lock_is_on_the_file_that_has_the_name_now(self, disk: Disk, path: str) -> None:
        """A lock whose file was removed while it was waited for is not shared with others."""
        held = disk.lock(path)
        had: list[Lock] = []
        waiting = threading.Thread(
            target=lambda: had.append(disk.lock(path, timeout_s=_LONG_ENOUGH_S))
        )
        waiting.start()
        waiting.join(_OPENED_BY_THEN_S)
        disk.remove(path)
        held.release()
        waiting.join()
        with pytest.raises(LogLocked):
            disk.lock(path)
        had[0].release()
        disk.lock(path).release()

    def test_waiting_for_a_lock_gives_up_in_time(self, disk: Disk, path: str) -> None:
        held = disk.lock(path)
        with pytest.raises(LogLocked):
            disk.lock(path, timeout_s=0.02)
        held.release()
