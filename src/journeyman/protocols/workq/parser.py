r"""The workq protocol, server side: a connection as a machine that is fed bytes and gives events.

    lease mail 1000\r\n                             a line
    add 0f..1a mail 1000 60000 4 -priority=2\r\n    a line whose last word but flags is a SIZE,
    ping\r\n                                        that many raw bytes, and an end of line

        +--------+ a line that is whole in itself -> its command, or Refused
        |  line  | ----------------------------------------------------------> line
        |        | a line with a SIZE    +---------+ whole -> its command, or Refused
        |        | --------------------> | payload | ----------------------------------> line
        |        | a SIZE over the limit +---------+
        |        | -> Refused            +---------+ passed
        |        | --------------------> | discard | ----------------------------------> line
        +--------+                       +---------+
             | LF without CR, a line over      | no CR LF after the bytes
             | the limit: -> HangUp;           | -> Refused (payload), HangUp
             | a line of HTTP: -> Foreign      |
             +----------------> closed <-------+

Refused is a ``RefusedLine``.

- Events come in the order of the lines, and the same ones however the bytes were cut into feeds.
- No bytes raise. Whatever is wrong with a command, its payload is passed over if its SIZE can be
  read: payloads are never taken for commands. Once bytes and SIZE disagree nothing is certain any
  more, and the connection ends. The first byte after the payload is enough to see that.
- Between feeds at most one unfinished line or payload is kept. Oversized payloads are not kept.

``read_usual`` reads the commands as nearly all clients write them in one step: whole, with single
spaces, an id in lower case with dashes, and no flags but these. It is for speed and nothing else:
the long way would give the same.

    add ID NAME TTR TTL SIZE [-priority= -max-attempts= -max-fails=] CRLF payload CRLF
    complete ID SIZE [-attempt=] CRLF result CRLF
    lease NAME WAIT CRLF

The order in which fields are complained about is that of the original. The contract, with every
reply: docs/protocols/workq.md.
"""

from __future__ import annotations

import re
from binascii import unhexlify
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

from journeyman import protocols
from journeyman.protocols.workq import commands, readers
from journeyman.protocols.workq.readers import read_flags, read_size, usual_options

_ID = rb"([0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12})"
_NAME = rb"([A-Za-z0-9_.-]{1,%d})" % commands.MAX_NAME_BYTES
_SIZE = rb"([0-9]{1,7})"
_FLAGS = rb"((?: -(?:priority|max-attempts|max-fails)=[0-9]{1,10}){0,3})\r\n"
_ATTEMPT = rb"(?: -attempt=([1-9][0-9]{0,8}))?\r\n"
_SETTINGS = rb"([A-Za-z0-9_.-]{1,%d} [1-9][0-9]{0,9} [1-9][0-9]{0,9})" % commands.MAX_NAME_BYTES
_ADD = re.compile(b"add %b %b %b%b" % (_ID, _SETTINGS, _SIZE, _FLAGS))
_COMPLETE = re.compile(b"complete %b %b%b" % (_ID, _SIZE, _ATTEMPT))
_LEASE = re.compile(rb"lease %b ([0-9]{1,8})\r\n" % _NAME)
_Usual: TypeAlias = commands.Add | commands.Complete | commands.Lease
_new: Any = tuple.__new__  # half of the time of Add(...)


def read_usual(data: bytes, at: int) -> tuple[_Usual, int] | None:
    """The command that begins there, and where it ends, if it is one of these."""
    if data.startswith(b"add ", at):
        match = _ADD.match(data, at)
        if match is None:
            return None
        id_text, settings, size, flags = match.groups()
        begin = match.end()
        payload, known = _payload(data, begin, int(size)), _read_settings(settings, flags)
        if payload is None or known is None:
            return None
        found = _new(commands.Add, (_id(id_text), *known[0], payload, *known[1]))
        return found, begin + len(payload) + len(protocols.LINE_END)
    if data.startswith(b"complete ", at):
        match = _COMPLETE.match(data, at)
        result = None if match is None else _payload(data, match.end(), int(match[2]))
        if match is None or result is None:
            return None
        after = match.end() + len(result) + len(protocols.LINE_END)
        return commands.Complete(_id(match[1]), result, int(match[3] or 0)), after
    match = _LEASE.match(data, at)
    lease = None if match is None else _read_lease(*match.groups())
    return None if match is None or lease is None else (lease, match.end())


