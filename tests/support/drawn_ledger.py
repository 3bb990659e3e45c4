"""Records of the ledger: of every kind, with keys that meet, and of kinds that are not known."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

from journeyman.formats.ledger import KINDS, Kind, NewerRecord, Record
from journeyman.formats.timed_frame import Instant

INSTANTS = st.builds(Instant, st.integers(-(10**18), 4 * 10**18), st.sampled_from([-1, 0, 90]))
_TEXTS = st.sampled_from(["a", "b"]) | st.text(max_size=5) | st.just("\udc80")
_NUMBERS = st.integers(-(2**63) + 1, 2**63 - 1)
_BODIES = st.dictionaries(
    st.text(max_size=3),
    st.recursive(
        st.none() | st.booleans() | _NUMBERS | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=2),
        max_leaves=4,
    ),
    max_size=3,
)  # fmt: skip
_OF_TYPE: dict[str, st.SearchStrategy[Any]] = {
    "str": _TEXTS,
    "int": _NUMBERS,
    "Body": _BODIES,
    "Pairs": st.lists(st.tuples(_NUMBERS, _NUMBERS), max_size=3).map(tuple),
}


def of_kind(kind: Kind) -> st.SearchStrategy[Record]:
    return st.builds(kind.make, INSTANTS, *(_OF_TYPE[type_name] for _, type_name in kind.members))


@st.composite
def newer_records(draw: st.DrawFn) -> NewerRecord:
    version = draw(st.integers(2, 9))
    name = draw(st.sampled_from(["queue-paused", "moon-phase"]))
    payload = json.dumps({"v": version, "kind": name, **draw(_BODIES)}).encode()
    members = json.loads(payload)
    version, name = members["v"], members["kind"]
    if type(version) is not int or version < 2 or not isinstance(name, str):
        payload, version, name = b'{"kind":"x","v":2}', 2, "x"
    return NewerRecord(draw(INSTANTS), version, name, payload)


RECORDS: st.SearchStrategy[Record] = st.one_of(*map(of_kind, KINDS.values()), newer_records())
LEDGERS = st.lists(RECORDS, max_size=12)
