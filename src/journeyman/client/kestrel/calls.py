"""Every call of the fan-out queues, over the kestrel protocol: checks, requests, replies.

An item that was opened and not confirmed returns when its connection ends, so it is delivered at
least once. Only queries are sent again when the connection breaks; everything else is AnswerLost: a
put may be there or not, what was taken may be gone, what was open is not open any more.

The original kestrel is understood too.
"""

from __future__ import annotations

from journeyman.client import checks, conversation, errors
from journeyman.client.service import ServiceKind
from journeyman.formats.kestrel import MAX_DATA_BYTES
from journeyman.protocols import LINE_END
from journeyman.protocols.kestrel.commands import MAX_WAIT_MS, STATUSES, Key
from journeyman.protocols.kestrel.parser import MAX_KEY_CHARACTERS, is_queue_name, is_reader_name
from journeyman.protocols.kestrel.replies import AUTH_REQUIRED

DEFAULT_PORT = 22133
_MAX_EXPIRY_S = 2**40  # far beyond any date
_MAX_COUNT = 1_000_000  # more reads than a connection can have open
_ERRORS = ("ERROR", "CLIENT_ERROR", "SERVER_ERROR")
_AUTH_REQUIRED = AUTH_REQUIRED.line.removesuffix(LINE_END)
_REPLY_WORDS = {"STORED", "NOT_STORED", "VALUE", "END", "DELETED", "STAT", "VERSION", "Flushed"}
_REPLY_WORDS.update(STATUSES)


def _greet(secret: bytes) -> conversation.Greeting:
    item = b"journeyman " + secret  # a user name, which is not looked at, and the secret
    request = b"set auth 0 0 %d\r\n%b\r\n" % (len(item), item)
    return conversation.greeting(request, b"STORED", b"CLIENT_ERROR", b"SERVER_ERROR")


_PROBE = conversation.Probe(b"version\r\n", _AUTH_REQUIRED)
SERVICE = ServiceKind(
    "the fan-out queues",
    "fan_out",
    DEFAULT_PORT,
    _greet,
    _PROBE,
    connections=1,
    has_open_reads=True,
)


# -- items ---------------------------------------------------------------------------------------


def put(queue: str, data: bytes, *, expiry_s: int = 0) -> conversation.Call[bool]:
    """False if the queue is full or the item too large. ``expiry_s`` 0: it never expires.

    Below 1,000,000 that is seconds from now, otherwise seconds since 1970.
    """
    data = checks.data(data, "data")
    if len(data) > MAX_DATA_BYTES:
        raise errors.InvalidRequest(f"an item has up to {MAX_DATA_BYTES} bytes, not {len(data)}")
    expiry = checks.whole_number(expiry_s, "expiry_s", -_MAX_EXPIRY_S, _MAX_EXPIRY_S)
    head = f"set {_key(queue)} 0 {expiry} {len(data)}\r\n".encode()
    ask = conversation.once(head + data + LINE_END, _read_line)

    def converse(link: conversation.Link) -> conversation.Conversation[bool]:
        return (yield from ask(link)) == "STORED"

    return converse


def get(queue: str, *, reader: str = "", wait_ms: int = 0) -> conversation.Call[bytes | None]:
    """Take and confirm the next item; None if none arrives within ``wait_ms``."""
    return _get(_key(queue, reader), "", wait_ms)


def open(queue: str, *, reader: str = "", wait_ms: int = 0) -> conversation.Call[bytes | None]:
    """Take the next item until ``confirm`` or ``abort``, or the end of the connection."""
    return _get(_key(queue, reader), "/open", wait_ms)


def confirm_and_open(
    queue: str, *, reader: str = "", wait_ms: int = 0
) -> conversation.Call[bytes | None]:
    """Confirm the oldest open item, if any, and open the next one, in one exchange."""
    return _get(_key(queue, reader), "/close/open", wait_ms)


