"""Records whose ids meet, so that a fold has something to fold."""

from __future__ import annotations

from hypothesis import strategies as st

from journeyman.formats.timed_frame import Instant
from journeyman.formats.workq import Command, JobAdded, JobEvent, JobFinished
from journeyman.formats.workq import Record as WorkqRecord
from journeyman.formats.ztick import JobRemoved, JobSet, RuleRemoved, RuleSet, Shell, Status
from journeyman.formats.ztick import Record as ZtickRecord

IDENTIFIERS = st.sampled_from(["a", "b", "c"])
ZTICK: st.SearchStrategy[list[ZtickRecord]] = st.lists(
    st.one_of(
        st.builds(JobSet, IDENTIFIERS, st.integers(0, 3), st.sampled_from(Status)),
        st.builds(RuleSet, IDENTIFIERS, IDENTIFIERS, st.builds(Shell, IDENTIFIERS)),
        st.builds(JobRemoved, IDENTIFIERS),
        st.builds(RuleRemoved, IDENTIFIERS),
    ),
    max_size=30,
)
# Half milliseconds, so that a TTR of 0 to 3 ms runs out within a short log.
INSTANTS = st.integers(-2, 24).map(lambda halves: Instant(halves * 500_000))


def workq_records(
    ids: st.SearchStrategy[bytes],
    instants: st.SearchStrategy[Instant] = INSTANTS,
    *,
    hidden: bool = True,
) -> st.SearchStrategy[WorkqRecord]:
    """``hidden``: also parks, wakes and starts that the original does not see."""
    added = st.builds(
        JobAdded,
        logged=instants,
        job_id=ids,
        name=st.sampled_from(["x", "bad!"]),
        ttr_ms=st.integers(0, 3),
        ttl_ms=st.integers(0, 12),
        priority=st.integers(-1, 1),
        max_attempts=st.integers(0, 3),
        max_fails=st.integers(0, 3),
        payload=st.sampled_from([b"", b"p"]),
        time=st.none() | instants,
        created=instants,
        command=st.sampled_from([Command.ADD, Command.SCHEDULE]),
    )
    results = st.sampled_from([b"", b"r", b"s"])
    finishes = st.sampled_from([Command.COMPLETE, Command.FAIL])
    attempts = st.sampled_from([Command.START_ATTEMPT, Command.TIMEOUT_ATTEMPT])
    anything = st.sampled_from(Command)
    seen: list[st.SearchStrategy[WorkqRecord]] = [
        added,
        st.builds(JobFinished, instants, ids, finishes, results),
        st.builds(JobEvent, instants, ids, attempts),
        st.builds(JobEvent, instants, ids, attempts),
        st.builds(JobEvent, instants, ids, anything),
        st.builds(JobFinished, instants, ids, anything, results),
    ]
    if not hidden:
        return st.one_of(seen)
    yes, waits = st.just(True), st.sampled_from([b"{}", b'{"step":"wait","event":"e"}'])
    return st.one_of(
        *seen,
        st.builds(JobFinished, instants, ids, st.just(Command.PARK), waits, yes),
        st.builds(JobEvent, instants, ids, st.just(Command.WAKE), yes),
        st.builds(JobEvent, instants, ids, attempts, yes),
    )
