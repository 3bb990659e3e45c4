"""The rows of the schedule's log, decoded in bulk, as pieces for a ZtickLoader.

    columns of a chunk --numpy--> jobs, sorted by shard: see engines/ztick/job_table.py
    rows about rules -----------> where they stand: they are few, and of many shapes

The server has large logs read in a process of its own (core/bulk_loading.py), which imports this
module and what it needs, and nothing of the server.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Any

import numpy as np

from journeyman.columnar.arrays import gather_behind, stored_in, text_in
from journeyman.columnar.kernels.byte_access import Bytes, Ints
from journeyman.columnar.kernels.key_table import zlib_crcs
from journeyman.columnar.seals import is_proven
from journeyman.columnar.ztick import decode as columnar
from journeyman.disk import disk_of
from journeyman.engines.sharded_dict import SHARDS
from journeyman.engines.ztick.job_table import HEAD_BYTES, REMOVED, ShardedRows
from journeyman.formats.framing import Stop
from journeyman.formats.ztick import CODEC, JobSet, Status
from journeyman.formats.ztick.layout import JOB, JOB_REMOVAL
from journeyman.logs.recovery import FileReport
from journeyman.servers.core import bulk_loading

CHUNK_ROWS = 1 << 17  # many a shard, and the server takes some in while the next are decoded

_HEAD = np.dtype([("time", ">u8"), ("order", ">u8"), ("status", "u1")])
assert _HEAD.itemsize == HEAD_BYTES
_NEW_LINE = ord("\n")
_SIGN = np.uint64(1 << 63)  # without it times compare as numbers without a sign


def warm_up() -> None:
    """Have the kernels loaded, while there is nothing to read yet."""
    sample = CODEC.encode(JobSet("a", 0, Status.PLANNED))
    is_proven(CODEC, sample)
    _split(columnar.decode(sample).batch, 0)


def pieces_of(files: list[str]) -> Iterator[bulk_loading.Piece | None]:
    """Called in the helper."""
    return read_pieces(disk_of(files[0]), files)


def read_pieces(
    disk: bulk_loading.ViewedFiles, files: list[str]
) -> Iterator[bulk_loading.Piece | None]:
    """The rows of the files, in pieces; None: one does not end where its last record does."""
    jobs = 0
    for path in files:
        view = disk.view(path)
        if not is_proven(CODEC, view):
            yield None
            return
        records = 0
        yield bulk_loading.FILE, path
        for chunk in columnar.iter_batches(view, max_records=CHUNK_ROWS):
            if chunk.ending is not None and chunk.ending.stop is not Stop.EOF:
                yield None
                return
            rules, rows = _split(chunk.batch, jobs)
            if rules:
                yield bulk_loading.RECORDS, rules
            yield bulk_loading.CALL, ("add_sharded", (rows,))
            jobs += len(rows.ends) - 1
            records += chunk.batch.num_rows
        yield (
            bulk_loading.REPORT,
            FileReport(path, len(view), records, saved_after_damage=0, lost_at_least=0),
        )


def _split(batch: Any, first: int) -> tuple[list[int], ShardedRows]:
    """Where the rules stand, and the jobs; ``first``: how many jobs came before."""
    kinds = stored_in(batch.column("kind"))
    is_job = (kinds == JOB) | (kinds == JOB_REMOVAL)
    rules = stored_in(batch.column("offset"))[~is_job].tolist()
    in_order = np.flatnonzero(is_job)
    offsets, text = text_in(batch.column("identifier"))
    starts, lengths = offsets[in_order], np.diff(offsets)[in_order]
    shards = zlib_crcs(text, starts, lengths) % SHARDS
    by_shard = np.argsort(shards, kind="stable")
    rows, starts, lengths = in_order[by_shard], starts[by_shard], lengths[by_shard]
    heads = np.empty(len(rows), _HEAD)
    heads["time"] = stored_in(batch.column("execution_ns"))[rows].view(np.uint64) ^ _SIGN
    heads["order"] = first + by_shard
    is_removal = kinds[rows] == JOB_REMOVAL
    heads["status"] = np.where(is_removal, REMOVED, stored_in(batch.column("status"))[rows])
    ends, jobs = gather_behind(heads.view(np.uint8), text, starts, lengths)
    rows_by_shard = ShardedRows(
        np.bincount(shards, minlength=SHARDS).tolist(),
        jobs.tobytes(),
        array("q", ends.tobytes()),
        _lines(text, starts, lengths),
        bool(is_removal.any()),
    )
    return rules, rows_by_shard


def _lines(text: Bytes, starts: Ints, lengths: Ints) -> str | None:
    """A line for each identifier; None if one has more than one."""
    if not len(starts) or (text == _NEW_LINE).any():
        return None
    breaks = np.full(len(starts), _NEW_LINE, np.uint8)
    return str(gather_behind(breaks, text, starts, lengths)[1][1:].tobytes(), "utf-8")
