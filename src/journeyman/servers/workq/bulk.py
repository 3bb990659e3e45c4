"""The rows of a command log, decoded in bulk, -> a WorkqEngine.

    columns of a chunk --numpy--> specs, keys of expiries, sorted by shard --> jobs of a BulkLoader
    rows that are not adds, if few -----------------------------------> its events, one by one
                            if many: the log is read twice, and folded first (FoldedLog)
    rows of odd ids ------- decoded once more, with the codec --------> a Loader, which folds

The server reads large logs in a process of its own (bulk_child.py): ``calls_of`` there notes what
``read_all`` would call here.

The two dtypes below are the layout of a spec and of a key in engines/workq/job.py, as numpy writes
it. Columns are narrower than records (see columnar/workq/decode.py); rows that may have been cut
are left to the codec as well.

The first of two readings says what became of the jobs:

    files --scan--> kinds, ids, times --KeyTable, fold_events--> a row of numbers for each id
                                                             \\-> ids that are left to the fold
    left_in(...)    of some rows of the second reading: the adds whose job is left, and how far it
                    has come

So the second looks at nothing but adds, and jobs that have ended are not loaded at all. The kernel
is that of the bulk fold (columnar/workq/fold.py). What it calls odd, and records with numbers that
the columns cannot hold, come to the server as odd ids. Takes 128 bytes an id.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from journeyman.columnar.arrays import (
    frozen,
    gather_behind,
    rows_where,
    stored_in,
    text_in,
    valid_in,
)
from journeyman.columnar.kernels.byte_access import Bytes
from journeyman.columnar.kernels.key_table import KeyTable, zlib_crcs
from journeyman.columnar.workq import decode as columnar
from journeyman.columnar.workq.scan import UNKNOWN_KIND
from journeyman.disk import disk_of
from journeyman.engines.sharded_dict import SHARDS
from journeyman.engines.workq.job import (
    BIAS,
    COMPLETED,
    HAS_TIME,
    HEAD_BYTES,
    ID_BYTES,
    IS_SCHEDULE,
    NEW,
    TOP_PRIORITY,
    Progress,
    ReadyRows,
    cut,
    job_id_of,
    with_time,
)
from journeyman.formats.framing import Buffer, Ending, Stop
from journeyman.formats.timed_frame import Instant
from journeyman.formats.workq import CODEC, HEADER, Command, JobAdded, delay_ms_of
from journeyman.logs.recovery import FileReport, RecoveryReport
from journeyman.servers.core.bulk_child import ViewedFiles
from journeyman.units import NS_PER_MS

if TYPE_CHECKING:
    from journeyman.engines.workq.engine import WorkqEngine
    from journeyman.engines.workq.extensions import LoadedExtensions
    from journeyman.engines.workq.loading import BulkLoader, WorkqLoader
from dataclasses import dataclass

from journeyman.columnar.arrays import Bools, as_bytes, gather
from journeyman.columnar.kernels.byte_access import Ints
from journeyman.columnar.workq import fold, scan
from journeyman.engines.workq.job import EXHAUSTED, FAILED, LEASED, PENDING

_MOMENT = [("high", ">u4"), ("low", ">u8")]
_HEAD = np.dtype(
    [
        ("urgency", ">u4"),
        ("ready", _MOMENT),
        ("created", _MOMENT),
        ("job_id", "V16"),
        ("queue", ">u4"),
        ("ttr", ">u8"),
        ("ttl", ">u8"),
        ("attempts", ">u8"),
        ("fails", ">u8"),
        ("flags", "u1"),
    ]
)
_KEY = np.dtype([("moment", _MOMENT), ("job_id", "V16")])
assert _HEAD.itemsize == HEAD_BYTES

# Specs that are in the cache, and the server takes some in while the next are decoded.
CHUNK_ROWS = 1 << 14
_LAST_ADD = int(Command.SCHEDULE)

# Records that are not adds cost the server ten times as much as adds do; to read a log twice costs
# as much as its adds. With so many of them to an add, the log is folded first.
FOLDED_FIRST = 1 / 4
COUNTED_ROWS = 1 << 14  # at the beginning of each file, to find out

REPLACED = "\ufffd"  # in a name: bytes that are not text
_SANE_NS = 2**62  # times beyond may have been cut, and sums with a TTL would not fit
_SANE_MS = 2**40
_FIRST_IDS = 1 << 16
_FILE, _START, _SIZE = range(3)
_NO_NUMBERS = frozen(np.zeros((0, 0), np.int64))


class _NotWhole(Exception):
    """A file does not end where its last record does."""


def read_all(
    disk: ViewedFiles,
    files: list[str],
    *,
    now_ns: int,
    paused: frozenset[str],
    seed: int,
    extensions: LoadedExtensions | None = None,
    until_ns: int | None = None,
) -> tuple[WorkqEngine, RecoveryReport] | None:
    """None if a file does not end where its last record does.

    ``until_ns``: later records do not count, and the last file may end in a record in flight.
    """
    # The process that reads for a server needs no engine, and starts a tenth of a second sooner.
    from journeyman.engines.workq.loading import BulkLoader, WorkqLoader

    loader = BulkLoader(now_ns=now_ns, paused=paused, seed=seed, extensions=extensions)
    try:
        counts_starts = loader.counts_starts
        loading = _load(disk, files, loader, counts_starts=counts_starts, until_ns=until_ns)
        reports = tuple(report for report in loading if report is not None)
    except _NotWhole:
        return None
    fold = WorkqLoader(extensions)
    if loader.odd:
        for file in files:
            _fold_odd(disk.view(file), loader.odd, fold, until_ns)
    return loader.finish(fold), RecoveryReport(reports)


def _load(
    disk: ViewedFiles,
    files: list[str],
    loader: BulkLoader | _Recorder,
    *,
    counts_starts: bool,
    until_ns: int | None = None,
) -> Iterator[FileReport | None]:
    """Load all files; their reports, and None whenever there is something to hand over."""
    views = [disk.view(file) for file in files]
    ends = [Stop.EOF for _ in files]
    if until_ns is not None and ends:
        ends[-1] = Stop.TORN  # the batch that is being written
    counts = [columnar.count(view, COUNTED_ROWS) for view in views]
    adds, others = np.sum(counts, axis=0).tolist()
    if counts_starts or others < adds * FOLDED_FIRST:
        for file, view, end in zip(files, views, ends, strict=True):
            records = 0
            for batch in _batches(view, end, until_ns):
                _load_rows(batch, loader)
                records += batch.num_rows
                yield None
            yield _report(file, view, records)
        return
    folded = FoldedLog()
    for file, view, end in zip(files, views, ends, strict=True):
        records = folded.records
        folded.begin_file(view)
        for chunk in columnar.iter_fields(view):
            _check(chunk.ending, end)
            folded.add(_fields_by(until_ns, chunk.fields))
        yield _report(file, view, folded.records - records)
    for name in folded.names:
        loader.number_of(name)
    loader.note_latest(folded.latest_ns)
    for job_id in folded.finish():
        loader.mark_odd(job_id)
    first_row = 0
    for view, end in zip(views, ends, strict=True):
        for batch in _batches(view, end, until_ns):
            rows, moved = folded.left_in(first_row, batch.num_rows)
            if len(rows):
                _load_adds(batch, rows, loader, moved)
                yield None
            first_row += batch.num_rows


def _batches(view: Buffer, end: Stop, until_ns: int | None) -> Iterator[pa.RecordBatch]:
    for chunk in columnar.iter_batches(view, payloads=True, max_records=CHUNK_ROWS):
        _check(chunk.ending, end)
        yield _rows_by(until_ns, chunk.batch)


def _rows_by(until_ns: int | None, batch: pa.RecordBatch) -> pa.RecordBatch:
    """The records that were logged by then; all: None."""
    if until_ns is None:
        return batch
    is_known = stored_in(batch.column("logged_ns")) <= until_ns
    return batch if is_known.all() else rows_where(batch, is_known)


def _fields_by(until_ns: int | None, fields: Ints) -> Ints:
    """The same of the numbers that the scanning kernel takes from records."""
    if until_ns is None:
        return fields
    is_known = fields[scan.LOGGED_NS] <= until_ns
    return fields if is_known.all() else np.ascontiguousarray(fields[:, is_known])


def _check(ending: Ending | None, end: Stop) -> None:
    """``end``: how the file may end, other than with its last record."""
    if ending is not None and ending.stop not in (Stop.EOF, end):
        raise _NotWhole


def _report(file: str, view: Buffer, records: int) -> FileReport:
    return FileReport(file, len(view), records, saved_after_damage=0, lost_at_least=0)


class _Recorder:
    """A BulkLoader's place: it keeps the calls, to be made on one in another process."""

    def __init__(self, now_ns: int, numbers: dict[str, int]) -> None:
        """``numbers`` are those of the queues that the loader has already."""
        self.now_ns = now_ns
        self._numbers = numbers
        self.calls: list[tuple[Any, ...]] = []

    def number_of(self, name: str) -> int:
        if name not in self._numbers:
            self._numbers[name] = len(self._numbers)
            self.calls.append(("number_of", name))
        return self._numbers[name]

    def note_latest(self, created_ns: int) -> None:
        self.calls.append(("note_latest", created_ns))

    def add_ready(self, queue: int, rows: ReadyRows) -> None:
        self.calls.append(("add_ready", queue, rows))

    def add_job(self, job_id: bytes, spec: bytes) -> None:
        self.calls.append(("add_job", job_id, spec))

    def add_completed(self, rows: ReadyRows, columns: list[list[Any]]) -> None:
        self.calls.append(("add_completed", rows, columns))

    def add_moved(self, job_id: bytes, entry: Progress) -> None:
        self.calls.append(("add_moved", job_id, entry))

    def add_event(self, job_id: bytes, command: int, logged_ns: int, result: bytes | None) -> None:
        self.calls.append(("add_event", job_id, command, logged_ns, result))

    def mark_odd(self, job_id: bytes) -> None:
        self.calls.append(("mark_odd", job_id))

    def taken(self) -> list[tuple[Any, ...]]:
        """The calls since the last time."""
        calls, self.calls = self.calls, []
        return calls


