"""The records of a command log, folded in bulk, as pieces for a WorkqLoader.

    files --scan--> kinds, ids, times --KeyTable, fold_events--> a row of numbers for each id
    files --scan--> adds of the jobs that are there now --numpy--> specs, keys of expiries, sorted
                                                                   by shard
                \\-> records of the ids that are left to the fold: where they stand

The first reading says what became of the jobs, so the second looks at nothing but adds, and jobs
that have ended are not loaded at all. The kernel is that of the bulk fold (columnar/workq/fold.py).
Left to the fold are the ids that it calls odd, those whose numbers the columns cannot hold, and
those that the ledger knows. All this takes 170 bytes an id and 4 a record.

The two dtypes below are the layout of a spec and of a key in engines/workq/packed.py, as numpy
writes it. A server has large logs read in a process of its own: see core/bulk_loading.py.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from journeyman.columnar.arrays import Bools, as_bytes, frozen, gather_behind, gather_spans
from journeyman.columnar.kernels.byte_access import Bytes, Ints
from journeyman.columnar.kernels.key_table import KeyTable, zlib_crcs
from journeyman.columnar.workq import decode as columnar
from journeyman.columnar.workq import fold, scan
from journeyman.disk import disk_of
from journeyman.engines.sharded_dict import SHARDS
from journeyman.engines.workq import packed
from journeyman.formats.framing import Buffer, Stop
from journeyman.formats.timed_frame import Instant
from journeyman.formats.workq import CODEC, HEADER, Command, JobAdded, delay_ms_of
from journeyman.logs.recovery import FileReport
from journeyman.servers.core import bulk_loading
from journeyman.units import NS_PER_MS

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
assert _HEAD.itemsize == packed.HEAD_BYTES

# Specs that are in the cache, and the server takes some in while the next are decoded.
CHUNK_ROWS = 1 << 14

REPLACED = "\ufffd"  # in a name: bytes that are not text
_SANE_NS = 2**62  # times beyond may have been cut, and sums with a TTL would not fit
_SANE_MS = 2**40
_FIRST_IDS = 1 << 16
_TIMEOUT_NS, _QUEUE, _FILE, _START, _SIZE = range(5)  # facts of a job that the fold does not know
_NO_NUMBERS = frozen(np.zeros((0, 0), np.int64))


class _NotWhole(Exception):
    """A file does not end where its last record does."""


class _Sample:
    """A log of one job."""

    def view(self, _path: str) -> memoryview:
        now = Instant(0)
        added = JobAdded(now, bytes(packed.ID_BYTES), "a", 1, 1, 0, 0, 0, b"a", None, now)
        return memoryview(HEADER + CODEC.encode(added))


def warm_up() -> None:
    """Have the kernels loaded, while there is nothing to read yet."""
    for _ in read_pieces(_Sample(), [""], 0, (), ()):
        pass


def pieces_of(files: list[str], *arguments: Any) -> Iterator[bulk_loading.Piece | None]:
    """Called in the helper."""
    return read_pieces(disk_of(files[0]), files, *arguments)


def read_pieces(
    disk: bulk_loading.ViewedFiles,
    files: list[str],
    now_ns: int,
    known_ids: Collection[bytes],
    rated: Collection[str],
    until_ns: int | None = None,
) -> Iterator[bulk_loading.Piece | None]:
    """The log in pieces; None: a file does not end where its last record does.

    ``known_ids`` are left to the fold; of the queues in ``rated`` the starts of jobs count.
    ``until_ns``: later records do not count, and the last file may end in a record in flight.
    """
    folded = FoldedLog(known_ids)
    views = [disk.view(file) for file in files]
    try:
        for file, view in zip(files, views, strict=True):
            may_be_torn = until_ns is not None and file == files[-1]
            records = folded.records
            folded.begin_file(view)
            for fields in _chunks(view, until_ns, may_be_torn=may_be_torn):
                folded.add(fields, counts_starts=bool(rated))
            records = folded.records - records
            yield (
                bulk_loading.REPORT,
                FileReport(file, len(view), records, saved_after_damage=0, lost_at_least=0),
            )
    except _NotWhole:
        yield None
        return
    folded.finish()
    yield bulk_loading.CALL, ("add_queues", ([*folded.names], folded.latest_ns))
    for name, times_ns in folded.starts_of(rated):
        yield bulk_loading.CALL, ("add_starts", (name, times_ns))
    chunk = 0
    for file, view in zip(files, views, strict=True):
        yield bulk_loading.FILE, file
        for fields in _chunks(view, until_ns, may_be_torn=True, is_proven=True):
            offsets = folded.odd_in(chunk, fields)
            if offsets:
                yield bulk_loading.RECORDS, offsets
            rows, moved = folded.present_in(chunk)
            if len(rows):
                adds = np.ascontiguousarray(fields[:, rows])
                for call in _jobs(as_bytes(view), adds, moved, now_ns):
                    yield bulk_loading.CALL, call
            chunk += 1


def _chunks(
    view: Buffer, until_ns: int | None, *, may_be_torn: bool, is_proven: bool = False
) -> Iterator[Ints]:
    """The values of the scanning kernel for records logged by then; None: for all records."""
    for chunk in columnar.iter_fields(view, max_records=CHUNK_ROWS, is_proven=is_proven):
        good_ends = (Stop.EOF, Stop.TORN) if may_be_torn else (Stop.EOF,)
        if chunk.ending is not None and chunk.ending.stop not in good_ends:
            raise _NotWhole
        fields = chunk.fields
        if until_ns is not None:
            is_known = fields[scan.LOGGED_NS] <= until_ns
            fields = fields if is_known.all() else np.ascontiguousarray(fields[:, is_known])
        yield fields


def _jobs(log: Bytes, adds: Ints, moved: Moved, now_ns: int) -> Iterator[tuple[str, Any]]:
    """Calls on a loader that give it the jobs of these adds."""
    has_time, is_schedule = adds[scan.HAS_TIME] == 1, adds[scan.KIND] == Command.SCHEDULE
    created, times = adds[scan.CREATED_NS], adds[scan.TIME_NS]
    begins = np.where(is_schedule & has_time, times, created)
    parks, begins_again = moved.parks, moved.begins_again
    begins = np.where((parks > 0) & (begins_again != packed.FAR), begins_again, begins)
    expires = begins + adds[scan.TTL_MS] * NS_PER_MS
    expires = np.where(begins_again == packed.FAR, packed.FAR, expires)
    heads = np.zeros(len(created), _HEAD)
    heads["urgency"] = packed.TOP_PRIORITY - adds[scan.PRIORITY]
    _set_moment(heads["ready"], np.where(has_time, np.maximum(times, created), created))
    _set_moment(heads["created"], created)
    heads["job_id"] = columnar.gather_ids(log, adds)[1].view("V16")
    heads["queue"] = queues = moved.queues
    heads["ttr"], heads["ttl"] = adds[scan.TTR_MS], adds[scan.TTL_MS]
    heads["attempts"], heads["fails"] = adds[scan.ATTEMPTS], adds[scan.FAILS]
    heads["flags"] = packed.IS_SCHEDULE * is_schedule + packed.HAS_TIME * has_time
    keys = np.zeros(len(created), _KEY)
    _set_moment(keys["moment"], expires)
    keys["job_id"] = heads["job_id"]

    is_present, stages = expires > now_ns, moved.stages
    specs = _Specs(heads, log, adds[scan.BLOCK_START], adds[scan.BLOCK_SIZE])
    is_plain = is_present & ~has_time & (parks == 0)
    is_ready, is_completed = (
        is_plain & (stages == packed.NEW),
        is_plain & (stages == packed.COMPLETED),
    )
    if is_completed.any():
        done = np.flatnonzero(is_completed)
        yield "add_completed", (specs.ready(done, keys), moved.columns(done))
    for queue in np.unique(queues[is_ready]).tolist():
        is_chosen = is_ready & (queues == queue)
        # A slice of all saves copies.
        chosen = slice(None) if is_chosen.all() else np.flatnonzero(is_chosen)
        yield "add_ready", (queue, specs.ready(chosen, keys))
    others = np.flatnonzero(is_present & ~is_ready & ~is_completed)
    if len(others):
        whole = []
        for row, spec in zip(others.tolist(), specs.each_spec(others), strict=True):
            timed = packed.with_time(spec, int(times[row])) if has_time[row] else spec
            if parks[row]:
                timed = packed.with_parks(timed, int(begins_again[row]), int(parks[row]))
            whole.append(timed)
        yield "add_moved", ([*zip(whole, *moved.columns(others), strict=True)],)


class _Specs:
    """The specs of some adds: heads, and payloads somewhere in the log."""

    def __init__(self, heads: Any, log: Bytes, starts: Ints, lengths: Ints) -> None:
        self._heads = heads
        self._log = log
        self._starts, self._lengths = starts, lengths

    def ready(self, chosen: Ints | slice, keys: Any) -> packed.ReadyRows:
        raw_ids = keys["job_id"][chosen].copy()
        ids = frozen(raw_ids.view(np.uint8))
        starts = np.arange(0, ids.size, packed.ID_BYTES)
        shards = zlib_crcs(ids, starts, np.full(len(starts), packed.ID_BYTES)) % SHARDS
        by_shard = np.argsort(shards, kind="stable")
        ends, specs = self._packed(chosen)
        return packed.ReadyRows(
            specs.tobytes(),
            array("q", ends.tobytes()),
            keys[chosen].tobytes(),
            array("q", by_shard.tobytes()),
            raw_ids[by_shard].tobytes(),
            np.bincount(shards, minlength=SHARDS).tolist(),
        )

    def each_spec(self, chosen: Ints) -> Iterator[bytes]:
        ends, specs = self._packed(chosen)
        data = specs.tobytes()
        return (data[begin:end] for begin, end in pairwise(ends.tolist()))

    def _packed(self, chosen: Ints | slice) -> tuple[Ints, Bytes]:
        heads = self._heads[chosen].view(np.uint8)
        return gather_behind(heads, self._log, self._starts[chosen], self._lengths[chosen])


def _set_moment(field: Any, moments: Ints) -> None:
    """Big-endian and biased, in 96 bits: see engines/workq/packed.py, moment_key."""
    field["high"] = (packed.BIAS >> 64) + (moments >> 63)
    field["low"] = moments.view(np.uint64)


def are_sane(adds: Ints) -> Bools:
    """Adds whose numbers are what the record says, and can be added up."""
    sane: Bools = (
        _is_near(adds[scan.CREATED_NS])
        & _is_near(adds[scan.TIME_NS])
        & (adds[[scan.TTR_MS, scan.TTL_MS, scan.ATTEMPTS]].max(axis=0) < _SANE_MS)
        & (adds[scan.FAILS] < 2**62)
    )
    return sane


def _is_near(times: Ints) -> Bools:
    near: Bools = (times > -_SANE_NS) & (times < _SANE_NS)  # the lowest number has no absolute
    return near


@dataclass(frozen=True, slots=True)
class Moved:
    """How far some jobs have come."""

    _states: Ints
    _facts: Ints
    _views: list[memoryview]

    @property
    def queues(self) -> Ints:
        return self._facts[:, _QUEUE]

    @property
    def stages(self) -> Ints:
        is_exhausted = self._states[:, fold.EXHAUSTED] == 1
        stages: Ints = np.where(is_exhausted, packed.EXHAUSTED, self._states[:, fold.STATE])
        return np.where(self._is_parked, packed.PARKED, stages)

    @property
    def _is_parked(self) -> Bools:
        is_parked: Bools = (self._states[:, fold.PARKS] > 0) & (self._states[:, fold.PARKED] >= 0)
        return is_parked

    @property
    def parks(self) -> Ints:
        return self._states[:, fold.PARKS]

    @property
    def begins_again(self) -> Ints:
        """When the TTL of a job that was parked began again; FAR while it is parked, else 0."""
        begins = np.where(self.parks > 0, self._states[:, fold.BEGINS_NS], 0)
        return np.where(self._is_parked, packed.FAR, begins)

    def columns(self, rows: Ints) -> list[list[Any]]:
        """Return the fields after the spec in the entries of the jobs at these rows."""
        some, facts, stages = self._states[rows], self._facts[rows], self.stages[rows]
        attempts, fails = some[:, fold.ATTEMPTS], some[:, fold.FAILS]
        started = np.where(attempts > 0, some[:, fold.STARTED_NS], 0)
        moments = np.where(stages == packed.LEASED, started + some[:, fold.TTR_MS] * NS_PER_MS, 0)
        is_finished = np.isin(stages, (packed.COMPLETED, packed.FAILED, packed.EXHAUSTED))
        moments = np.where(is_finished, some[:, fold.FINISHED_NS], moments).tolist()
        for row in np.flatnonzero(stages == packed.PENDING).tolist():
            if delay_ms := delay_ms_of(int(some[row, fold.MAX_FAILS])):
                moments[row] = int(facts[row, _TIMEOUT_NS]) + delay_ms * NS_PER_MS
        is_there = is_finished | (stages == packed.PARKED)
        has_block = (some[:, fold.RESULT] >= 0) | (stages == packed.PARKED)
        places = np.where(has_block[:, None], facts[:, _FILE:], 0)
        results = [
            bytes(self._views[file][start : start + size]) if has_result else None
            for (file, start, size), has_result in zip(
                places.tolist(), is_there.tolist(), strict=True
            )
        ]
        numbers = [column.tolist() for column in (stages, attempts, fails, started)]
        return [*numbers, moments, results]


class FoldedLog:
    """``add`` takes the chunks of the first reading; ``odd_in`` and ``present_in`` say what there
    is to do with those of the second."""

    def __init__(self, known_ids: Collection[bytes]) -> None:
        self._ids = KeyTable()
        self._jobs: list[npt.NDArray[np.int32]] = []  # numbers of the ids, for each chunk
        self._first_rows = [0]  # the first row of each chunk
        self._starts: list[tuple[Ints, Ints, Ints]] = []  # ids, queues, times
        self._states = np.zeros((0, fold.FIELDS), np.int64)
        self._facts = np.zeros((0, _SIZE + 1), np.int64)
        self._views: list[memoryview] = []
        self.latest_ns = 0  # creation of a job
        self.names: dict[str, int] = {}  # the numbers of queues
        known = np.frombuffer(b"".join(known_ids), np.uint8)
        jobs = self._number(np.arange(len(known_ids) + 1) * packed.ID_BYTES, known)
        self._states[jobs, fold.ODD] = fold.FROM_FILE

    @property
    def records(self) -> int:
        return self._first_rows[-1]

    def begin_file(self, view: Buffer) -> None:
        self._views.append(memoryview(view))

    def add(self, fields: Ints, *, counts_starts: bool) -> None:
        """The records of a chunk of the file, as the scanning kernel takes them apart."""
        log = as_bytes(self._views[-1])
        kinds, logged = fields[scan.KIND], fields[scan.LOGGED_NS]
        jobs = self._number(*columnar.gather_ids(log, fields))
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
        # A job that was woken is ready at once: its park was no failure.
        is_woken = (kinds == Command.WAKE) & (self._states[jobs, fold.PARKS] > 0)
        delays = np.flatnonzero((kinds == Command.TIMEOUT_ATTEMPT) | is_woken)
        self._facts[jobs[delays], _TIMEOUT_NS] = np.where(is_woken, 0, logged)[delays]
        ends = np.flatnonzero(np.isin(kinds, (Command.COMPLETE, Command.FAIL, Command.PARK)))
        some, rows = self._states[jobs[ends]], self.records + ends
        counting = ends[(some[:, fold.RESULT] == rows) | (some[:, fold.PARKED] == rows)]
        self._facts[jobs[counting], _FILE] = len(self._views) - 1
        self._facts[jobs[counting], _START] = fields[scan.BLOCK_START][counting]
        self._facts[jobs[counting], _SIZE] = fields[scan.BLOCK_SIZE][counting]
        if counts_starts:
            self._note_starts(jobs, kinds, logged)
        self._jobs.append(jobs.astype(np.int32))
        self._first_rows.append(self.records + len(kinds))

    def _number(self, offsets: Ints, ids: Bytes) -> Ints:
        known = len(self._ids)
        jobs = self._ids.numbers_of(frozen(offsets), frozen(ids))
        if len(self._ids) > len(self._states):
            room = max(_FIRST_IDS, 4 * len(self._ids))  # zeros take no memory until they are used
            self._states = _grown(self._states, known, room)
            self._facts = _grown(self._facts, known, room)
        self._states[known : len(self._ids), fold.STATE] = fold.UNKNOWN
        return jobs

    def _look_at_adds(self, log: Any, adds: Ints, jobs: Ints) -> None:
        table = KeyTable()
        offsets, text = gather_spans(log, adds[scan.NAME_START], adds[scan.NAME_LENGTH])
        codes = table.numbers_of(frozen(offsets), frozen(text))
        is_text, numbers = np.ones(len(table), np.bool_), np.zeros(len(table), np.int64)
        ends, text = table.keys()
        for code in range(len(table)):
            name = text[ends[code] : ends[code + 1]].tobytes().decode(errors="replace")
            is_text[code] = REPLACED not in name
            if is_text[code]:
                numbers[code] = self.names.setdefault(name, len(self.names))
        self._facts[jobs, _QUEUE] = numbers[codes]
        sane = is_text[codes] & are_sane(adds)
        self._states[jobs[~sane], fold.ODD] = fold.FROM_FILE
        self.latest_ns = max(self.latest_ns, int(adds[scan.CREATED_NS][sane].max(initial=0)))

    def _note_starts(self, jobs: Ints, kinds: Ints, logged: Ints) -> None:
        """Starts of jobs, after the adds of their chunk.

        An id that was added again after a start may be in another queue by now: the fold knows.
        """
        starts = np.flatnonzero(kinds == Command.START_ATTEMPT)
        started = jobs[starts]
        is_former = self._states[started, fold.ADD] > self.records + starts
        self._states[started[is_former], fold.ODD] = fold.FROM_FILE
        self._starts.append((started, self._facts[started, _QUEUE], logged[starts]))

    def finish(self) -> None:
        """End the first reading."""
        states = self._states[: len(self._ids)]
        self._is_odd = states[:, fold.ODD] != fold.ORDINARY
        is_present = ~self._is_odd & (states[:, fold.STATE] != fold.UNKNOWN)
        self._add_rows = np.where(is_present, states[:, fold.ADD], -1)

    def starts_of(self, names: Collection[str]) -> Iterator[tuple[str, list[int]]]:
        """When jobs of these queues were leased, other than those that are left to the fold."""
        if not self._starts:
            return
        jobs, queues, times_ns = map(np.concatenate, zip(*self._starts, strict=True))
        for name in sorted(self.names.keys() & set(names)):
            is_counted = (queues == self.names[name]) & ~self._is_odd[jobs]
            yield name, times_ns[is_counted].tolist()

    def odd_in(self, chunk: int, fields: Ints) -> list[int]:
        """Where the records of this chunk stand that are left to the fold."""
        is_odd = self._is_odd[self._jobs[chunk]] & (fields[scan.KIND] != scan.UNKNOWN_KIND)
        offsets: list[int] = fields[scan.OFFSET][is_odd].tolist()
        return offsets

    def present_in(self, chunk: int) -> tuple[Ints, Moved]:
        """The rows of this chunk that are adds of jobs that are there now, and those jobs."""
        in_chunk = self._jobs[chunk]
        rows = np.flatnonzero(
            self._add_rows[in_chunk] == self._first_rows[chunk] + np.arange(len(in_chunk))
        )
        jobs = in_chunk[rows]
        return rows, Moved(self._states[jobs], self._facts[jobs], self._views)


def _grown(numbers: Ints, used: int, room: int) -> Ints:
    grown = np.zeros((room, numbers.shape[1]), np.int64)
    grown[:used] = numbers[:used]
    return grown
