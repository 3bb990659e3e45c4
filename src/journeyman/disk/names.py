"""The names of files in a PostgreSQL database: one part of the disk there (postgres.py).

Every change of names is a commit of its own, and may be repeated: a file is known by its id.
"""

from __future__ import annotations

import errno
import os
import posixpath
from importlib.resources import files as resources
from typing import Final

from journeyman.disk.database import Database, Row, split_address

ROOT: Final = 0
_FIND: Final = (
    "SELECT id, is_dir FROM journeyman_file WHERE parent = %s AND name = %s AND gone IS NULL"
)
_LIST: Final = "SELECT name FROM journeyman_file WHERE parent = %s AND gone IS NULL"
_ARGUMENTS: Final = {
    "append": ("bigint[]", "bigint[]", "bytea[]"),
    "cut": ("bigint", "bigint"),
    "make": ("bigint", "bytea", "boolean"),
    "rename": ("bigint", "bigint", "bytea"),
    "rename_to_root": ("bigint",),
    "remove": ("bigint",),
}
_CALLS: Final = {
    name: f"SELECT * FROM journeyman_{name}(%b::bigint, %b::{', %b::'.join(kinds)})"
    for name, kinds in _ARGUMENTS.items()
}


class NamedFiles:
    """Directories and files by their paths."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self._is_prepared = False
        self._directories: dict[tuple[str, ...], int] = {(): ROOT}  # directories never go

    def prepare(self) -> None:
        """Make the tables and functions if they are missing."""
        if not self._is_prepared:
            self.database.run_script((resources("journeyman.disk") / "schema.sql").read_text())
            self._is_prepared = True

    def _call(self, function: str, about: str, *values: object) -> list[Row]:
        """Call a function of schema.sql, fenced."""
        return self.database.change(_CALLS[function], (self.database.epoch, *values), about)

    def _directory(self, names: tuple[str, ...]) -> int | None:
        """The id of a directory; None: there is no such directory."""
        known = self._directories.get(names)
        if known is None and names:
            above = self._directory(names[:-1])
            entry = None if above is None else self._entry(above, names[-1])
            if entry is not None and entry[1]:
                known = self._directories[names] = entry[0]
        return known

    def _entry(self, above: int, name: str) -> tuple[int, bool] | None:
        rows = self.database.ask(_FIND, (above, os.fsencode(name)), name)
        return (rows[0][0], rows[0][1]) if rows else None

    def find(self, path: str) -> tuple[int, bool] | None:
        """The id of a file or directory, and whether it is a directory."""
        names = split_address(path).names
        if not names:
            return ROOT, True
        above = self._directory(names[:-1])
        return None if above is None else self._entry(above, names[-1])

    def _file(self, path: str) -> int:
        entry = self.find(path)
        if entry is None:
            raise error_of(errno.ENOENT, path)
        if entry[1]:
            raise error_of(errno.EISDIR, path)
        return entry[0]

    def _place(self, path: str) -> tuple[int, bytes]:
        """The directory of a path, and the name in it."""
        names = split_address(path).names
        if not names:
            raise error_of(errno.EISDIR, path)
        above = self._directory(names[:-1])
        if above is None:
            is_file = self.find(posixpath.dirname(path)) is not None
            raise error_of(errno.ENOTDIR if is_file else errno.ENOENT, path)
        return above, os.fsencode(names[-1])

    def exists(self, path: str) -> bool:
        return self.find(path) is not None

    def is_dir(self, path: str) -> bool:
        entry = self.find(path)
        return entry is not None and entry[1]

    def list_dir(self, path: str) -> list[str]:
        rows = self.database.ask(_LIST, (self._listed_directory(path),), path)
        return sorted(os.fsdecode(row[0]) for row in rows)

    def _listed_directory(self, path: str) -> int:
        entry = self.find(path)
        if entry is None:
            raise error_of(errno.ENOENT, path)
        if not entry[1]:
            raise error_of(errno.ENOTDIR, path)
        return entry[0]

    def make_dirs(self, path: str) -> None:
        self.prepare()
        above = ROOT
        names = split_address(path).names
        for depth, name in enumerate(names, 1):
            known = self._directories.get(names[:depth])
            if known is None:
                ((known, is_dir, _),) = self._call("make", path, above, os.fsencode(name), True)
                if not is_dir:
                    raise error_of(errno.EEXIST, path)
                self._directories[names[:depth]] = known
            above = known

    def rename(self, source: str, target: str) -> None:
        if not split_address(target).names:
            self._rename_to_root(source)
            return
        file_id = self._file(source)
        above, name = self._place(target)
        replaced = self.find(target)
        if replaced is not None and replaced[1]:
            raise error_of(errno.EISDIR, target)
        self._call("rename", target, file_id, above, name)

    def _rename_to_root(self, source: str) -> None:
        """A directory takes the place of the data directory, if there is nothing else in that."""
        entry = self.find(source)
        if entry is None or not entry[1]:
            raise error_of(errno.ENOTDIR if entry else errno.ENOENT, source)
        if self.list_dir(self.database.address) != [split_address(source).names[-1]]:
            raise error_of(errno.ENOTEMPTY, self.database.address)
        self._call("rename_to_root", source, entry[0])
        self._directories = {(): ROOT}

    def remove(self, path: str) -> None:
        self._call("remove", path, self._file(path))

    def sync_dir(self, path: str) -> None:
        """Names are committed when they are made."""
        self._listed_directory(path)


def error_of(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)
