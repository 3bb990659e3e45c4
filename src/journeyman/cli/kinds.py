"""The word that reports use for the kind of a record: the one that the log's own dump uses."""

from __future__ import annotations

from typing import Any

from journeyman.formats import kestrel, workq, ztick

_WORDS: dict[type, str] = {
    ztick.JobSet: "set",
    ztick.RuleSet: "rule_set",
    ztick.JobRemoved: "remove",
    ztick.RuleRemoved: "remove_rule",
    kestrel.ItemPut: "PUT",
    kestrel.ReadHead: "READ_HEAD",
    kestrel.ReadDone: "READ_DONE",
    kestrel.UnknownCommand: "UNKNOWN",
    workq.UnknownCommand: "unknown",
}
_COMMANDS = {int(command): command.word for command in workq.Command}


def kind_of(record: Any) -> str:
    word = _WORDS.get(type(record))
    return word if word is not None else _COMMANDS[record.command]
