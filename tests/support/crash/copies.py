"""Files of a store copied as a crash would leave them."""

from __future__ import annotations

import shutil
from pathlib import Path


def copy_files(directory: Path, target: Path) -> None:
    """The files as they are this moment, as a power cut would leave them if writes reach the disk.

    One that vanishes while it is copied is one that a crash would not have either.
    """
    target.mkdir(exist_ok=True)
    for path in sorted(directory.iterdir()):
        if path.is_file() and path.name != "LOCK":
            try:
                shutil.copyfile(path, target / path.name)
            except FileNotFoundError:
                continue