@lru_cache(1024)  # all jobs of a task have the same
def _read_settings(
    settings: bytes, flags: bytes
) -> tuple[tuple[str, int, int], tuple[object, ...]] | None:
    """Name, TTR and TTL; options. None: not all right."""
    name, ttr, ttl = settings.split(b" ")
    ttr_ms, ttl_ms, options = int(ttr), int(ttl), usual_options(flags)
    if options is None or ttr_ms > commands.MAX_TTR_MS or ttl_ms > commands.MAX_TTL_MS:
        return None
    return (name.decode(), ttr_ms, ttl_ms), options


@lru_cache(1024)  # a worker sends the same line again and again
def _read_lease(name: bytes, wait: bytes) -> commands.Lease | None:
    wait_ms = int(wait)
    return None if wait_ms > commands.MAX_WAIT_MS else commands.Lease((name.decode(),), wait_ms)


def _payload(data: bytes, begin: int, size: int) -> bytes | None:
    """Return what stands there, if it is whole and as it should be."""
    end = begin + size
    if size > commands.MAX_PAYLOAD_BYTES or not data.startswith(protocols.LINE_END, end):
        return None
    return data[begin:end]


def _id(text: bytes) -> bytes:
    return unhexlify(text.replace(b"-", b""))


# The original reads at most this for one command: a payload and 10,000 bytes.
LINE_LIMIT_BYTES = commands.MAX_PAYLOAD_BYTES + 10_000
AUTH_LINE_LIMIT_BYTES = 4096  # before the client is known

_AUTH = b"auth "
_HANGUP = commands.HangUp()
_UNKNOWN = commands.RefusedLine(commands.Complaint.UNKNOWN_COMMAND)
_BAD_ARGS = commands.RefusedLine(commands.Complaint.ARGS)
_BAD_FLAGS = commands.RefusedLine(commands.Complaint.FLAGS)
_NO_FLAGS: dict[bytes, bytes] = {}


class _Line(NamedTuple):
    """A command that is a line; with flags only if it has ``read_flagged``."""

    token_count: int  # how many, the command included; or at least so many, if ``or_more``
    read: readers.LineReader
    or_more: bool = False
    read_flagged: readers.FlagReader | None = None

    def fits(self, tokens: list[bytes]) -> bool:
        return len(tokens) == self.token_count or (self.or_more and len(tokens) > self.token_count)


class _WithPayload(NamedTuple):
    """A command whose last word is the SIZE of what follows."""

    token_count: int
    read: readers.PayloadReader
    bad_size: commands.RefusedLine = commands.RefusedLine(commands.Complaint.PAYLOAD_SIZE)


class _Pending(NamedTuple):
    """The command that a payload belongs to; without a ``kind`` it has been answered already."""

    size: int
    kind: _WithPayload | None
    tokens: list[bytes]
    flags: dict[bytes, bytes] | None  # None: they were wrong


def _flagged(token_count: int, read: readers.FlagReader, *, or_more: bool = False) -> _Line:
    return _Line(token_count, lambda found: read(found, _NO_FLAGS), or_more, read)


