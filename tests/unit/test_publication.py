"""KestrelLogs of publications at their edges; tests/crash/test_sink_commit.py has the crashes."""

from __future__ import annotations

import pytest

from journeyman.errors import LogError
from journeyman.logs.publication import Publication, finish, journal_path, pending, publish
from tests.support.simulated_disk import SimulatedDisk

JOURNAL = journal_path("/log")


def disk_with(**files: bytes) -> SimulatedDisk:
    disk = SimulatedDisk()
    for name, content in files.items():
        disk.plant(f"/log/{name.replace('__', '/')}", content)
    return disk


def test_files_come_and_go_together_and_no_journal_stays():
    disk = disk_with(old=b"1", same=b"2", staged__a=b"3", staged__b=b"4")
    publish(disk, JOURNAL, Publication({"staged/a": "same", "staged/b": "new"}, ("old",)))
    assert disk.files() == {"/log/same": b"3", "/log/new": b"4"}
    assert pending(disk, JOURNAL) is None
    assert not finish(disk, JOURNAL)


def test_what_went_from_another_directory_does_not_come_back_after_a_power_cut():
    disk = disk_with(old__file=b"1", staged__a=b"2")
    publish(disk, JOURNAL, Publication({"staged/a": "new"}, ("old/file",)))
    assert disk.after_crash().files() == {"/log/new": b"2"}


def test_logs_that_share_a_directory_have_journals_of_their_own():
    assert journal_path("/log", "jobs") == "/log/_publication-jobs.json"
    assert JOURNAL == "/log/_publication.json"


def test_a_name_cannot_come_and_go():
    with pytest.raises(ValueError, match="would come and go"):
        Publication({"staged/a": "x"}, ("x",))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{", "is not the journal"),
        (b'{"version": 1}', "is not the journal"),
        (b'{"version": 2, "renames": {}, "removes": []}', "is of version 2"),
        (b'{"version": 1, "renames": {"gone": "lost"}, "removes": []}', "neither gone nor lost"),
    ],
)
def test_a_journal_that_cannot_be_followed_is_an_error_and_stays(content, words):
    disk = disk_with(file=b"1")
    disk.plant(JOURNAL, content)
    with pytest.raises(LogError, match=words):
        finish(disk, JOURNAL)
    assert disk.files() == {"/log/file": b"1", JOURNAL: content}
