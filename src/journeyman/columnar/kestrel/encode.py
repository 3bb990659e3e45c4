"""Arrow -> the kestrel journal in bulk: the way back of columnar.kestrel; agrees with its codec.

    command byte | header words | data                                  all numbers little endian
      PUT         i32 size, i32 errors, i64 id, i64 added ms, [i64 expires ms]; the item
      READ_HEAD   i64 id
      READ_DONE   i32 size; i64 ids

One row is one entry; the magic that a file begins with is not written here, and the entries of
writer and reader files are the same. Columns are found by name; others are left alone. ``kind`` is
a word, as the Spark source has it, or a number, as columnar.kestrel has it. Commands that are not
known cannot be written: the columns leave their header words out.

Data of null are written as empty if ``data_size`` says so too, and refused otherwise: they were not
read.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from journeyman.columnar.arrays import NO_CODE, Bools, Inputs, Lists, Spans
from journeyman.columnar.kernels import byte_access, kernel
from journeyman.columnar.kernels.byte_access import Bytes, Ints
from journeyman.formats import kestrel

_UNKNOWN = 1  # stands for all commands that are not known
KINDS = {
    "PUT": kestrel.PUT,
    "READ_HEAD": kestrel.READ_HEAD,
    "READ_DONE": kestrel.READ_DONE,
    "UNKNOWN": _UNKNOWN,
}

_PUT_HEADER_BYTES = 25
_EXPIRING_PUT_HEADER_BYTES = 33
_READ_HEAD_BYTES = 9
_READ_DONE_HEADER_BYTES = 5
_ID_BYTES = 8
_LOWEST_ERRORS, _HIGHEST_ERRORS = -(2**31), 2**31 - 1


def encode(batch: pa.RecordBatch, first_row: int = 0) -> memoryview:
    """The entries of all rows, end to end. Raises EncodeError naming row and column."""
    inputs = Inputs(batch, first_row)
    kinds = inputs.codes("kind", KINDS)
    inputs.refuse_where(kinds == NO_CODE, "kind", "null")
    inputs.refuse_where(kinds == _UNKNOWN, "kind", "an unknown command cannot be written")
    is_put, is_done = kinds == kestrel.PUT, kinds == kestrel.READ_DONE
    ids, added, expires = map(inputs.numbers, ("item_id", "add_time_ms", "expire_time_ms"))
    errors = inputs.numbers("error_count")
    inputs.refuse_where(~is_done & ~ids.valid, "item_id", "null")
    inputs.refuse_where(is_put & ~added.valid, "add_time_ms", "null in an item")
    inputs.refuse_where(is_put & ~errors.valid, "error_count", "null in an item")
    is_wide = (errors.values < _LOWEST_ERRORS) | (errors.values > _HIGHEST_ERRORS)
    inputs.refuse_where(is_put & is_wide, "error_count", "no 32-bit number")
    data, done = _data(inputs, is_put), _done_ids(inputs, is_done)
    sizes = np.where(is_put, data.lengths, np.where(is_done, np.diff(done.offsets) * _ID_BYTES, 0))
    headers = np.where(expires.valid, _EXPIRING_PUT_HEADER_BYTES, _PUT_HEADER_BYTES)
    headers = np.where(is_done, _READ_DONE_HEADER_BYTES, np.where(is_put, headers, 0))
    headers[kinds == kestrel.READ_HEAD] = _READ_HEAD_BYTES
    log = np.empty(int(headers.sum() + sizes.sum()), np.uint8)
    end = _write(
        kinds,
        sizes,
        (ids.values, added.values, errors.values),
        (expires.values, expires.valid),
        (data.data, data.offsets),
        (done.values, done.offsets),
        log,
    )
    assert end == log.size
    return log.data


def _data(inputs: Inputs, is_put: Bools) -> Spans:
    data = inputs.blobs("data")
    if not data.valid.all():
        size = inputs.numbers("data_size")
        unread = is_put & ~data.valid & size.valid & (size.values != 0)
        reason = "null, but data_size is not 0: was the journal read without its payloads?"
        inputs.refuse_where(unread, "data", reason)
    too_long = is_put & (data.lengths > kestrel.MAX_DATA_BYTES)
    inputs.refuse_where(too_long, "data", f"over {kestrel.MAX_DATA_BYTES} bytes")
    return data


def _done_ids(inputs: Inputs, is_done: Bools) -> Lists:
    done = inputs.lists("done_ids")
    inputs.refuse_where(is_done & ~done.valid, "done_ids", "null")
    too_long = is_done & (np.diff(done.offsets) > kestrel.MAX_DATA_BYTES // _ID_BYTES)
    inputs.refuse_where(too_long, "done_ids", f"over {kestrel.MAX_DATA_BYTES // _ID_BYTES} ids")
    return done


@kernel
def _write(
    kinds: Ints,
    sizes: Ints,
    numbers: tuple[Ints, Ints, Ints],
    expiry: tuple[Ints, Bools],
    data: tuple[Bytes, Ints],
    done: tuple[Ints, Ints],
    log: Bytes,
) -> int:
    ids, added, errors = numbers
    expires, does_expire = expiry
    blobs, blob_offsets = data
    done_ids, done_offsets = done
    at = 0
    for row in range(kinds.size):
        kind = kinds[row]
        if kind == kestrel.READ_HEAD:
            at = byte_access.put_u8(log, at, kestrel.READ_HEAD_BYTE)
            at = byte_access.put_little_64(log, at, ids[row])
        elif kind == kestrel.READ_DONE:
            at = byte_access.put_u8(log, at, kestrel.READ_DONE_BYTE)
            at = byte_access.put_little_32(log, at, sizes[row])
            for place in range(done_offsets[row], done_offsets[row + 1]):
                at = byte_access.put_little_64(log, at, done_ids[place])
        else:
            at = byte_access.put_u8(
                log, at, kestrel.EXPIRING_PUT_BYTE if does_expire[row] else kestrel.PUT_BYTE
            )
            at = byte_access.put_little_32(log, at, sizes[row])
            at = byte_access.put_little_32(log, at, errors[row])
            at = byte_access.put_little_64(log, at, ids[row])
            at = byte_access.put_little_64(log, at, added[row])
            if does_expire[row]:
                at = byte_access.put_little_64(log, at, expires[row])
            at = byte_access.copy_span(blobs, blob_offsets[row], sizes[row], log, at)
    return at