def warm_up() -> None:
    """Have the kernels loaded, while there is nothing to read yet."""
    now = Instant(0)
    added = JobAdded(now, bytes(ID_BYTES), "a", 1, 1, 0, 0, 0, b"a", None, now)
    sample = HEADER + CODEC.encode(added)
    _load_rows(columnar.decode(sample, payloads=True).batch, _Recorder(0, {}))


def calls_of(
    files: list[str], now_ns: int, numbers: dict[str, int], counts_starts: bool
) -> Iterator[Any]:
    """What ``read_all`` would call: lists of calls, and a report of each file. None: it is odd."""
    recorder = _Recorder(now_ns, numbers)
    try:
        for report in _load(disk_of(files[0]), files, recorder, counts_starts=counts_starts):
            yield recorder.taken() if report is None else report
        if calls := recorder.taken():
            yield calls
    except _NotWhole:
        yield None


def offsets_of(files: list[str], odd: set[bytes]) -> Iterator[list[int]]:
    """Where the records of these ids stand, in each file."""
    for file in files:
        found: list[int] = []
        for chunk in columnar.iter_batches(disk_of(file).view(file)):
            found += _odd_offsets(chunk.batch, odd)
        yield found


def _load_rows(batch: pa.RecordBatch, loader: BulkLoader | _Recorder) -> None:
    if not batch.num_rows:
        return
    kinds = stored_in(batch.column("kind"))
    adds = np.flatnonzero(kinds <= _LAST_ADD)
    if len(adds):
        _load_adds(batch, adds, loader)
    if len(adds) < len(kinds):
        _load_events(batch, kinds, adds, loader)


