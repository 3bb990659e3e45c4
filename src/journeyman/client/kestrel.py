"""A client of the fan-out queues, over the kestrel protocol: ``KestrelClient``.

    with KestrelClient("queue.internal") as queues:
        queues.put("orders", b"...")

    with KestrelClient("queue.internal") as queues:
        while (item := queues.open("orders", reader="billing", wait_ms=30_000)) is not None:
            do(item)
            queues.confirm("orders", reader="billing")

An item that was opened and not confirmed goes back when the connection ends, so it is given out at
least once. Every call waits for its answer, at most ``timeout_s`` beyond what it asks the server to
wait. Only questions are sent again when the connection breaks; all else is AnswerLost: a put may be
there or not, what was taken may be gone, what was open is not open any more.

It talks to the original kestrel too. One thread, one KestrelClient.
"""

from __future__ import annotations

from journeyman.client import checks
from journeyman.client.connection import Caller, ClientConnection
from journeyman.client.errors import AccessDenied, BadAnswer, InvalidRequest, Refused
from journeyman.formats.kestrel import MAX_DATA_BYTES
from journeyman.protocols.kestrel.commands import MAX_WAIT_MS, Key
from journeyman.protocols.kestrel.parser import MAX_KEY_CHARACTERS, is_queue_name, is_reader_name

DEFAULT_PORT = 22133
_MAX_EXPIRY_S = 2**40  # far beyond any date
_MAX_COUNT = 1_000_000  # reads that a connection may have open at the most
_END = b"\r\n"
_ERRORS = ("ERROR", "CLIENT_ERROR", "SERVER_ERROR")
_DENIED = "unauthenticated"
_WORDS = ("STORED", "NOT_STORED", "VALUE", "END", "DELETED", "STAT", "VERSION")


class KestrelClient(Caller):
    """See the module. Connects at the first call."""

    default_port = DEFAULT_PORT
    service = "the fan-out queues"

    def _authentication(self, secret: bytes) -> tuple[bytes, bytes]:
        item = b"journeyman " + secret  # a user name, which is not looked at, and the secret
        return b"set auth 0 0 %d\r\n%b\r\n" % (len(item), item), b"STORED"

    # -- items -------------------------------------------------------------------------------------

    def put(self, queue: str, data: bytes, *, expiry_s: int = 0) -> bool:
        """False: the queue is full, or the item too large. ``expiry_s`` 0: it never expires.

        Below 1,000,000 that is seconds from now, else seconds since 1970.
        """
        data = checks.data(data, "data")
        if len(data) > MAX_DATA_BYTES:
            raise InvalidRequest(f"an item has up to {MAX_DATA_BYTES} bytes, not {len(data)}")
        expiry = checks.whole(expiry_s, "expiry_s", -_MAX_EXPIRY_S, _MAX_EXPIRY_S)
        head = f"set {_key(queue)} 0 {expiry} {len(data)}\r\n".encode()
        return self._once(head + data + _END, _read_word) == "STORED"

    def get(self, queue: str, *, reader: str = "", wait_ms: int = 0) -> bytes | None:
        """Take the next item, for good; None if there was none within the time."""
        return self._get(_key(queue, reader), "", wait_ms)

    def open(self, queue: str, *, reader: str = "", wait_ms: int = 0) -> bytes | None:
        """Take the next item, until ``confirm`` or ``abort``, or the end of the connection."""
        return self._get(_key(queue, reader), "/open", wait_ms)

    def peek(self, queue: str, *, reader: str = "", wait_ms: int = 0) -> bytes | None:
        """The next item, which stays where it is."""
        return self._get(_key(queue, reader), "/peek", wait_ms)

    def confirm(self, queue: str, *, reader: str = "", count: int = 1) -> None:
        """The oldest that are open are done. Refused: so many are not open, and none is done."""
        number = checks.whole(count, "count", 1, _MAX_COUNT)
        self._once(f"confirm {_key(queue, reader)} {number}\r\n".encode(), _read_word)

    def abort(self, queue: str, *, reader: str = "") -> None:
        """The oldest that is open goes back to the front, if there is one."""
        self._once(f"get {_key(queue, reader)}/abort\r\n".encode(), _read_item)

    # -- queues and the server ---------------------------------------------------------------------

    def flush(self, queue: str, *, reader: str = "") -> None:
        """Everything counts as read, by this reader or by all."""
        self._once(f"flush {_key(queue, reader)}\r\n".encode(), _read_word)

    def delete(self, queue: str, *, reader: str = "") -> None:
        """The queue, or one of its readers, is gone."""
        self._once(f"delete {_key(queue, reader)}\r\n".encode(), _read_word)

    def stats(self) -> dict[str, str]:
        """All figures: those of the server, and ``queue_<key>_<name>``."""
        return self._twice(b"stats\r\n", _read_stats)

    def version(self) -> str:
        return self._twice(b"version\r\n", _read_word).removeprefix("VERSION ")

    def _get(self, key: Key, option: str, wait_ms: int) -> bytes | None:
        wait_ms = checks.whole(wait_ms, "wait_ms", 0, MAX_WAIT_MS)
        wait = f"/t={wait_ms}" if wait_ms else ""
        try:
            return self._once(f"get {key}{wait}{option}\r\n".encode(), _read_item, wait_ms)
        except Refused as refused:
            if refused.code == "ERROR":  # a read is open: the server closes the connection
                self.close()
            raise


# -- what is said and answered -------------------------------------------------------------------


def _key(queue: str, reader: str = "") -> Key:
    """Checked: a name with a line break would be a command of its own."""
    if not is_queue_name(checks.text(queue, "queue")):
        raise InvalidRequest(f"queue names are made of A-Z a-z 0-9 : _ -, not {queue!r}")
    if checks.text(reader, "reader") and not is_reader_name(reader):
        raise InvalidRequest(f"reader names are ASCII without spaces, / and ~, not {reader!r}")
    if len(queue) + len(reader) > MAX_KEY_CHARACTERS:
        raise InvalidRequest("the names of queue and reader may have 200 characters together")
    return Key(queue, reader)


def _read_word(connection: ClientConnection) -> str:
    line = connection.read_line(_END).decode("latin-1")
    code, _, reason = line.partition(" ")
    if code in _ERRORS:
        raise AccessDenied(code, reason) if reason == _DENIED else Refused(code, reason)
    if code not in _WORDS:
        raise connection.unexpected(line)
    return line


def _read_item(connection: ClientConnection) -> bytes | None:
    head = _read_word(connection)
    if head == "END":
        return None
    words = head.split(" ")
    if len(words) != 4 or words[0] != "VALUE" or not words[3].isdecimal():
        raise connection.unexpected(head)
    item = connection.read_exactly(int(words[3]))
    if connection.read_exactly(2) != _END or connection.read_line(_END) != b"END":
        connection.close()
        raise BadAnswer(f"{connection.where} does not end its item")
    return item


def _read_stats(connection: ClientConnection) -> dict[str, str]:
    figures: dict[str, str] = {}
    while (line := _read_word(connection)) != "END":
        word, _, rest = line.partition(" ")
        name, space, value = rest.partition(" ")
        if word != "STAT" or not space:
            raise connection.unexpected(line)
        figures[name] = value
    return figures
