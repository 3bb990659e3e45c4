"""What a lake knows of itself, and what a commit changes in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from journeyman.errors import UsageError

STATE_VERSION: Final = 3
_OLDER_VERSION: Final = 2  # without plans; see bronze.add_plans


@dataclass(frozen=True, slots=True)
class LakeState:
    """What the files of a lake hold."""

    commit: int = 0
    format: str = "parquet"
    version: int = STATE_VERSION
    offsets: Mapping[str, Any] = field(default_factory=dict)  # logs -> up to where they are read
    runs: Mapping[str, int] = field(default_factory=dict)  # file of runs -> bytes read
    fresh: Mapping[str, Sequence[str]] = field(default_factory=dict)  # table -> files not in silver
    readers: Mapping[str, str] = field(default_factory=dict)  # stream -> what its files looked like
    dropped: Mapping[str, str] = field(default_factory=dict)  # table -> days before this one went


@dataclass(frozen=True, slots=True)
class Staged:
    """Files that will belong to a table, by name; ``names.staged_path`` says where they are."""

    table: str
    directory: str
    files: tuple[str, ...]


# What is staged for a table, and the files it stands for.
StagedFiles = tuple[Staged, list[str]]


@dataclass(frozen=True, slots=True)
class TableChange:
    """What a commit changes in tables: names of files below their directories."""

    commit: int
    adds: Mapping[str, Sequence[str]]
    removes: Mapping[str, Sequence[str]]


def checked_state(path: str, found: Mapping[str, Any]) -> LakeState:
    """The state of the lake at a path. Raises UsageError for a version that is not known here."""
    if found.get("version") not in (_OLDER_VERSION, STATE_VERSION):
        raise UsageError(
            f"{path} is a lake of version {found.get('version')}; "
            f"this program reads {_OLDER_VERSION} and {STATE_VERSION}"
        )
    return LakeState(**found)
