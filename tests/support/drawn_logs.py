"""Logs as hypothesis draws them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from tests.support.columnar_twins import Twins


def draw_log(data: st.DataObject, twins: Twins, records: st.SearchStrategy[Any]) -> bytes:
    drawn = data.draw(st.lists(records, max_size=8), label="records")
    return twins.codec.header + b"".join(map(twins.codec.encode, drawn))
