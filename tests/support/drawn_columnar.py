"""Workq records with odd moments, as hypothesis draws them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import strategies as st

from journeyman.errors import EncodeError
from journeyman.formats import workq as workq_format
from journeyman.formats.timed_frame import Instant
from journeyman.formats.workq import JobAdded
from tests.support.drawn_folds import workq_records
from tests.support.workq_original import JOB_ID

IDS = st.sampled_from([JOB_ID, bytes(16), b"\xff" * 16])
# At and beyond what 64 bits of nanoseconds hold, where the columns say less than the records.
FAR = st.sampled_from([-(2**63), 2**63 - 1, -(2**63) - 1, 2**63, 2**63 + 10**9]).map(Instant)
ODD_INSTANTS = FAR | st.integers(-2, 24).map(lambda halves: Instant(halves * 500_000, halves % 3))
HUGE = st.sampled_from([0, 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1])


def encodable(record: workq_format.Record) -> bool:
    try:
        workq_format.CODEC.encode(record)
    except EncodeError:
        return False
    return True


def some_odd(record: workq_format.Record, numbers: Sequence[int]) -> workq_format.Record:
    """The record with some of its numbers beyond what columns hold."""
    if not isinstance(record, JobAdded) or not numbers:
        return record
    ttr_ms, max_attempts, max_fails = numbers
    return replace(record, ttr_ms=ttr_ms, max_attempts=max_attempts, max_fails=max_fails)


WORKQ = st.lists(
    workq_records(IDS)
    | st.builds(
        some_odd,
        workq_records(IDS, ODD_INSTANTS),
        st.just(()) | st.tuples(HUGE, HUGE, HUGE),
    ),
    max_size=30,
).map(lambda records: [record for record in records if encodable(record)])
