"""What sinks do with files: joined, old staging removed."""

from __future__ import annotations

import os
from pathlib import Path

from journeyman.spark.files import staging_name
from journeyman.spark.sinks.commit import (
    STALE_AFTER_S,
    LocalDisk,
    concatenate,
    remove_staging,
    remove_stale,
)


def test_files_are_joined_without_their_headers(tmp_path: Path):
    large = os.urandom(3 * 1024 * 1024 + 1)
    (tmp_path / "a").write_bytes(b"headA")
    (tmp_path / "b").write_bytes(b"head" + large)
    (tmp_path / "c").write_bytes(b"head")
    target = tmp_path / "whole"
    target.write_bytes(b"what was there before" * 1000)
    concatenate(LocalDisk(), [str(tmp_path / name) for name in "abc"], str(target), 4)
    assert target.read_bytes() == b"headA" + large


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
