"""Records of keyspace files, as hypothesis draws them."""

from __future__ import annotations

from hypothesis import strategies as st

from journeyman.formats.keyspace.file import KeyValue
from journeyman.formats.keyspace.keys import encode_key
from tests.support.drawn_logs import KEYS

VALUES = st.binary(max_size=60) | st.binary(min_size=8, max_size=8)
RECORDS = st.builds(KeyValue, KEYS.map(encode_key) | st.binary(min_size=1, max_size=60), VALUES)