def _load_adds(
    batch: pa.RecordBatch,
    rows: Ints,
    loader: BulkLoader | _Recorder,
    moved: Moved | None = None,
) -> None:
    """The adds at these rows; ``moved``: how far their jobs have come, if that is known."""
    table = KeyTable()
    codes = table.numbers_of(*text_in(batch.column("name")))[rows]
    ends, text = table.keys()
    is_text, queues = np.ones(len(table), np.bool_), np.zeros(len(table), np.int64)
    for code in np.unique(codes).tolist():  # rows that are not adds have a name as well: ""
        name = text[ends[code] : ends[code + 1]].tobytes().decode()
        is_text[code] = REPLACED not in name
        queues[code] = loader.number_of(name) if is_text[code] else 0
    has_time = valid_in(batch.column("time_ns"))[rows]
    created, times = _numbers(batch, "created_ns", rows), _numbers(batch, "time_ns", rows)
    ttrs, ttls = _numbers(batch, "ttr_ms", rows), _numbers(batch, "ttl_ms", rows)
    attempts, fails = _numbers(batch, "max_attempts", rows), _numbers(batch, "max_fails", rows)
    is_sane = is_text[codes] & are_sane(created, times, ttrs, ttls, attempts, fails)
    is_schedule = stored_in(batch.column("kind"))[rows] == _LAST_ADD
    begins = np.where(is_schedule & has_time, times, created)
    expires = begins + np.where(is_sane, ttls, 0) * NS_PER_MS
    heads = np.zeros(len(rows), _HEAD)
    heads["urgency"] = TOP_PRIORITY - _numbers(batch, "priority", rows)
    _set_moment(heads["ready"], np.where(has_time, np.maximum(times, created), created))
    _set_moment(heads["created"], created)
    heads["job_id"] = _ids(_values(batch.column("job_id")))[rows]
    heads["queue"] = queues[codes]
    heads["ttr"], heads["ttl"], heads["attempts"], heads["fails"] = ttrs, ttls, attempts, fails
    heads["flags"] = IS_SCHEDULE * is_schedule + HAS_TIME * has_time
    keys = np.zeros(len(rows), _KEY)
    _set_moment(keys["moment"], expires)
    keys["job_id"] = heads["job_id"]

    loader.note_latest(int(created[is_sane].max(initial=0)))
    is_left = is_sane & (expires > loader.now_ns)
    specs = _Specs(heads, *text_in(batch.column("payload")), rows)
    is_ready, others = is_left & ~has_time, ~is_left | has_time
    if moved is not None:
        stages = moved.stages
        is_completed = is_left & ~has_time & (stages == COMPLETED)
        if is_completed.any():
            done = np.flatnonzero(is_completed)
            loader.add_completed(specs.ready(done, keys), moved.columns(done))
        is_ready &= stages == NEW
        others = is_left & ~is_ready & ~is_completed
    for code, queue in enumerate(queues.tolist()):
        is_chosen = is_ready & (codes == code)
        if is_chosen.all():  # nothing need be copied
            loader.add_ready(queue, specs.ready(slice(None), keys))
        elif is_chosen.any():
            loader.add_ready(queue, specs.ready(np.flatnonzero(is_chosen), keys))
    chosen = np.flatnonzero(others)
    made = [
        with_time(spec, int(times[row])) if has_time[row] and is_sane[row] else spec
        for row, spec in zip(chosen.tolist(), specs.each(chosen), strict=True)
    ]
    if moved is not None:
        for entry in zip(made, *moved.columns(chosen), strict=True):
            loader.add_moved(job_id_of(entry[0]), entry)
        return
    for spec, sane in zip(made, is_sane[chosen].tolist(), strict=True):
        if sane:
            loader.add_job(job_id_of(spec), spec)
        else:
            loader.mark_odd(job_id_of(spec))


