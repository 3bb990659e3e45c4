"""What stands at the end of Parquet files: how many rows, in which groups, and their statistics."""

from __future__ import annotations

from functools import lru_cache

import pyarrow.parquet as pq

from journeyman.spark.files import arrow_path


@lru_cache(maxsize=1024)
def footer(path: str) -> pq.FileMetaData:
    """Of one file; files of a lake never change."""
    filesystem, inner = arrow_path(path)
    return pq.read_metadata(inner, filesystem=filesystem)
