"""The local disk of the sinks: files joined in the kernel or by hand, old staging removed."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from journeyman.spark.files import staging_name
from journeyman.spark.sinks.commit import STALE_AFTER_S, LocalDisk, remove_staging, remove_stale


def refuse(*_: Any, **__: Any) -> int:
    raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))


@pytest.mark.parametrize("by_hand", [False, True], ids=["kernel", "by hand"])
def test_files_are_joined_from_their_offsets(tmp_path: Path, monkeypatch, by_hand):
    if by_hand:
        monkeypatch.setattr(os, "copy_file_range", refuse)
    large = os.urandom(3 * 1024 * 1024 + 1)
    (tmp_path / "a").write_bytes(b"headA")
    (tmp_path / "b").write_bytes(b"head" + large)
    (tmp_path / "c").write_bytes(b"")
    sources = [(str(tmp_path / "a"), 0), (str(tmp_path / "b"), 4), (str(tmp_path / "c"), 0)]
    target = tmp_path / "whole"
    target.write_bytes(b"what was there before" * 1000)
    assert LocalDisk().concatenate(sources, str(target)) == 5 + len(large)
    assert target.read_bytes() == b"headA" + large


def test_other_errors_of_the_kernel_are_not_hidden(tmp_path: Path, monkeypatch):
    def full(*_: Any, **__: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "copy_file_range", full)
    (tmp_path / "a").write_bytes(b"a")
    with pytest.raises(OSError, match="No space left"):
        LocalDisk().concatenate([(str(tmp_path / "a"), 0)], str(tmp_path / "whole"))


def test_only_staging_of_yesterday_is_removed(tmp_path: Path):
    now_ns = 1_800_000_000 * 10**9
    old = staging_name(now_ns - (STALE_AFTER_S + 1) * 10**9)
    young = staging_name(now_ns - (STALE_AFTER_S - 1) * 10**9)
    for name in (old, f"{old}.new", young, "_temporary", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "part").write_bytes(b"")
    remove_stale(LocalDisk(), str(tmp_path), now_ns)
    assert sorted(os.listdir(tmp_path)) == sorted([young, "_temporary", "other"])
    remove_staging(LocalDisk(), str(tmp_path / young))
    remove_staging(LocalDisk(), str(tmp_path / young))
    assert sorted(os.listdir(tmp_path)) == ["_temporary", "other"]
