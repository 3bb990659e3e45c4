"""What a glob stands for: Hadoop's, as in Spark, over any place that can list its directories.

``*``, ``?``, ``[ab]``, ``[^a]`` and ``{a,b}``; never across a ``/``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from journeyman.errors import UsageError

_GLOB_CHARACTERS = frozenset("*?[]{}")


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file or directory as it was found. ``identity`` tells a replaced file, where known."""

    path: str
    is_dir: bool
    size: int
    modified_ns: int | None = None
    identity: int | None = None

    @property
    def name(self) -> str:
        return self.path.rstrip("/").rpartition("/")[2]


class Listing(Protocol):
    """A place whose directories can be listed."""

    def find(self, path: str) -> FoundFile | None:
        """What is at ``path``; None when nothing is."""
        ...

    def list_dir(self, path: str) -> list[FoundFile]:
        """What is in a directory, by name."""
        ...


def has_glob(path: str) -> bool:
    return not _GLOB_CHARACTERS.isdisjoint(path)


def expand(files: Listing, path: str) -> Iterator[FoundFile]:
    """What an absolute path or glob stands for, in order of the names; nothing if nothing is."""
    parts = path.split("/")
    first = next((at for at, part in enumerate(parts) if has_glob(part)), None)
    if first is None:
        if (found := files.find(path)) is not None:
            yield found
        return
    yield from _matches(files, "/".join(parts[:first]) or "/", [p for p in parts[first:] if p])


def _matches(files: Listing, base: str, parts: list[str]) -> Iterator[FoundFile]:
    pattern = glob_pattern(parts[0])
    root = files.find(base)
    if root is None or not root.is_dir:
        return
    for found in files.list_dir(base):
        if pattern.fullmatch(found.name) is None:
            continue
        if len(parts) == 1:
            yield found
        elif found.is_dir:
            yield from _below(files, found, parts[1:])


def _below(files: Listing, directory: FoundFile, parts: list[str]) -> Iterator[FoundFile]:
    if has_glob(parts[0]):
        yield from _matches(files, directory.path, parts)
        return
    found = files.find(directory.path.rstrip("/") + "/" + parts[0])
    if found is None:
        return
    if len(parts) == 1:
        yield found
    elif found.is_dir:
        yield from _below(files, found, parts[1:])


@lru_cache(maxsize=256)
def glob_pattern(glob: str) -> re.Pattern[str]:
    """A glob over one name, as a regular expression. Raises UsageError."""
    pieces: list[str] = []
    depth, at = 0, 0
    while at < len(glob):
        character = glob[at]
        at += 1
        if character == "*":
            pieces.append("[^/]*")
        elif character == "?":
            pieces.append("[^/]")
        elif character == "[" and (end := glob.find("]", at + 1)) > 0:
            inside = glob[at:end].replace("\\", "\\\\")
            pieces.append(f"[^{inside[1:]}]" if inside[0] in "!^" else f"[{inside}]")
            at = end + 1
        elif character == "{":
            pieces.append("(?:")
            depth += 1
        elif character == "}" and depth:
            pieces.append(")")
            depth -= 1
        elif character == "," and depth:
            pieces.append("|")
        else:
            pieces.append(re.escape(character))
    try:
        return re.compile("".join(pieces), re.DOTALL)
    except re.error:
        raise UsageError(f"{glob!r} is not a glob: a bracket or brace is not closed") from None