_ANSWERED = _Pending(0, None, [], None)
_INSPECT = _Line(2, lambda _: _UNKNOWN)
_KINDS: dict[bytes, _Line | _WithPayload] = {
    b"add": _WithPayload(6, readers.add),
    b"schedule": _WithPayload(7, readers.schedule),
    b"run": _WithPayload(6, readers.run),
    b"complete": _WithPayload(3, readers.complete),
    b"fail": _WithPayload(3, readers.fail, commands.RefusedLine(commands.Complaint.RESULT_SIZE)),
    b"worker": _WithPayload(4, readers.worker),
    b"progress": _WithPayload(3, readers.progress),
    b"step": _WithPayload(5, readers.step),
    b"park": _WithPayload(3, readers.park),
    b"emit": _WithPayload(3, readers.emit),
    b"lease": _flagged(3, readers.lease, or_more=True),
    b"result": _Line(3, readers.result),
    b"delete": _Line(2, readers.of_an_id(commands.Delete)),
    b"inspect": _INSPECT,
    b"touch": _Line(2, readers.touch, or_more=True),
    b"requeue-all": _Line(3, readers.requeue_all),
    b"limit": _flagged(2, readers.limit),
    b"requeue": _Line(2, readers.of_an_id(commands.Requeue)),
    b"fork": _Line(5, readers.fork),
    b"cancel": _Line(2, readers.of_an_id(commands.Cancel)),
    b"pause": _Line(2, readers.of_a_name(commands.PauseQueue)),
    b"resume": _Line(2, readers.of_a_name(commands.ResumeQueue)),
}
_OBJECTS: dict[bytes, _Line] = {
    b"server": _Line(2, lambda _: commands.InspectServer()),
    b"token": _Line(2, lambda _: commands.InspectToken()),
    b"job": _Line(3, readers.of_an_id(commands.InspectJob)),
    b"progress": _Line(3, readers.of_an_id(commands.InspectProgress)),
    b"steps": _flagged(3, readers.inspect_steps),
    b"event": _Line(3, readers.inspect_event),
    b"queue": _Line(3, readers.of_a_name(commands.InspectQueue)),
    b"queues": _flagged(4, readers.queues),
    b"paused-queues": _Line(4, readers.of_a_page(commands.InspectPausedQueues)),
    b"jobs": _Line(5, readers.of_a_page_of(commands.InspectJobs)),
    b"scheduled-jobs": _Line(5, readers.of_a_page_of(commands.InspectScheduledJobs)),
    b"dead-jobs": _Line(5, readers.of_a_page_of(commands.InspectDeadJobs)),
}


