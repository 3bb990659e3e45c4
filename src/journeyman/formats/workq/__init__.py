"""The workq command log: every state change of every job of the work queue."""

from journeyman.formats.workq.codec import CODEC, HEADER, MAX_PAYLOAD_BYTES
from journeyman.formats.workq.frame import MAX_RECORD_BYTES
from journeyman.formats.workq.records import (
    UTC_OFFSET_MIN,
    Command,
    Instant,
    JobAdded,
    JobEvent,
    JobFinished,
    NewerCommand,
    Record,
    UnknownCommand,
)

__all__ = [
    "CODEC",
    "HEADER",
    "MAX_PAYLOAD_BYTES",
    "MAX_RECORD_BYTES",
    "UTC_OFFSET_MIN",
    "Command",
    "Instant",
    "JobAdded",
    "JobEvent",
    "JobFinished",
    "NewerCommand",
    "Record",
    "UnknownCommand",
]