class _Specs:
    """The specs of some rows of adds: heads, and payloads somewhere in the values of a column."""

    def __init__(self, heads: Any, offsets: Ints, payloads: Bytes, rows: Ints) -> None:
        self._heads = heads
        self._payloads = payloads
        self._starts, self._lengths = offsets[rows], np.diff(offsets)[rows]

    def ready(self, chosen: Ints | slice, keys: Any) -> ReadyRows:
        raw_ids = keys["job_id"][chosen].copy()
        ids = frozen(raw_ids.view(np.uint8))
        starts = np.arange(0, ids.size, ID_BYTES)
        shards = zlib_crcs(ids, starts, np.full(len(starts), ID_BYTES)) % SHARDS
        by_shard = np.argsort(shards, kind="stable")
        ends, specs = self._packed(chosen)
        return ReadyRows(
            specs.tobytes(),
            array("q", ends.tobytes()),
            keys[chosen].tobytes(),
            array("q", by_shard.tobytes()),
            raw_ids[by_shard].tobytes(),
            np.bincount(shards, minlength=SHARDS).tolist(),
        )

    def each(self, chosen: Ints) -> Iterator[bytes]:
        ends, specs = self._packed(chosen)
        data = specs.tobytes()
        return (data[begin:end] for begin, end in pairwise(ends.tolist()))

    def _packed(self, chosen: Ints | slice) -> tuple[Ints, Bytes]:
        heads = self._heads[chosen].view(np.uint8)
        return gather_behind(heads, self._payloads, self._starts[chosen], self._lengths[chosen])


