"""Records of kestrel journals, as hypothesis draws them."""

from __future__ import annotations

import struct

from hypothesis import strategies as st

from journeyman.formats.kestrel import (
    ItemPut,
    ReadDone,
    ReadHead,
    Record,
    UnknownCommand,
)

I64 = st.integers(-(2**63), 2**63 - 1)
I32 = st.integers(-(2**31), 2**31 - 1)


@st.composite
def unknown_commands(draw: st.DrawFn) -> UnknownCommand:
    command = draw(st.sampled_from([1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 14, 15]))
    # A PUT with more words than those known, or another command.
    words = draw(st.integers(9 if command == 8 else 1 if command > 8 else 0, 15))
    header = draw(st.binary(min_size=4 * words, max_size=4 * words))
    data = b""
    if command >= 8:
        data = draw(st.binary(max_size=50))
        header = struct.pack("<i", len(data)) + header[4:]
    return UnknownCommand(command << 4 | words, header, data)


PUTS = st.builds(ItemPut, I64, I64, st.none() | I64, I32, st.binary(max_size=100))
RECORDS: st.SearchStrategy[Record] = (
    PUTS
    | st.builds(ReadHead, I64)
    | st.builds(ReadDone, st.lists(I64, max_size=5).map(tuple))
    | unknown_commands()
)
