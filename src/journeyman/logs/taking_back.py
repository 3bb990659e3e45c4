"""Records from quarantine/ back into their log, on request.

A start sets aside what follows the last seal of a log, because it was never acknowledged. It may
still be whole, and so may most of a block with one flipped bit. What can be read of such a file is
appended to the log as its newest records; items of a queue get new ids.
"""

from __future__ import annotations

import posixpath
from typing import Any

from journeyman.clock import Clock
from journeyman.disk import Disk
from journeyman.errors import LogError
from journeyman.formats import kestrel, ztick
from journeyman.formats.framing import Codec
from journeyman.logs.damage import Damage, read_past_damage
from journeyman.logs.kestrel.log import KestrelJournal
from journeyman.logs.sealed_reading import Headless
from journeyman.logs.ztick.log import ZtickLog

TAKEN_BACK = ".taken-back"


def take_back(
    disk: Disk, clock: Clock, where: str, queue: str | None, path: str
) -> tuple[int, str]:
    """Append the records of the file at ``path``; how many, and what the file is called now.

    ``queue``: of a kestrel directory; None for a ztick log. Raises LogError if there is no record.
    """
    records = _records(kestrel.WRITER if queue is not None else ztick.CODEC, disk.read_bytes(path))
    if not records:
        raise LogError(path, "no record can be read from it")
    if queue is None:
        with ZtickLog.open(disk, clock, where) as log:
            stored = log.append(records)
            log.commit()
            stored.result()
    else:
        with KestrelJournal.open(disk, clock, where, queue) as journal:
            for item in records:
                journal.put(
                    item.data,
                    add_time_ms=item.add_time_ms,
                    expire_time_ms=item.expire_time_ms,
                    error_count=item.error_count,
                )
            journal.commit()
    disk.rename(path, path + TAKEN_BACK)
    disk.sync_dir(posixpath.dirname(path) or ".")
    return len(records), path + TAKEN_BACK


def _records(codec: Codec[Any], data: bytes) -> list[Any]:
    """What can be read; seals prove nothing here, and of a queue only items count."""
    assert codec.seals is not None
    headless: Any = codec if data.startswith(codec.header or b"\xff") else Headless(codec)
    return [
        found.record
        for found in read_past_damage(headless, data)
        if not isinstance(found, Damage)
        and not codec.seals.is_like_seal(data, found.offset)
        and (codec is ztick.CODEC or isinstance(found.record, kestrel.ItemPut))
    ]
