"""The ztick logfile: jobs and rules of the schedule, one entry after another."""

from journeyman.formats.ztick.codec import (
    CODEC,
    JobRemoved,
    JobSet,
    Record,
    RuleRemoved,
    RuleSet,
    Status,
    decode_payload,
    frames,
)
from journeyman.formats.ztick.layout import MAX_ENTRY_BYTES, MAX_LIST_ITEMS, MAX_STRING_BYTES
from journeyman.formats.ztick.runners import (
    Amqp,
    Awf,
    Direct,
    Http,
    Journal,
    Queue,
    Redis,
    Runner,
    Shell,
)

__all__ = [
    "CODEC",
    "MAX_ENTRY_BYTES",
    "MAX_LIST_ITEMS",
    "MAX_STRING_BYTES",
    "Amqp",
    "Awf",
    "Direct",
    "Http",
    "JobRemoved",
    "JobSet",
    "Journal",
    "Queue",
    "Record",
    "Redis",
    "RuleRemoved",
    "RuleSet",
    "Runner",
    "Shell",
    "Status",
    "decode_payload",
    "frames",
]