def _load_events(
    batch: pa.RecordBatch, kinds: Ints, adds: Ints, loader: BulkLoader | _Recorder
) -> None:
    """The adds of the batch are in already; what stands before the add of its id is odd."""
    ids = cut(_values(batch.column("job_id")), ID_BYTES)
    added_at = {ids[row]: row for row in adds.tolist()}
    logged = stored_in(batch.column("logged_ns")).tolist()
    results = batch.column("result").to_pylist()
    kind_list = kinds.tolist()
    for row in np.flatnonzero((kinds > _LAST_ADD) & (kinds != UNKNOWN_KIND)).tolist():
        job_id = ids[row]
        if row < added_at.get(job_id, -1):
            loader.mark_odd(job_id)
        loader.add_event(job_id, kind_list[row], logged[row], results[row])


def _fold_odd(view: Buffer, odd: set[bytes], fold: WorkqLoader, until_ns: int | None) -> None:
    for chunk in columnar.iter_batches(view):
        for offset in _odd_offsets(_rows_by(until_ns, chunk.batch), odd):
            entry = CODEC.decode(view, offset)
            assert entry is not None
            fold.add(entry.record)


def _odd_offsets(batch: pa.RecordBatch, odd: set[bytes]) -> list[int]:
    ids = cut(_values(batch.column("job_id")), ID_BYTES)
    offsets = stored_in(batch.column("offset"))
    return [int(offsets[row]) for row, job_id in enumerate(ids) if job_id in odd]


# -- columns ---------------------------------------------------------------------------------------


def _numbers(batch: pa.RecordBatch, name: str, rows: Ints) -> Ints:
    """Whole numbers of these rows, 0 where there is none."""
    return stored_in(batch.column(name))[rows].astype(np.int64)


def _set_moment(field: Any, moments: Ints) -> None:
    """Big-endian and biased, in 96 bits: see engines.workq_job.moment_key."""
    field["high"] = (BIAS >> 64) + (moments >> 63)
    field["low"] = moments.view(np.uint64)


