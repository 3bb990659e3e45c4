"""What files of a lake are called: below their table, and while they are staged.

silver/jobs/date=2026-11-17/host=a/91b0c44e1b2a7f30.parquet                 at a URI
silver/jobs/date=2026-11-17/host=a/00000012-3.parquet                       in a directory
_lake/staging/.../rows/silver;jobs;date=2026-11-17;host=a;91b0....parquet   staged there
"""

from __future__ import annotations

import calendar
import posixpath
from typing import Final
from urllib.parse import unquote

from journeyman.spark.files import is_uri

ROWS: Final = "rows"
_SLASH: Final = ";"  # no host has it in its name


def staged_path(directory: str, table: str, name: str) -> str:
    """Where a file of a table is staged.

    In a directory all are side by side, which is quick to sync. At a URI nothing can be renamed, so
    that a file has its place from the beginning, and the lake itself is the directory.
    """
    if is_uri(directory):
        return posixpath.join(directory, table, name)
    return posixpath.join(directory, ROWS, posixpath.join(table, name).replace("/", _SLASH))


def name_of(path: str) -> str:
    """The name of a file below the directory of its table, from a path of it, staged or not."""
    return "/".join(path.replace(_SLASH, "/").split("/")[-3:])


def partition_values(file: str) -> dict[str, str]:
    """date, or month, and host, as the path of a file says them."""
    pairs = (part.partition("=") for part in posixpath.dirname(file).split("/"))
    return {name: unquote(value) for name, _, value in pairs}


def days_of(file: str) -> tuple[str, str]:
    """The first and the last day that a file may have rows of."""
    values = partition_values(file)
    if "date" in values:
        return values["date"], values["date"]
    year, month = map(int, values["month"].split("-"))
    _, last = calendar.monthrange(year, month)
    return f"{values['month']}-01", f"{values['month']}-{last}"