def monitor(
    queue: str, *, reader: str = "", wait_s: int, count: int
) -> conversation.Call[list[bytes]]:
    """Open the items that arrive within ``wait_s``, at most ``count``: then ``confirm`` them."""
    seconds = checks.whole_number(wait_s, "wait_s", 0, MAX_WAIT_MS // 1000)
    number = checks.whole_number(count, "count", 1, _MAX_COUNT)
    request = f"monitor {_key(queue, reader)} {seconds} {number}\r\n".encode()
    return conversation.once(request, _read_items, seconds * 1000)


def peek(queue: str, *, reader: str = "", wait_ms: int = 0) -> conversation.Call[bytes | None]:
    """The next item, which stays in the queue."""
    return _get(_key(queue, reader), "/peek", wait_ms)


def confirm(queue: str, *, reader: str = "", count: int = 1) -> conversation.Call[None]:
    """Confirm the oldest open items. Raises Refused, confirming none, if fewer are open."""
    number = checks.whole_number(count, "count", 1, _MAX_COUNT)
    return conversation.once(f"confirm {_key(queue, reader)} {number}\r\n".encode(), _read_done)


def abort(queue: str, *, reader: str = "") -> conversation.Call[None]:
    """Return the oldest open item, if any, to the front of the queue."""
    return conversation.once(f"get {_key(queue, reader)}/abort\r\n".encode(), _read_done)


# -- queues and the server -----------------------------------------------------------------------


def flush(queue: str, *, reader: str = "") -> conversation.Call[None]:
    """Mark everything as read, for this reader or for all."""
    return conversation.once(f"flush {_key(queue, reader)}\r\n".encode(), _read_done)


def flush_all() -> conversation.Call[None]:
    """Mark everything in every queue as read."""
    return conversation.once(b"flush_all\r\n", _read_done)


def flush_expired(queue: str, *, reader: str = "") -> conversation.Call[int]:
    """Handle expired items at the front now; returns how many."""
    return conversation.once(f"flush_expired {_key(queue, reader)}\r\n".encode(), _read_number)


def flush_all_expired() -> conversation.Call[int]:
    """Drop the expired items of every queue."""
    return conversation.once(b"flush_all_expired\r\n", _read_number)


def delete(queue: str, *, reader: str = "") -> conversation.Call[None]:
    """Delete the queue, or one of its readers."""
    return conversation.once(f"delete {_key(queue, reader)}\r\n".encode(), _read_done)


def stats() -> conversation.Call[dict[str, str]]:
    """All statistics: those of the server, and ``queue_<key>_<name>``."""
    return conversation.twice(b"stats\r\n", _read_stats)


def dump_stats(*queues: str) -> conversation.Call[dict[str, dict[str, str]]]:
    """The statistics of these queues, or of all, by key and name."""
    words = " ".join(["dump_stats", *(str(_key(queue)) for queue in queues)])
    return conversation.twice(f"{words}\r\n".encode(), _read_dump)


def version() -> conversation.Call[str]:
    """The server's version."""
    ask = conversation.twice(b"version\r\n", _read_line)

    def converse(link: conversation.Link) -> conversation.Conversation[str]:
        return (yield from ask(link)).removeprefix("VERSION ")

    return converse


def status() -> conversation.Call[str]:
    """UP, READONLY, QUIESCENT or WRITEAVOID."""
    return conversation.twice(b"status\r\n", _read_line)


def set_status(status: str) -> conversation.Call[None]:
    """Set the status of the server until its next start."""
    if checks.text(status, "status").upper() not in STATUSES:
        raise errors.InvalidRequest(f"status must be one of {', '.join(STATUSES)}, not {status!r}")
    return conversation.twice(f"status {status.upper()}\r\n".encode(), _read_done)


def shutdown() -> conversation.Call[None]:
    """Stop the server, if its setting kestrel.allow_shutdown permits; otherwise Refused."""

    def read(link: conversation.Link) -> conversation.Conversation[None]:
        try:
            yield from _read_done(link)
        except errors.TimedOut:
            raise
        except errors.ConnectionFailed:  # closed without a reply: it stops
            return

    return conversation.once(b"shutdown\r\n", read)


# -- requests and replies ------------------------------------------------------------------------


def _get(key: Key, option: str, wait_ms: int) -> conversation.Call[bytes | None]:
    wait_ms = checks.whole_number(wait_ms, "wait_ms", 0, MAX_WAIT_MS)
    wait = f"/t={wait_ms}" if wait_ms else ""
    ask = conversation.once(f"get {key}{wait}{option}\r\n".encode(), _read_item, wait_ms)

    def converse(link: conversation.Link) -> conversation.Conversation[bytes | None]:
        try:
            return (yield from ask(link))
        except errors.Refused as refused:
            if refused.code == "ERROR":  # a read is open: the server closes the connection
                link.drop()
            raise

    return converse


def _key(queue: str, reader: str = "") -> Key:
    """Checked: a name with a line break would be a command of its own."""
    if not is_queue_name(checks.text(queue, "queue")):
        raise errors.InvalidRequest(f"queue names are made of A-Z a-z 0-9 : _ -, not {queue!r}")
    if checks.text(reader, "reader") and not is_reader_name(reader):
        raise errors.InvalidRequest(
            f"reader names are ASCII without spaces, / and ~, not {reader!r}"
        )
    if len(queue) + len(reader) > MAX_KEY_CHARACTERS:
        raise errors.InvalidRequest(
            "the names of queue and reader may have 200 characters together"
        )
    return Key(queue, reader)


def _read_text(link: conversation.Link) -> conversation.Conversation[str]:
    line = (yield from link.line(LINE_END)).decode("latin-1")
    code, _, reason = line.partition(" ")
    if code in _ERRORS:
        is_denied = line.encode() == _AUTH_REQUIRED
        raise errors.AccessDenied(code, reason) if is_denied else errors.Refused(code, reason)
    return line


def _read_line(link: conversation.Link) -> conversation.Conversation[str]:
    line = yield from _read_text(link)
    if line.partition(" ")[0] not in _REPLY_WORDS:
        raise link.unexpected(line)
    return line


def _read_done(link: conversation.Link) -> conversation.Conversation[None]:
    yield from _read_line(link)


def _read_number(link: conversation.Link) -> conversation.Conversation[int]:
    line = yield from _read_text(link)
    if not line.isdecimal():
        raise link.unexpected(line)
    return int(line)


def _read_item(link: conversation.Link) -> conversation.Conversation[bytes | None]:
    head = yield from _read_line(link)
    if head == "END":
        return None
    words = head.split(" ")
    if len(words) != 4 or words[0] != "VALUE" or not words[3].isdecimal():
        raise link.unexpected(head)
    item = yield from link.exactly(int(words[3]))
    if (yield from link.exactly(2)) != LINE_END or (yield from link.line(LINE_END)) != b"END":
        link.drop()
        raise errors.BadAnswer(f"{link.where} does not end its item")
    return item


def _read_items(link: conversation.Link) -> conversation.Conversation[list[bytes]]:
    items = []
    while (item := (yield from _read_item(link))) is not None:
        items.append(item)
    return items


def _read_stats(link: conversation.Link) -> conversation.Conversation[dict[str, str]]:
    figures: dict[str, str] = {}
    while (line := (yield from _read_line(link))) != "END":
        word, _, rest = line.partition(" ")
        name, space, value = rest.partition(" ")
        if word != "STAT" or not space:
            raise link.unexpected(line)
        figures[name] = value
    return figures


def _read_dump(link: conversation.Link) -> conversation.Conversation[dict[str, dict[str, str]]]:
    queues: dict[str, dict[str, str]] = {}
    figures: dict[str, str] = {}
    while (line := (yield from _read_text(link))) != "END":
        if line.startswith("queue '") and line.endswith("' {"):
            figures = queues[line[len("queue '") : -len("' {")]] = {}
        elif line.startswith("  ") and "=" in line:
            name, _, value = line.strip().partition("=")
            figures[name] = value
        elif line != "}":
            raise link.unexpected(line)
    return queues
