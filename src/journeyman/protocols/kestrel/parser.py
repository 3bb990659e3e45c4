r"""The kestrel protocol (memcache text), server side: a machine that is fed bytes and gives events.

    get jobs/t=500/open\r\n            a line, ended by LF or CR LF
    set jobs 0 0 5\r\n                 a line whose fifth word is a SIZE,
    hello\r\n                          that many raw bytes, and two bytes more, whatever they are

        +--------+ a line that is whole in itself -> its command, or Refused
        |  line  | ----------------------------------------------------------> line
        |        | a line with a SIZE    +---------+ whole -> Put, or Refused
        |        | --------------------> |  item   | ----------------------------------> line
        |        | a SIZE over the limit +---------+
        |        | --------------------> | discard | passed -> PutTooLarge, or Refused -> line
        +--------+                       +---------+
             | quit, a line over the limit, an unknown command, a line of HTTP (-> Foreign),
             | a SIZE that is missing or no number
             +----------------> closed      feeds give nothing more

- Events come in the order of the lines, and the same ones however the bytes were cut into feeds.
- No bytes raise. Items are binary: what they hold is never looked at.
- Between feeds at most one unfinished line or item is kept. Oversized items are not kept.

Refused is a ``RefusedRequest``. Words that a command does not know are ignored, as the original
does; so there is no ``noreply``: every command is answered. Where the original drops the connection
without a word (an invalid number, a name that cannot be a file), the client gets an error and may
go on.

The contract, with every reply: docs/protocols/kestrel.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from journeyman import protocols
from journeyman.formats.kestrel import MAX_DATA_BYTES
from journeyman.protocols.kestrel import commands
from journeyman.units import MS_PER_S

Reader: TypeAlias = Callable[[list[str]], commands.Event]

# Queue names: the characters that both file names and the original's own check allow. The original
# does not check names of readers, so readers may have any visible character except the two that
# file names cannot contain.
_QUEUE_NAME = re.compile(r"[A-Za-z0-9:_-]{1,200}", re.ASCII)
_READER_NAME = re.compile(r"[!-.0-}]{1,200}", re.ASCII)
_NUMBER = re.compile(r"-?[0-9]{1,18}", re.ASCII)
MAX_KEY_CHARACTERS = 200  # they become one file name, with room for its other parts

_BAD_NAME = commands.RefusedRequest("queue names are made of A-Z a-z 0-9 : _ -, up to 200 of them")
_LONG_KEY = commands.RefusedRequest(
    "the names of queue and reader may have 200 characters together"
)
_TOO_FEW = commands.RefusedRequest("an argument is missing")
_BAD_NUMBER = commands.RefusedRequest("a number was expected")
_BAD_OPTIONS = commands.RefusedRequest("these options do not go together", hangup=True)
_NO_QUEUE = commands.RefusedRequest("no queue is named", hangup=True)


def is_queue_name(text: str) -> bool:
    return _QUEUE_NAME.fullmatch(text) is not None


def is_reader_name(text: str) -> bool:
    return _READER_NAME.fullmatch(text) is not None


def read_queue(text: str) -> str | commands.RefusedRequest:
    """The name of a queue to put into: a reader cannot be named here."""
    return text if is_queue_name(text) else _BAD_NAME


def get(tokens: list[str]) -> commands.Event:
    if len(tokens) < 2:
        return _TOO_FEW
    name, *options = tokens[1].split("/")
    if not name:
        return _NO_QUEUE
    key = _read_key(name)
    if isinstance(key, commands.RefusedRequest):
        return key
    if not options:
        return commands.GetItem(key)
    wait_ms = 0
    for option in options:
        if option.startswith("t="):
            number = _read_number(option[2:])
            if number is None:
                return _BAD_NUMBER
            wait_ms = max(0, min(number, commands.MAX_WAIT_MS))
    opens, closes = "open" in options, "close" in options
    aborts, peeks = "abort" in options, "peek" in options
    if (peeks or aborts) and (opens or closes or (peeks and aborts)):
        return _BAD_OPTIONS
    return commands.GetItem(key, wait_ms, opens, closes, aborts, peeks)


def monitor(tokens: list[str]) -> commands.Event:
    if len(tokens) < 3:
        return _TOO_FEW
    key = _read_key(tokens[1])
    if isinstance(key, commands.RefusedRequest):
        return key
    seconds = _read_number(tokens[2])
    most = _read_number(tokens[3]) if len(tokens) > 3 else None
    if seconds is None or (len(tokens) > 3 and most is None):
        return _BAD_NUMBER
    return commands.Monitor(key, max(0, min(seconds * MS_PER_S, commands.MAX_WAIT_MS)), most)


def confirm(tokens: list[str]) -> commands.Event:
    if len(tokens) < 3:
        return _TOO_FEW
    key = _read_key(tokens[1])
    if isinstance(key, commands.RefusedRequest):
        return key
    count = _read_number(tokens[2])
    return _BAD_NUMBER if count is None else commands.Confirm(key, count)


def of_a_key(command: Callable[[commands.Key], commands.Event]) -> Reader:
    """Return the reader of a command that takes a key and nothing else."""

    def read(tokens: list[str]) -> commands.Event:
        if len(tokens) < 2:
            return _TOO_FEW
        key = _read_key(tokens[1])
        return key if isinstance(key, commands.RefusedRequest) else command(key)

    return read


def dump_stats(tokens: list[str]) -> commands.Event:
    return commands.DumpStats(tuple(word for word in tokens[1:] if word))


def status(tokens: list[str]) -> commands.Event:
    return commands.ServerStatus(tokens[1].upper() if len(tokens) > 1 and tokens[1] else None)


def _read_key(text: str) -> commands.Key | commands.RefusedRequest:
    queue, plus, reader = text.partition("+")
    if not is_queue_name(queue) or (plus and not is_reader_name(reader)):
        return _BAD_NAME
    if len(queue) + len(reader) > MAX_KEY_CHARACTERS:
        return _LONG_KEY
    return commands.Key(queue, reader)


def _read_number(text: str) -> int | None:
    return int(text) if _NUMBER.fullmatch(text) else None


LINE_LIMIT_BYTES = 4096  # the longest that means anything is a dump_stats of many queues
AUTH_LIMIT_BYTES = 2048  # room for a user name and a secret
_ITEM_END_BYTES = 2
_SHORT_LINE_BYTES = 256  # those that are remembered
_KNOWN_LINES = 1024
_LEAST_SET_TOKENS = 5
_SIZE = re.compile(r"[0-9]{1,18}", re.ASCII)

_HANGUP = commands.HangUp()
_ENDINGS = (commands.HangUp, protocols.Foreign)
_SHORT_SET = commands.RefusedRequest("an argument is missing", hangup=True)
_UNKNOWN = commands.RefusedRequest("unknown command", hangup=True)
_BAD_SIZE = commands.RefusedRequest("the size of the item is not a number", hangup=True)
_LINE_TOO_LONG = commands.RefusedRequest("the line is too long", hangup=True)

# Followed by an item. All but set are unknown, but their items must be passed over.
_ITEM_COMMANDS = frozenset({"set", "add", "replace", "append", "prepend", "cas"})
_LINES: dict[str, Reader] = {
    "get": get,
    "gets": get,
    "monitor": monitor,
    "confirm": confirm,
    "delete": of_a_key(commands.DeleteQueue),
    "flush": of_a_key(commands.Flush),
    "flush_expired": of_a_key(commands.FlushExpired),
    # Clients based on libmemcached send a space or a delay after the command; kestrel's own send
    # nothing.
    "flush_all": lambda tokens: commands.FlushAll(is_memcached=len(tokens) > 1),
    "flush_all_expired": lambda _: commands.FlushAllExpired(),
    "stats": lambda _: commands.ShowStats(),
    "dump_stats": dump_stats,
    "version": lambda _: commands.Version(),
    "status": status,
    "reload": lambda _: commands.Reload(),
    "shutdown": lambda _: commands.Shutdown(),
    "quit": lambda _: _HANGUP,
}


class _Pending(NamedTuple):
    """The command whose item the following bytes are."""

    size: int
    queue: str
    expiry: int
    refused: commands.RefusedRequest | None  # known before the item came: it is only passed over


class KestrelParser:
    """One connection: ``feed`` it what was received, get what was asked."""

    __slots__ = ("_awaits_auth", "_buffer", "_pending", "_rest", "_to_pass", "closed")

    def __init__(self, *, auth_required: bool = False) -> None:
        self._awaits_auth = auth_required
        self._rest = b""
        self._buffer = bytearray()
        self._pending: _Pending | None = None
        self._to_pass: int | None = None  # bytes of an item that is not kept
        self.closed = False  # nothing more will come

    @property
    def kept_bytes(self) -> int:
        """How much of an unfinished line or item is waiting for its end."""
        return len(self._buffer)

    def give_up(self, refused: commands.RefusedRequest) -> commands.RefusedRequest:
        """Keep nothing and take nothing more; ``refused`` says why."""
        self._buffer = bytearray()
        self._pending = self._to_pass = None
        self.closed = True
        return refused

    def feed(self, data: bytes) -> list[commands.Event]:
        """The events of the commands that ``data`` completes.

        After ``Auth`` nothing is read: see ``take_rest``.
        """
        if self._awaits_auth:
            return self._feed_first(data)
        if self._buffer:
            # Only what is new can hold the end, so a trickle of bytes is not searched twice.
            may_end = self._pending is not None or b"\n" in data
            self._buffer += data
            if not self._may_go_on(may_end):
                return []
            data = bytes(self._buffer)
            self._buffer.clear()
        events: list[commands.Event] = []
        at = 0
        while not self.closed and (after := self._take(data, at, events)) is not None:
            at = after
        if not self.closed and at < len(data):
            self._buffer += memoryview(data)[at:]
        return events

    def take_rest(self) -> bytes:
        """Return what came after the secret: to be fed again, when the secret was right."""
        rest, self._rest = self._rest, b""
        return rest

    def _feed_first(self, data: bytes) -> list[commands.Event]:
        if self.closed:
            return []
        data = bytes(self._buffer) + data
        self._buffer.clear()
        line, end, rest = data.partition(b"\n")
        tokens = line.removesuffix(b"\r").split(b" ")
        size = tokens[4].decode("latin-1") if len(tokens) >= _LEAST_SET_TOKENS else ""
        events: list[commands.Event] = []
        if not end and len(line) < LINE_LIMIT_BYTES:
            self._buffer += data
        elif tokens[0].lower() != b"set" or not _SIZE.fullmatch(size):
            self._end_with(
                protocols.foreign(line[: protocols.HEAD_BYTES]) or protocols.AuthRequired(), events
            )
        elif int(size) > AUTH_LIMIT_BYTES:
            self._end_with(protocols.AuthRequired(), events)
        elif len(rest) < int(size) + _ITEM_END_BYTES:
            self._buffer += data
        else:
            self._awaits_auth = False
            self._rest = rest[int(size) + _ITEM_END_BYTES :]
            events.append(protocols.Auth(rest[: int(size)].partition(b" ")[2]))
        return events

    def _may_go_on(self, may_end: bool) -> bool:
        if self._pending is not None:
            return len(self._buffer) >= self._pending.size + _ITEM_END_BYTES
        return may_end or len(self._buffer) >= LINE_LIMIT_BYTES

    def _take(self, data: bytes, at: int, events: list[commands.Event]) -> int | None:
        """Take one line or item that begins at ``at``; None if it is not whole yet."""
        if self._to_pass is not None:
            return self._pass_over(data, at, events)
        if self._pending is not None:
            return self._take_item(data, at, self._pending, events)
        end = data.find(b"\n", at, at + LINE_LIMIT_BYTES)
        if end < 0:
            if len(data) - at >= LINE_LIMIT_BYTES:
                self._end_with(
                    protocols.foreign(data[at : at + protocols.HEAD_BYTES]) or _LINE_TOO_LONG,
                    events,
                )
            return None
        line = data[at:end]
        read = _read_known_line(line) if end - at <= _SHORT_LINE_BYTES else _read_line(line)
        if not isinstance(read, _Pending):
            if type(read) in _ENDINGS or (type(read) is commands.RefusedRequest and read.hangup):
                self._end_with(read, events)
                return end + 1
            events.append(read)
            return _take_same(data, data[at : end + 1], end + 1, read, events)
        self._pending = read
        if read.refused is not None or read.size > MAX_DATA_BYTES:
            self._to_pass = read.size + _ITEM_END_BYTES
            return end + 1
        # Most often the item came with its line, and others of the same size come after it.
        after = self._take_item(data, end + 1, read, events)
        if after is None:
            return end + 1
        return _take_same_puts(data, data[at : end + 1], after, read, events)

    def _take_item(
        self, data: bytes, at: int, pending: _Pending, events: list[commands.Event]
    ) -> int | None:
        end = at + pending.size
        if len(data) < end + _ITEM_END_BYTES:
            return None
        self._pending = None
        events.append(commands.Put(pending.queue, pending.expiry, data[at:end]))
        return end + _ITEM_END_BYTES

    def _pass_over(self, data: bytes, at: int, events: list[commands.Event]) -> int | None:
        assert self._to_pass is not None
        assert self._pending is not None
        passed = min(self._to_pass, len(data) - at)
        self._to_pass -= passed
        if self._to_pass:
            return at + passed if passed else None
        pending, self._pending, self._to_pass = self._pending, None, None
        if pending.refused is None:
            events.append(commands.PutTooLarge(pending.queue, pending.size))
        elif pending.refused.hangup:
            self._end_with(pending.refused, events)
        else:
            events.append(pending.refused)
        return at + passed

    def _end_with(self, event: commands.Event, events: list[commands.Event]) -> None:
        events.append(event)
        self.closed = True
        self._pending = None


def _take_same(
    data: bytes, line: bytes, at: int, command: commands.Event, events: list[commands.Event]
) -> int:
    """Lines from ``at`` on that repeat ``line`` ask for the same; where something else begins."""
    while data.startswith(line, at):
        events.append(command)
        at += len(line)
    return at


def _take_same_puts(
    data: bytes, line: bytes, at: int, pending: _Pending, events: list[commands.Event]
) -> int:
    """Take lines with their items, up to where something else begins, or an item is not whole."""
    size, queue, expiry, _ = pending
    step = len(line) + size + _ITEM_END_BYTES
    while data.startswith(line, at) and at + step <= len(data):
        begin = at + len(line)
        events.append(commands.Put(queue, expiry, data[begin : begin + size]))
        at += step
    return at


def _read_line(line: bytes) -> commands.Event | _Pending:
    """A line without its LF: the command, or what its item will be."""
    if (found := protocols.foreign(line)) is not None:
        return found
    tokens = line.removesuffix(b"\r").decode("latin-1").split(" ")
    command = tokens[0].lower()
    if command in _ITEM_COMMANDS:
        return _read_item_line(command, tokens)
    read = _LINES.get(command)
    return read(tokens) if read is not None else _UNKNOWN


# Clients say the same few lines over and over, and what a line means depends on nothing else.
_read_known_line = lru_cache(_KNOWN_LINES)(_read_line)


def _read_item_line(command: str, tokens: list[str]) -> commands.RefusedRequest | _Pending:
    if len(tokens) < _LEAST_SET_TOKENS:
        return _SHORT_SET  # the length of its item is unknown
    if not _SIZE.fullmatch(tokens[4]):
        return _BAD_SIZE
    size = int(tokens[4])
    queue = read_queue(tokens[1])
    refused: commands.RefusedRequest | None = None
    if command != "set":
        if protocols.is_of_queues(" ".join(tokens).encode("latin-1")):
            return _UNKNOWN  # an add of the work queue: its item would not end
        refused = _UNKNOWN
    elif isinstance(queue, commands.RefusedRequest):
        refused = queue
    elif not _NUMBER.fullmatch(tokens[2]) or not _NUMBER.fullmatch(tokens[3]):
        refused = _BAD_NUMBER
    if refused is not None or size > MAX_DATA_BYTES:
        return _Pending(size, tokens[1], 0, refused)
    return _Pending(size, tokens[1], int(tokens[3]), None)
