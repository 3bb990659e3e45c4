"""Bulk bytes -> Arrow: the fast twin of formats, one module a dialect.

    ztick, workq, kestrel    decode(data, offset) -> Chunk(batch, next_offset, ending)

formats reads one record and explains what is wrong with it; columnar reads millions, and asks
formats for the explanation. Both must agree on every byte: tests/support/columnar_twins.py says
how.
Only ``read_table`` opens files: a log or a table of a lake, in one call. See docs/spark.md for
the columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["read_table"]


def read_table(path: str, *, payloads: bool = False) -> pa.Table:
    """A log, or a table of a lake, as an Arrow table; see tables.py."""
    from journeyman.columnar import tables

    return tables.read_table(path, payloads=payloads)
