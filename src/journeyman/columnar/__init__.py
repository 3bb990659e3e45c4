"""Bulk bytes -> Arrow: the fast twin of formats, one module a dialect.

    ztick, workq, kestrel    decode(data, offset) -> Chunk(batch, next_offset, ending)
    keyspace                 decode(keys, values) -> batch

formats reads one record and explains what is wrong with it; columnar reads millions, and asks
formats for the explanation. Both must agree on every byte: tests/support/columnar_twins.py says
how.
Nothing here folds, writes, or opens a file. See docs/columnar.md for the columns.
"""
