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
    FanOutRunner,
    Http,
    Redis,
    Runner,
    Shell,
    WorkQueueRunner,
)

__all__ = [
    "CODEC",
    "MAX_ENTRY_BYTES",
    "MAX_LIST_ITEMS",
    "MAX_STRING_BYTES",
    "Amqp",
    "Awf",
    "Direct",
    "FanOutRunner",
    "Http",
    "JobRemoved",
    "JobSet",
    "Record",
    "Redis",
    "RuleRemoved",
    "RuleSet",
    "Runner",
    "Shell",
    "Status",
    "WorkQueueRunner",
    "decode_payload",
    "frames",
]
