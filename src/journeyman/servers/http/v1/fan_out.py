"""The fan-out queues over HTTP, version 1: put, read, confirm, and who reads what.

An open read belongs to a connection on the kestrel port. Here it belongs to an id of its own: the
answer of ``read`` with ``open`` names it, ``confirm`` or ``abort`` end it, and an item that was
neither confirmed nor aborted within ``hold_ms`` goes back by itself.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Final

from msgspec import Meta, Struct

from journeyman.protocols.kestrel import commands
from journeyman.protocols.kestrel.parser import MAX_KEY_CHARACTERS, is_queue_name, is_reader_name
from journeyman.protocols.kestrel.replies import END, STORED, ItemFound
from journeyman.servers.core.internal_call import InternalCall as WriterCall
from journeyman.servers.http import fields
from journeyman.servers.http.problems import ApiError
from journeyman.servers.http.routes import Route, RouteCall
from journeyman.servers.http.v1 import values
from journeyman.servers.http.v1.backend import HttpBackend
from journeyman.servers.kestrel.metrics import Described

MAX_OPEN_READS = 10_000
MAX_READ_BYTES = 4 * 1024 * 1024  # items of one answer, except that the last may exceed it

QUEUE_NAME: Final = "[A-Za-z0-9:_-]{1,200}"
READER_NAME: Final = "[!-.0-}]{1,200}"
ReaderName = Annotated[str, fields.documented(f"(?:{READER_NAME})?")]
_route = partial(Route, tag="fan-out", names={"queue": QUEUE_NAME, "reader": READER_NAME})


class ReaderSeen(Struct):
    """``age_ms``: how long the last item that it was given had waited. ``oldest_ms``: how long the
    next one has; of one that is on disk alone, about."""

    name: str
    items: int
    bytes: int
    open: int
    waiting: int
    expired: int
    discarded: int
    given_back: int
    age_ms: int
    oldest_ms: int | None


class FanOutSeen(Struct):
    """A fan-out queue and its readers."""

    name: str
    created_ns: int
    puts: int
    stored_bytes: int
    readers: list[ReaderSeen]


class FanOutPage(Struct):
    """A page of fan-out queues."""

    queues: list[FanOutSeen]
    next: str | None


class PutBody(values.Body):
    """An item, and after how many seconds it expires; 0: never."""

    EXAMPLE: ClassVar[dict[str, Any]] = {"data": "order 42 is paid", "expire_s": 3600}

    RULES = (values.not_text_and_base64("data"),)

    data: str = ""
    data_base64: fields.Base64 | None = None
    expire_s: Annotated[int, Meta(ge=0, lt=1_000_000)] = 0


class ReadBody(values.Body):
    """The reader that takes an item, and whether the item stays open until it is confirmed."""

    EXAMPLE: ClassVar[dict[str, Any]] = {"reader": "billing", "open": True, "wait_ms": 30000}

    RULES = (values.needs(max={"type": "integer"}, open={"const": True}),)

    reader: ReaderName = ""
    wait_ms: Annotated[int, Meta(ge=0, le=30_000)] = 0
    open: bool = False
    peek: bool = False
    max: (
        Annotated[int, Meta(ge=1, le=100, description="that many items at most; they must be open")]
        | None
    ) = None
    hold_ms: Annotated[
        int, Meta(ge=1, le=86_400_000, description="after this an open item goes back")
    ] = 60_000


class FlushBody(values.Body):
    """The reader whose items are dropped; without one, those of the queue itself."""

    EXAMPLE: ClassVar[dict[str, Any]] = {"reader": "billing", "expired": True}

    reader: ReaderName = ""
    expired: Annotated[bool, Meta(description="only what has expired")] = False


class FlushAllBody(values.Body):
    """The items of all queues that are dropped."""

    EXAMPLE: ClassVar[dict[str, Any]] = {"expired": True}

    expired: Annotated[bool, Meta(description="only what has expired")] = False


class Item(Struct, omit_defaults=True):
    """An item that was taken. ``read`` is there if it is open."""

    read: str | None = None
    data: bytes | None = None


class ItemAnswer(Struct, omit_defaults=True):
    """``items`` if ``max`` was given; the first of them stands outside as well."""

    found: bool
    read: str | None = None
    data: bytes | None = None
    items: list[Item] | None = None


class FanOutStatus(values.Body):
    """The commands that the fan-out queues take now: see the status of the kestrel protocol."""

    EXAMPLE: ClassVar[dict[str, Any]] = {"status": "READONLY"}

    status: Annotated[str, Meta(pattern=fields.whole_text("|".join(commands.STATUSES)))]


@dataclass(slots=True)
class _OpenRead:
    client: WriterCall
    key: commands.Key
    owner: str
    timer: asyncio.TimerHandle


class FanOutRoutes:
    def __init__(self, backend: HttpBackend) -> None:
        self._backend = backend
        self._open: dict[str, _OpenRead] = {}

    def routes(self) -> list[Route]:
        queues = "/v1/fan-out/queues"
        return [
            _route("GET", queues, self.queues, "Fan-out queues by name", FanOutPage,
                   query=values.NamesQuery),
            _route("GET", f"{queues}/{{queue}}", self.queue, "A fan-out queue",
                   FanOutSeen, errors=(404,)),
            _route("DELETE", f"{queues}/{{queue}}", self.delete, "Delete a queue and its items",
                   errors=(409,)),
            _route("POST", f"{queues}/{{queue}}/items", self.put, "Put an item",
                   body=PutBody, errors=(409, 422), is_traffic=True),
            _route("POST", f"{queues}/{{queue}}/read", self.read, "Take the next item",
                   ItemAnswer, body=ReadBody, errors=(409, 422),
                   waits=True, is_traffic=True),
            _route("POST", f"{queues}/{{queue}}/flush", self.flush, "Drop what a reader has left",
                   body=FlushBody, errors=(409, 422)),
            _route("POST", "/v1/fan-out/flush", self.flush_all, "Flush all queues", for_all=True,
                   body=FlushAllBody, errors=(404, 409, 422)),
            _route("GET", "/v1/fan-out/status", self.status, "What the fan-out queues take",
                   FanOutStatus, errors=(404,)),
            _route("PUT", "/v1/fan-out/status", self.set_status, "Set what they take",
                   FanOutStatus, body=FanOutStatus, for_all=True,
                   errors=(404,)),
            _route("DELETE", f"{queues}/{{queue}}/readers/{{reader}}", self.delete_reader,
                   "Delete a reader", errors=(409,)),
            _route("POST", "/v1/fan-out/reads/{read}/confirm", self.confirm,
                   "Confirm an open item", errors=(404, 409, 422), is_traffic=True),
            _route("POST", "/v1/fan-out/reads/{read}/abort", self.abort,
                   "Give an open item back", errors=(404, 409, 422), is_traffic=True),
        ]  # fmt: skip

    # -- looking --

    async def queues(self, call: RouteCall) -> FanOutPage:
        query: values.NamesQuery = call.query
        after = (fields.read_cursor(query.cursor) or b"").decode(errors="replace")
        prefix = call.narrowed(query.prefix)
        if prefix is None:
            return FanOutPage([], None)
        asked = Described(limit=query.limit + 1, prefix=prefix, after=after)
        found = await self._described(asked)
        shown = [_read_queue(each) for each in found[: query.limit]]
        last = shown[-1].name.encode() if len(found) > query.limit else None
        return FanOutPage(shown, fields.cursor_of(last))

    async def queue(self, call: RouteCall) -> FanOutSeen:
        name = call.path["queue"]
        found = await self._described(Described(name))
        if not found or not name.startswith(call.prefix):
            raise ApiError(404, f"there is no fan-out queue {name!r}", "queue_not_found")
        return _read_queue(found)

    async def _described(self, query: Described) -> Any:
        if self._backend.fan_out is None:
            raise ApiError(404, "the fan-out queues are off", "service_off")
        reply = await self._backend.fan_out.writer.ask(query)
        data = getattr(reply, "data", None)
        if data is None:
            raise ApiError(503, "the fan-out queues are stopping")
        return json.loads(data or b"null")

    # -- items --

    async def put(self, call: RouteCall) -> None:
        body: PutBody = call.body
        data = fields.read_bytes(body.data, body.data_base64, "data")
        put = commands.Put(_key(call).queue, body.expire_s, data)
        if await self._backend.ask_fan_out(call, put) is not STORED:
            raise ApiError(409, "the queue refused the item: full, or too large", "not_stored")

    async def read(self, call: RouteCall) -> ItemAnswer:
        body: ReadBody = call.body
        key = _key(call, body.reader)
        if body.max is not None:
            return await self._read_many(call, key, body, body.max)
        found = await self._read_one(call, key, body, body.wait_ms)
        if found is None:
            return ItemAnswer(False)
        return ItemAnswer(True, found.read, found.data)

    async def _read_one(
        self, call: RouteCall, key: commands.Key, body: ReadBody, wait_ms: int
    ) -> Item | None:
        if body.open and len(self._open) >= MAX_OPEN_READS:
            raise ApiError(503, "too many items are open over HTTP")
        get = commands.GetItem(key, wait_ms, open=body.open, peek=body.peek and not body.open)
        client = self._client() if body.open else None
        reply = await self._backend.ask_fan_out(call, get, client)
        if not isinstance(reply, ItemFound):
            return None
        read = self._keep(call, key, client, body.hold_ms) if client is not None else None
        return Item(read, reply.data)

    async def _read_many(
        self, call: RouteCall, key: commands.Key, body: ReadBody, most: int
    ) -> ItemAnswer:
        """Return what is there, after the wait for a first one; a client that left gets none."""
        if not body.open:
            raise ApiError(400, "max goes with open", "invalid_body")
        items: list[Item] = []
        size, wait_ms = 0, body.wait_ms
        try:
            while len(items) < most and size < MAX_READ_BYTES:
                found = await self._read_one(call, key, body, wait_ms)
                if found is None:
                    break
                items.append(found)
                size, wait_ms = size + len(found.data or b""), 0
        except BaseException:
            for item in items:
                self._expire(item.read or "")
            raise
        if not items:
            return ItemAnswer(False, items=[])
        first = items[0]
        return ItemAnswer(True, first.read, first.data, items)

    async def confirm(self, call: RouteCall) -> None:
        opened = self._take(call)
        reply = await self._backend.ask_fan_out(
            call, commands.Confirm(opened.key, 1), opened.client
        )
        self._leave(opened.client)
        if reply is not END:
            raise ApiError(404, "the item is no longer open", "read_not_found")

    async def abort(self, call: RouteCall) -> None:
        opened = self._take(call)
        await self._backend.ask_fan_out(
            call, commands.GetItem(opened.key, abort=True), opened.client
        )
        self._leave(opened.client)

    # -- fields.whole queues --

    async def flush(self, call: RouteCall) -> None:
        key = _key(call, call.body.reader)
        command = commands.FlushExpired(key) if call.body.expired else commands.Flush(key)
        await self._backend.ask_fan_out(call, command)

    async def flush_all(self, call: RouteCall) -> None:
        command = commands.FlushAllExpired() if call.body.expired else commands.FlushAll()
        await self._backend.ask_fan_out(call, command)

    async def status(self, call: RouteCall) -> FanOutStatus:
        reply = await self._backend.ask_fan_out(call, commands.ServerStatus(None))
        return FanOutStatus(reply.data.decode().strip())

    async def set_status(self, call: RouteCall) -> FanOutStatus:
        await self._backend.ask_fan_out(call, commands.ServerStatus(call.body.status))
        return FanOutStatus(call.body.status)

    async def delete(self, call: RouteCall) -> None:
        await self._backend.ask_fan_out(call, commands.DeleteQueue(_key(call)))

    async def delete_reader(self, call: RouteCall) -> None:
        await self._backend.ask_fan_out(call, commands.DeleteQueue(_key(call, call.path["reader"])))

    # -- open reads --

    def _client(self) -> WriterCall:
        loop = asyncio.get_running_loop()
        return WriterCall(loop, "the fan-out queues have stopped")

    def _keep(self, call: RouteCall, key: commands.Key, client: WriterCall, hold_ms: int) -> str:
        read = secrets.token_urlsafe(16)
        loop = asyncio.get_running_loop()
        timer = loop.call_later(hold_ms / 1000, self._expire, read)
        self._open[read] = _OpenRead(client, key, call.who, timer)
        return read

    def _take(self, call: RouteCall) -> _OpenRead:
        opened = self._open.get(call.path["read"])
        if opened is None or opened.owner != call.who:
            raise ApiError(404, "there is no such open read", "read_not_found")
        del self._open[call.path["read"]]
        opened.timer.cancel()
        return opened

    def _expire(self, read: str) -> None:
        opened = self._open.pop(read, None)
        if opened is not None:
            opened.timer.cancel()
            self._leave(opened.client)

    def _leave(self, client: WriterCall) -> None:
        service = self._backend.fan_out
        if service is not None and service.writer.failure is None:
            service.writer.leave(client)


def _key(call: RouteCall, reader: str = "") -> commands.Key:
    queue = call.path["queue"]
    if not is_queue_name(queue) or (reader and not is_reader_name(reader)):
        raise ApiError(
            400, "names are made of A-Z a-z 0-9 : _ -, up to 200 of them", "invalid_name"
        )
    if len(queue) + len(reader) > MAX_KEY_CHARACTERS:
        raise ApiError(400, "queue and reader may have 200 characters together", "invalid_name")
    return commands.Key(queue, reader)


def _read_queue(queue: dict[str, Any]) -> FanOutSeen:
    readers = [ReaderSeen(**reader) for reader in queue["readers"]]
    counts = queue["puts"], queue["stored_bytes"]
    return FanOutSeen(queue["name"], queue["created"], *counts, readers)
