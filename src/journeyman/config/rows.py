"""One row of the table of settings: a field of a dataclass that says what it is."""

from __future__ import annotations

from dataclasses import field
from typing import TypeVar

from journeyman.config.kinds import Kind

T = TypeVar("T")


def setting(kind: Kind[T], default: T, meaning: str, *, key: str = "") -> T:
    """A field that is a setting. ``key`` where ztick's name lacks the unit that ours carries."""
    metadata = {"kind": kind, "meaning": meaning, "key": key}
    return field(default=default, metadata=metadata)