class WorkqParser:
    """One connection: ``feed`` it what was received, get what was asked."""

    __slots__ = ("_auth_required", "_buffer", "_discard", "_is_first", "_pending", "closed")

    def __init__(self, *, auth_required: bool = False) -> None:
        self._auth_required = auth_required
        self._is_first = True  # nothing but perhaps a part of the first line has come
        self._buffer = bytearray()
        self._pending: _Pending | None = None
        self._discard = 0
        self.closed = False  # nothing more will come: after HangUp

    @property
    def kept_bytes(self) -> int:
        """How much of an unfinished line or payload is waiting for its end."""
        return len(self._buffer)

    def feed(self, data: bytes) -> list[commands.Event]:
        """The events of the commands that ``data`` completes."""
        if self._is_first:
            return self._feed_first(data)
        if self._buffer:
            # Only what is new can hold the end, so a trickle of bytes is not searched twice.
            ends = self._pending is not None or b"\n" in data
            self._buffer += data
            if not self._may_go_on(ends):
                return []
            data = bytes(self._buffer)
            self._buffer.clear()
        events: list[commands.Event] = []
        at = 0
        while at < len(data) and not self.closed:
            after = self._take(data, at, events)
            if after is None:
                break
            at = after
        if not self.closed and at < len(data):
            self._buffer += memoryview(data)[at:]
        return events

    def _feed_first(self, data: bytes) -> list[commands.Event]:
        """``auth SECRET`` can only be the first line, and must be if it is asked for."""
        if self.closed:
            return []
        data = bytes(self._buffer) + data
        self._buffer.clear()
        if not (self._auth_required or _AUTH.startswith(data[: len(_AUTH)])):
            self._is_first = False
            return self.feed(data)
        events: list[commands.Event] = []
        line, end, rest = data.partition(b"\n")
        if len(line) >= AUTH_LINE_LIMIT_BYTES or (end and not line.endswith(b"\r")):
            self._hang_up_unended(events, line[: protocols.HEAD_BYTES])
        elif not end:
            self._buffer += data
        elif not line.startswith(_AUTH):
            self._hang_up(events, protocols.foreign(line) or protocols.AuthRequired())
        else:
            self._is_first = False
            events = [protocols.Auth(line[len(_AUTH) : -1]), *self.feed(rest)]
        return events

    def _may_go_on(self, ends: bool) -> bool:
        if self._pending is not None:
            return len(self._buffer) > self._pending.size
        return ends or len(self._buffer) >= LINE_LIMIT_BYTES

    def _take(self, data: bytes, at: int, events: list[commands.Event]) -> int | None:
        """Take one line or payload that begins at ``at``; None if it is not whole yet."""
        if self._discard:
            passed = min(self._discard, len(data) - at)
            self._discard -= passed
            return at + passed if passed else None
        if self._pending is not None:
            return self._take_payload(data, at, self._pending, events)
        if (usual := read_usual(data, at)) is not None:
            events.append(usual[0])
            return usual[1]
        end = data.find(b"\n", at, at + LINE_LIMIT_BYTES)
        if end < 0:
            if len(data) - at >= LINE_LIMIT_BYTES:
                self._hang_up(
                    events, protocols.foreign(data[at : at + protocols.HEAD_BYTES]) or _HANGUP
                )
            return None
        if end == at or data[end - 1] != 0x0D:
            self._hang_up_unended(events, data[at:end])
            return None
        self._read_line(data[at : end - 1], events)
        return end + 1

    def _take_payload(
        self, data: bytes, at: int, pending: _Pending, events: list[commands.Event]
    ) -> int | None:
        end = at + pending.size
        after = end + len(protocols.LINE_END)
        if len(data) < after and data[end : end + 1] in (b"", b"\r"):
            return None
        self._pending = None
        _, kind, tokens, flags = pending
        is_whole = data[end:after] == protocols.LINE_END
        if kind is not None:
            if not is_whole:
                events.append(kind.bad_size)
            elif flags is None:
                events.append(_BAD_FLAGS)
            else:
                events.append(kind.read(tokens, flags, data[at:end]))
        if is_whole:
            return after
        self._hang_up(events)
        return after

    def _read_line(self, line: bytes, events: list[commands.Event]) -> None:
        tokens = line.split(b" ")
        first = tokens[0]
        flags: dict[bytes, bytes] | None = _NO_FLAGS
        if b"" in tokens:
            tokens = [word for word in tokens if word]
        if b"=" in line:
            flags = read_flags([word for word in tokens if _is_flag(word)])
            tokens = [word for word in tokens if not _is_flag(word)]
        kind = _KINDS.get(first)
        if kind is _INSPECT and len(tokens) > 1:
            kind = _OBJECTS.get(tokens[1])
        # Scripts can invent methods, `lease /x HTTP/1.1` too.
        if (kind is None or b" HTTP/" in line) and (found := protocols.foreign(line)) is not None:
            self._hang_up(events, found)
            return
        if type(kind) is _WithPayload and len(tokens) == kind.token_count:
            self._await_payload(kind, tokens, flags, events)
        elif flags is None:
            events.append(_BAD_FLAGS)
        elif kind is None:
            events.append(_UNKNOWN)
        elif type(kind) is not _Line or not kind.fits(tokens):
            events.append(_BAD_ARGS)
        elif not flags:
            events.append(kind.read(tokens))
        elif kind.read_flagged is not None:
            events.append(kind.read_flagged(tokens, flags))
        else:
            events.append(_BAD_ARGS)

    def _await_payload(
        self,
        kind: _WithPayload,
        tokens: list[bytes],
        flags: dict[bytes, bytes] | None,
        events: list[commands.Event],
    ) -> None:
        size = read_size(tokens[-1])
        if size is not None and size <= commands.MAX_PAYLOAD_BYTES:
            self._pending = _Pending(size, kind, tokens, flags)
            return
        events.append(kind.bad_size if flags is not None else _BAD_FLAGS)
        if size is not None:
            self._discard = size
            self._pending = _ANSWERED

    def _hang_up_unended(self, events: list[commands.Event], line: bytes) -> None:
        """Close the connection after a line that does not end as lines of this protocol do."""
        found = protocols.foreign(line)
        if found is None and protocols.is_of_schedule(line):
            events.append(_UNKNOWN)
        self._hang_up(events, found or _HANGUP)

    def _hang_up(self, events: list[commands.Event], why: commands.Event = _HANGUP) -> None:
        events.append(why)
        self.closed = True
        self._pending = None


def _is_flag(word: bytes) -> bool:
    return word[0] == 0x2D and b"=" in word
