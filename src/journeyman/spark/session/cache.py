"""A directory for small things that can be made again: $XDG_CACHE_HOME/journeyman.

Where no such directory can be written, ``cache_path`` says None, and whoever asked does without.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def cache_path(*names: str) -> Path | None:
    """The path of this name in the cache; its directory exists. None if there can be no cache."""
    path = _home().joinpath(*names)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return None
    return path if os.access(path.parent, os.W_OK) else None


def keep_file(path: Path, text: str, mode: int = 0o644) -> Path:
    """The file with this text; written, at once and whole, unless it is there already."""
    try:
        if path.read_text() == text:
            return path
    except OSError:
        pass  # not there yet, or not ours to read: then it is written
    number, temporary = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(number, "w") as file:
        file.write(text)
    os.chmod(temporary, mode)
    os.replace(temporary, path)
    return path


def _home() -> Path:
    configured = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(configured) if os.path.isabs(configured) else Path("~/.cache").expanduser()
    return root / "journeyman"