def _ids(id_bytes: bytes) -> npt.NDArray[np.void]:
    return np.frombuffer(id_bytes, "V16")


def _values(column: Any) -> bytes:
    """The bytes of a binary column without nulls, end to end."""
    values = column.buffers()[2]
    return b"" if values is None else bytes(values)


def are_sane(
    created: Ints, times: Ints, ttrs: Ints, ttls: Ints, attempts: Ints, fails: Ints
) -> Bools:
    """Adds whose numbers are what the record says, and can be added up."""
    sane: Bools = (
        _is_near(created)
        & _is_near(times)
        & (np.maximum.reduce((ttrs, ttls, attempts)) < _SANE_MS)
        & (fails < 2**62)
    )
    return sane


def _is_near(times: Ints) -> Bools:
    near: Bools = (times > -_SANE_NS) & (times < _SANE_NS)  # the lowest number has no absolute
    return near


@dataclass(frozen=True, slots=True)
class Moved:
    """How far some jobs have come."""

    _states: Ints
    _timeouts_ns: Ints
    _places: Ints  # of the results: file, start and size
    _views: list[memoryview]

    @property
    def stages(self) -> Ints:
        is_exhausted = self._states[:, fold.EXHAUSTED] == 1
        stages: Ints = np.where(is_exhausted, EXHAUSTED, self._states[:, fold.STATE])
        return stages

    def columns(self, rows: Ints) -> list[list[Any]]:
        """Of the jobs at these rows, what their entries have after the spec."""
        some, stages = self._states[rows], self.stages[rows]
        attempts, fails = some[:, fold.ATTEMPTS], some[:, fold.FAILS]
        started = np.where(attempts > 0, some[:, fold.STARTED_NS], 0)
        moments = np.where(stages == LEASED, started + some[:, fold.TTR_MS] * NS_PER_MS, 0)
        is_finished = np.isin(stages, (COMPLETED, FAILED, EXHAUSTED))
        moments = np.where(is_finished, some[:, fold.FINISHED_NS], moments).tolist()
        for row in np.flatnonzero(stages == PENDING).tolist():
            if delay_ms := delay_ms_of(int(some[row, fold.MAX_FAILS])):
                moments[row] = int(self._timeouts_ns[rows[row]]) + delay_ms * NS_PER_MS
        places = np.where((some[:, fold.RESULT] >= 0)[:, None], self._places[rows], 0)
        results = [
            bytes(self._views[file][start : start + size]) if is_there else None
            for (file, start, size), is_there in zip(
                places.tolist(), is_finished.tolist(), strict=True
            )
        ]
        numbers = [column.tolist() for column in (stages, attempts, fails, started)]
        return [*numbers, moments, results]


