"""The settings -> what the fan-out door needs to know, with the limits of every queue and reader.

    reader's table  <-  its queue's table  <-  [kestrel.default]        key by key

In a table 0 lifts a limit, and an empty name says that there is no such queue: both become None.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from journeyman.config import Address, QueueLimits, Settings
from journeyman.config.queue_limits import READER_KEYS
from journeyman.engines.kestrel.settings import FanOutSettings, QueueSettings, ReaderSettings
from journeyman.formats.kestrel import MAX_DATA_BYTES
from journeyman.formats.kestrel.seals import SEAL_BYTES
from journeyman.logs.kestrel.log import DEFAULT_SEGMENT_BYTES
from journeyman.logs.sync import SyncMode

ITEM_OVERHEAD_BYTES = 4 + 33  # the magic of a segment, and the longest head of an entry


@dataclass(frozen=True, slots=True)
class FanOutPlan:
    """What the settings say of this door."""

    listen: Address
    directory: str
    queues: FanOutSettings = field(default_factory=FanOutSettings)
    sync: SyncMode = SyncMode.ALWAYS
    sync_interval_ms: int = 1000
    seal: bool = True
    checkpoint_ms: int = 1000
    segment_bytes: int = DEFAULT_SEGMENT_BYTES
    archive_directory: str | None = None
    unsent_bytes: int = 1024 * 1024
    max_connections: int = 1024
    waiting_commands: int = 10_000
    idle_timeout_ms: int = 0
    handshake_timeout_s: float = 10.0


def plan_of(settings: Settings) -> FanOutPlan:
    """What the settings say of this door; they have been checked."""
    kestrel, limits = settings.kestrel, settings.limits
    return FanOutPlan(
        kestrel.listen,
        kestrel.queue_path,
        FanOutSettings(
            default=_queue_settings(kestrel.default.given, QueueLimits()),
            queues={
                each.queue: _queue_settings(kestrel.default.given, each) for each in kestrel.queue
            },
            max_item_bytes=_max_item_bytes(kestrel.segment_bytes),
            max_queues=kestrel.max_queues,
            max_readers=kestrel.max_readers,
            window_items=kestrel.window_items,
            window_bytes=kestrel.window_bytes,
            sweep_interval_ms=kestrel.sweep_interval_ms,
            shutdown_allowed=kestrel.allow_shutdown,
        ),
        sync=SyncMode(kestrel.sync.value),
        sync_interval_ms=kestrel.sync_interval_ms,
        seal=kestrel.seals,
        checkpoint_ms=kestrel.checkpoint_interval_ms,
        segment_bytes=kestrel.segment_bytes,
        archive_directory=kestrel.archive_path,
        unsent_bytes=limits.unsent_bytes,
        max_connections=limits.connections,
        waiting_commands=limits.waiting_commands,
        idle_timeout_ms=kestrel.idle_timeout_ms,
        handshake_timeout_s=limits.handshake_timeout_ms / 1000,
    )


def _max_item_bytes(segment_bytes: int) -> int:
    """What fits a segment, seals included: one opens it, one ends the batch, one closes it. The
    original cannot open a queue whose last segment is longer than its own setting, 16 MiB by
    default; so smaller segments here may grow up to that."""
    room = max(segment_bytes, DEFAULT_SEGMENT_BYTES) - ITEM_OVERHEAD_BYTES - 3 * SEAL_BYTES
    return min(room, MAX_DATA_BYTES)


def _queue_settings(default: Mapping[str, Any], limits: QueueLimits) -> QueueSettings:
    given = {**default, **limits.given}
    return QueueSettings(
        reader=_reader_settings(given),
        readers={
            name: _reader_settings({**given, **its_own}) for name, its_own in limits.readers.items()
        },
        max_item_bytes=given.get("max_item_bytes") or None,
        max_age_ms=given.get("max_queue_age_ms") or None,
    )


def _reader_settings(given: Mapping[str, Any]) -> ReaderSettings:
    values = {key: given[key] for key in READER_KEYS if key in given}
    lifted = {key: None for key, value in values.items() if value in (0, "") and value is not False}
    return ReaderSettings(**{**values, **lifted})
