"""Readers of the kestrel protocol: the words of a line -> a command, or Refused.

``words[0]`` is the command. Words that a command does not know are ignored, as the original does;
so there is no ``noreply``: every command is answered.

Where the original drops the connection without a word (a number that is none, a name that cannot
be a file), the client is told what is wrong and may go on.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeAlias

from journeyman.protocols.kestrel.commands import (
    MAX_WAIT_MS,
    Confirm,
    DumpStats,
    Event,
    GetItem,
    Key,
    Monitor,
    RefusedRequest,
    ServerStatus,
)

Reader: TypeAlias = Callable[[list[str]], Event]

# What both the file names and the original's own check allow, and no more. It checks no names of
# readers, so its folders hold all sorts: whatever can be seen but the two that files cannot have.
_QUEUE_NAME = re.compile(r"[A-Za-z0-9:_-]{1,200}", re.ASCII)
_READER_NAME = re.compile(r"[!-.0-}]{1,200}", re.ASCII)
_NUMBER = re.compile(r"-?[0-9]{1,18}", re.ASCII)
MS_PER_S = 1000
MAX_KEY_CHARACTERS = 200  # they become one file name, with room for its other parts

_BAD_NAME = RefusedRequest("queue names are made of A-Z a-z 0-9 : _ -, up to 200 of them")
_LONG_KEY = RefusedRequest("the names of queue and reader may have 200 characters together")
_TOO_FEW = RefusedRequest("an argument is missing")
_BAD_NUMBER = RefusedRequest("a number was expected")
_BAD_OPTIONS = RefusedRequest("these options do not go together", hangup=True)
_NO_QUEUE = RefusedRequest("no queue is named", hangup=True)


def is_queue_name(text: str) -> bool:
    return _QUEUE_NAME.fullmatch(text) is not None


def is_reader_name(text: str) -> bool:
    return _READER_NAME.fullmatch(text) is not None


def read_queue(text: str) -> str | RefusedRequest:
    """The name of a queue to put into: a reader cannot be named here."""
    return text if is_queue_name(text) else _BAD_NAME


def get(words: list[str]) -> Event:
    if len(words) < 2:
        return _TOO_FEW
    name, *options = words[1].split("/")
    if not name:
        return _NO_QUEUE
    key = _read_key(name)
    if isinstance(key, RefusedRequest):
        return key
    if not options:
        return GetItem(key)
    wait_ms = 0
    for option in options:
        if option.startswith("t="):
            number = _read_number(option[2:])
            if number is None:
                return _BAD_NUMBER
            wait_ms = max(0, min(number, MAX_WAIT_MS))
    opens, closes = "open" in options, "close" in options
    aborts, peeks = "abort" in options, "peek" in options
    if (peeks or aborts) and (opens or closes or (peeks and aborts)):
        return _BAD_OPTIONS
    return GetItem(key, wait_ms, opens, closes, aborts, peeks)


def monitor(words: list[str]) -> Event:
    if len(words) < 3:
        return _TOO_FEW
    key = _read_key(words[1])
    if isinstance(key, RefusedRequest):
        return key
    seconds = _read_number(words[2])
    most = _read_number(words[3]) if len(words) > 3 else None
    if seconds is None or (len(words) > 3 and most is None):
        return _BAD_NUMBER
    return Monitor(key, max(0, min(seconds * MS_PER_S, MAX_WAIT_MS)), most)


def confirm(words: list[str]) -> Event:
    if len(words) < 3:
        return _TOO_FEW
    key = _read_key(words[1])
    if isinstance(key, RefusedRequest):
        return key
    count = _read_number(words[2])
    return _BAD_NUMBER if count is None else Confirm(key, count)


def of_a_key(command: Callable[[Key], Event]) -> Reader:
    """For a command that takes a key and nothing else."""

    def read(words: list[str]) -> Event:
        if len(words) < 2:
            return _TOO_FEW
        key = _read_key(words[1])
        return key if isinstance(key, RefusedRequest) else command(key)

    return read


def dump_stats(words: list[str]) -> Event:
    return DumpStats(tuple(word for word in words[1:] if word))


def status(words: list[str]) -> Event:
    return ServerStatus(words[1].upper() if len(words) > 1 and words[1] else None)


def _read_key(text: str) -> Key | RefusedRequest:
    queue, plus, reader = text.partition("+")
    if not is_queue_name(queue) or (plus and not is_reader_name(reader)):
        return _BAD_NAME
    if len(queue) + len(reader) > MAX_KEY_CHARACTERS:
        return _LONG_KEY
    return Key(queue, reader)


def _read_number(text: str) -> int | None:
    return int(text) if _NUMBER.fullmatch(text) else None
