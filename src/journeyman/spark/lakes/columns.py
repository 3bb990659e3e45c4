"""Rows of Arrow with the columns of a lake's tables; host and path of a log as one text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import pyarrow as pa

from journeyman.spark import vectors
from journeyman.spark.lakes.layout import BETWEEN, TABLES
from journeyman.spark.source.options import arrow_schema
from journeyman.spark.source.task import with_dictionaries
from journeyman.spark.vectors import AnyColumn

_REPEATED: Final = frozenset(
    (
        *("host", "log", "dialect", "queue", "task", "worker", "step"),
        *("rule", "runner", "outcome", "status"),
    )
)


def shaped(columns: Mapping[str, AnyColumn], table: str) -> pa.Table:
    """Exactly the columns of a table of the lake; null where none is given."""
    return vectors.as_schema(columns, schema_of(table))


def schema_of(table: str) -> pa.Schema:
    """Return the schema of a table. In silver, repeated words are in a dictionary: to move
    and to write them so takes a fraction of the time."""
    schema = arrow_schema(TABLES[table].schema)
    return with_dictionaries(schema, _REPEATED) if table.startswith("silver/") else schema


def named_logs(rows: pa.Table) -> pa.Table:
    """``rows`` with host and path of a log as one text in ``_log``."""
    hosts, logs = vectors.coded(rows["host"]), vectors.coded(rows["_log"])
    size = max(1, len(logs.dictionary))
    codes = vectors.filled_numbers(hosts.indices, 0).astype(
        np.int64
    ) * size + vectors.filled_numbers(logs.indices, 0)
    pairs, places = vectors.different(codes)
    host_words, log_words = hosts.dictionary.to_pylist(), logs.dictionary.to_pylist()
    names = [f"{host_words[pair // size]}{BETWEEN}{log_words[pair % size]}" for pair in pairs]
    named = pa.DictionaryArray.from_arrays(places.astype(np.int32), pa.array(names, pa.string()))
    return rows.drop_columns(["host", "_log"]).append_column("_log", named)


def hosts_and_logs(column: AnyColumn) -> dict[str, AnyColumn]:
    logs = vectors.coded(column)
    pairs = [name.partition(BETWEEN) for name in logs.dictionary.to_pylist()]
    each = {"host": [host for host, _, _ in pairs], "log": [path for _, _, path in pairs]}
    found = {}
    for name, words in each.items():
        once = pa.array(words, pa.string()).dictionary_encode()
        codes = once.indices.take(logs.indices)
        found[name] = pa.DictionaryArray.from_arrays(codes, once.dictionary)
    return found
