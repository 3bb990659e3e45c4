"""The rows of the schedule's log, decoded in bulk, as pieces for a ZtickLoader.

    columns of a chunk --numpy--> identifiers, heads of jobs: see engines/ztick/jobs.py
    rows about rules -----------> where they stand: they are few, and of many shapes

The server reads large logs in a process of its own (core/bulk_child.py). That process imports this
module and what it needs, and nothing of the server.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from journeyman.columnar.seals import is_proven
from journeyman.columnar.ztick import decode as columnar
from journeyman.disk import Disk, RealDisk
from journeyman.engines.ztick.jobs import HEAD_BYTES, REMOVED
from journeyman.formats.framing import Stop
from journeyman.formats.ztick import CODEC
from journeyman.formats.ztick.layout import JOB, JOB_REMOVAL
from journeyman.logs.recovery import FileReport

FILE, JOBS, RULES, REPORT = range(4)  # the kinds of pieces

_HEAD = np.dtype([("time", ">u8"), ("order", ">u8"), ("status", "u1")])
assert _HEAD.itemsize == HEAD_BYTES
_SIGN = np.uint64(1 << 63)  # without it times compare as numbers without a sign


def pieces_of(files: list[str]) -> Iterator[tuple[int, Any] | None]:
    """For the process that reads in bulk: see bulk_child.py."""
    return read_pieces(RealDisk(), files)


def read_pieces(disk: Disk, files: list[str]) -> Iterator[tuple[int, Any] | None]:
    """The rows of the files, in pieces; None: one does not end where its last record does."""
    jobs = 0
    for path in files:
        view = disk.view(path)
        if not is_proven(CODEC, view):
            yield None
            return
        records = 0
        yield FILE, path
        for chunk in columnar.iter_batches(view):
            if chunk.ending is not None and chunk.ending.stop is not Stop.EOF:
                yield None
                return
            for piece in _pieces(chunk.batch, jobs):
                jobs += len(piece[1][0]) if piece[0] == JOBS else 0
                yield piece
            records += chunk.batch.num_rows
        yield REPORT, FileReport(path, len(view), records, saved_after_damage=0, lost_at_least=0)


def _pieces(batch: Any, first: int) -> Iterator[tuple[int, Any]]:
    """``first``: how many jobs came before."""
    kinds = _numbers(batch.column("kind"))
    is_job = (kinds == JOB) | (kinds == JOB_REMOVAL)
    if not is_job.all():
        yield RULES, _numbers(batch.column("offset"))[~is_job].tolist()
        batch = batch.filter(is_job)
        kinds = kinds[is_job]
    heads = np.empty(len(kinds), _HEAD)
    times = _numbers(batch.column("execution_ns")).astype(np.int64)
    heads["time"] = times.view(np.uint64) ^ _SIGN
    heads["order"] = np.arange(first, first + len(kinds))
    heads["status"] = np.where(kinds == JOB, _numbers(batch.column("status")), REMOVED)
    yield JOBS, (batch.column("identifier").to_pylist(), heads.tobytes())


def _numbers(column: Any) -> npt.NDArray[Any]:
    """Whole numbers, 0 where there is none."""
    numbers: npt.NDArray[Any] = column.fill_null(0).to_numpy(zero_copy_only=False)
    return numbers