class FoldedLog:
    """``add`` takes the chunks of the first reading, ``left_in`` the rows of the second."""

    def __init__(self) -> None:
        self._ids = KeyTable()
        self._states = _unknown(_FIRST_IDS)
        self._timeouts_ns = np.zeros(_FIRST_IDS, np.int64)  # of the last timeout-attempt
        self._places = np.zeros((_FIRST_IDS, 3), np.int64)
        self._views: list[memoryview] = []
        self.records = 0
        self.latest_ns = 0  # creation of a job
        self.names: dict[str, None] = {}  # of queues

    def begin_file(self, view: Buffer) -> None:
        self._views.append(memoryview(view))

    def add(self, fields: Ints) -> None:
        """The records of a chunk of the file, as the scanning kernel takes them apart."""
        log = as_bytes(self._views[-1])
        kinds, logged = fields[scan.KIND], fields[scan.LOGGED_NS]
        jobs = self._number(log, fields)
        adds = np.flatnonzero(kinds <= Command.SCHEDULE)
        odd = jobs[~_is_near(logged)]
        fold.fold_events(
            frozen(jobs),
            frozen(kinds.astype(np.int8)),
            frozen(logged),
            _NO_NUMBERS,
            frozen(fields[scan.TTR_MS][adds]),
            frozen(fields[scan.ATTEMPTS][adds]),
            frozen(fields[scan.FAILS][adds]),
            self._states,
            self.records,
        )
        self._states[odd, fold.ODD] = fold.FROM_FILE
        self._look_at_adds(log, np.ascontiguousarray(fields[:, adds]), jobs[adds])
        timeouts = kinds == Command.TIMEOUT_ATTEMPT
        self._timeouts_ns[jobs[timeouts]] = logged[timeouts]
        ends = np.flatnonzero((kinds == Command.COMPLETE) | (kinds == Command.FAIL))
        counting = ends[self._states[jobs[ends], fold.RESULT] == self.records + ends]
        self._places[jobs[counting], _FILE] = len(self._views) - 1
        self._places[jobs[counting], _START] = fields[scan.BLOCK_START][counting]
        self._places[jobs[counting], _SIZE] = fields[scan.BLOCK_SIZE][counting]
        self.records += len(kinds)

    def _number(self, log: Any, fields: Ints) -> Ints:
        offsets, ids = columnar.gather_ids(log, fields)
        jobs = self._ids.numbers_of(frozen(offsets), frozen(ids))
        room = len(self._states)
        if len(self._ids) > room:
            more = max(room, len(self._ids) - room)
            self._states = np.concatenate([self._states, _unknown(more)])
            self._timeouts_ns = np.concatenate([self._timeouts_ns, np.zeros(more, np.int64)])
            self._places = np.concatenate([self._places, np.zeros((more, 3), np.int64)])
        return jobs

    def _look_at_adds(self, log: Any, adds: Ints, jobs: Ints) -> None:
        table = KeyTable()
        offsets, text = gather(log, adds[scan.NAME_START], adds[scan.NAME_LENGTH])
        codes = table.numbers_of(frozen(offsets), frozen(text))
        is_text = np.ones(len(table), np.bool_)
        ends, text = table.keys()
        for code in range(len(table)):
            name = text[ends[code] : ends[code + 1]].tobytes().decode(errors="replace")
            is_text[code] = REPLACED not in name
            if is_text[code]:
                self.names[name] = None
        numbers = (scan.CREATED_NS, scan.TIME_NS, scan.TTR_MS, scan.TTL_MS)
        sane = is_text[codes] & are_sane(
            *(adds[each] for each in (*numbers, scan.ATTEMPTS, scan.FAILS))
        )
        self._states[jobs[~sane], fold.ODD] = fold.FROM_FILE
        self.latest_ns = max(self.latest_ns, int(adds[scan.CREATED_NS][sane].max(initial=0)))

    def finish(self) -> list[bytes]:
        """The first reading is over: the odd ids."""
        states = self._states[: len(self._ids)]
        is_odd = states[:, fold.ODD] != fold.ORDINARY
        left = np.flatnonzero(~is_odd & (states[:, fold.STATE] != fold.UNKNOWN))
        self._left = left[np.argsort(states[left, fold.ADD])]  # in the order of their adds
        self._adds = states[self._left, fold.ADD]
        ids = self._ids.keys()[1].reshape(-1, ID_BYTES)
        return [row.tobytes() for row in ids[np.flatnonzero(is_odd)]]

    def left_in(self, first_row: int, rows: int) -> tuple[Ints, Moved]:
        """Of these rows, counted through all files, the adds whose job is left, and those jobs."""
        begin, end = np.searchsorted(self._adds, (first_row, first_row + rows))
        jobs = self._left[begin:end]
        moved = Moved(self._states[jobs], self._timeouts_ns[jobs], self._places[jobs], self._views)
        return self._adds[begin:end] - first_row, moved


def _unknown(count: int) -> Ints:
    states = np.zeros((count, fold.WORDS), np.int64)
    states[:, fold.STATE] = fold.UNKNOWN
    return states
