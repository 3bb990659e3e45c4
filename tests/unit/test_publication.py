"""KestrelLogs of publications at their edges; tests/crash/test_sink_commit.py has the crashes."""

from __future__ import annotations

import pytest

from journeyman.errors import LogError
from journeyman.logs import holders
from journeyman.logs.publication import (
    HELD_DIRECTORY,
    Publication,
    finish,
    journal_path,
    pending,
    publish,
    replacement_of,
)
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


NESTED = b"[" * 100_000
NOT_OURS = [NESTED, b"[]", b"5", b'{"logs": []}', b'{"logs": {"a": []}}', b"\xff"]


@pytest.mark.parametrize("content", NOT_OURS)
def test_notes_that_make_no_sense_are_none(content: bytes):
    names = ("holder.x", "became.7")
    disk = disk_with(**{f"{HELD_DIRECTORY}__{name}": content for name in names})
    who, _, places = holders._read(disk, "/log", "x") or ("", 0, {})
    assert (who, places) == ("x", {})
    assert replacement_of(disk, "/log/file", 7) is None


@pytest.mark.parametrize("content", [NESTED, b"5", b"\xff"])
def test_a_list_of_lost_files_that_makes_no_sense_is_empty(content: bytes):
    disk = disk_with(**{f"{HELD_DIRECTORY}__lost.x": content})
    assert holders.lost_files(disk, "/log", "x") == []


def test_a_name_cannot_come_and_go():
    with pytest.raises(ValueError, match="would come and go"):
        Publication({"staged/a": "x"}, ("x",))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{", "is not the journal"),
        (NESTED, "is not the journal"),
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
