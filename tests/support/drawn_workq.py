"""Records of the workq format, as hypothesis draws them."""

from __future__ import annotations

from hypothesis import strategies as st

from journeyman.formats.timed_frame import Instant
from journeyman.formats.workq import (
    ID_BYTES,
    Command,
    JobAdded,
    JobEvent,
    JobFinished,
    NewerCommand,
    Record,
    UnknownCommand,
)

MAX_U64 = 2**64 - 1
UNIX_EPOCH_S = 62_135_596_800
SECONDS = st.integers(-(2**63), 2**63 - 1)
NANOS = st.integers(0, 999_999_999)
OFFSETS = st.just(-1) | st.integers(-(2**15), 2**15 - 1)


def instants(seconds: st.SearchStrategy[int] = SECONDS) -> st.SearchStrategy[Instant]:
    return st.builds(
        lambda s, nanos, offset: Instant((s - UNIX_EPOCH_S) * 10**9 + nanos, offset),
        seconds,
        NANOS,
        OFFSETS,
    )


IDS = st.binary(min_size=16, max_size=16)
NUMBERS = st.integers(0, 300) | st.integers(0, MAX_U64)
# Bytes first, so that names which are no good utf-8 come up, and only those that can be written.
NAMES = st.binary(max_size=40).map(lambda raw: raw.decode("utf-8", "surrogateescape"))
BLOCKS = st.binary(max_size=300)
TIMES = instants(SECONDS.filter(bool))
WHEN = st.tuples(st.none(), OFFSETS) | st.tuples(TIMES, st.just(-1))
JOBS_ADDED = st.builds(
    lambda when, **fields: JobAdded(time=when[0], none_offset_min=when[1], **fields),
    when=WHEN,
    logged=instants(),
    job_id=IDS,
    name=NAMES,
    ttr_ms=NUMBERS,
    ttl_ms=NUMBERS,
    priority=st.integers(-(2**31), 2**31 - 1),
    max_attempts=NUMBERS,
    max_fails=NUMBERS,
    payload=BLOCKS,
    created=instants(),
    command=st.sampled_from([Command.ADD, Command.SCHEDULE]),
)
JOBS_FINISHED = st.builds(
    JobFinished, instants(), IDS, st.sampled_from([Command.COMPLETE, Command.FAIL]), BLOCKS
) | st.builds(
    JobFinished,
    *(instants(), IDS, st.sampled_from([Command.FAIL, Command.PARK]), BLOCKS, st.just(True)),
)
HIDDEN_EVENTS = (Command.TIMEOUT_ATTEMPT, Command.START_ATTEMPT, Command.WAKE)
EVENTS = tuple(Command)[4:8]
JOB_EVENTS = st.builds(JobEvent, instants(), IDS, st.sampled_from(EVENTS)) | st.builds(
    JobEvent, instants(), IDS, st.sampled_from(HIDDEN_EVENTS), st.just(True)
)
UNKNOWN = st.builds(
    UnknownCommand,
    instants(),
    IDS,
    st.sampled_from([NewerCommand(n) for n in (0, *range(9, 256))]),
    st.binary(max_size=60),
) | st.builds(
    lambda logged, part, command: UnknownCommand(
        logged, part.ljust(ID_BYTES, b"\0"), command, b"", ID_BYTES - len(part)
    ),
    instants(),
    st.binary(max_size=ID_BYTES - 1),
    st.sampled_from([NewerCommand(n) for n in (0, *range(9, 256))]),
)
KNOWN: st.SearchStrategy[Record] = JOBS_ADDED | JOBS_FINISHED | JOB_EVENTS
RECORDS: st.SearchStrategy[Record] = KNOWN | UNKNOWN
