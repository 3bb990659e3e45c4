"""An index of any closed file, made by the reference reader: as those that write logs make them."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

from journeyman.disk import RealDisk
from journeyman.formats.framing import Codec
from journeyman.formats.seals import is_marked
from journeyman.logs.damage import Damage
from journeyman.logs.indexes import IndexDraft, try_to_save
from journeyman.logs.sealing import read_file
from journeyman.units import NS_PER_MS


def index_file(path: Path, codec: Codec[Any]) -> None:
    """Write the index of a file that has no damage; once it has seals, marks are set at these."""
    data, draft = path.read_bytes(), IndexDraft()
    draft.timeless = codec.name == "ztick"
    seal: int | None = None
    has_seals = False
    for item in read_file(codec, data, seals=True):
        if isinstance(item, Damage):
            return
        if codec.seals is not None and is_marked(codec.seals, data, item.offset):
            seal, has_seals = item.offset, True
            continue
        boundary = item.offset if seal is None else seal
        if boundary >= draft.next_mark and (seal is not None or not has_seals):
            draft.mark(boundary)
        seal = None
        draft.records += 1
        _note(draft, codec.name, item.record)
    try_to_save(RealDisk(), str(path), draft)


def _note(draft: IndexDraft, dialect: str, record: Any) -> None:
    if hasattr(record, "logged"):
        draft.note_times(record.logged.unix_ns, record.logged.unix_ns)
    elif hasattr(record, "add_time_ms"):
        draft.note_times(record.add_time_ms * NS_PER_MS, record.add_time_ms * NS_PER_MS)
    else:
        draft.timeless = True
    key = key_of(record) if dialect != "ledger" else None
    if key is not None:
        draft.note_keys(key, key)


def key_of(record: Any) -> Any:
    if hasattr(record, "job_id"):
        return str(UUID(bytes=record.job_id))
    return getattr(record, "item_id", None) or getattr(record, "identifier", None)
