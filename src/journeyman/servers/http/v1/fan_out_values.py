"""What the routes of the fan-out queues take and give: see values.py."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from journeyman.servers.http.fields import Nanoseconds, Text, Time
from journeyman.servers.http.v1.values import Body


class ReaderSeen(Struct):
    name: str
    items: int
    bytes: int
    open: int
    waiting: int
    expired: int
    discarded: int
    given_back: int
    age_ms: int


class FanOutSeen(Struct):
    name: str
    created: Time
    created_ns: Nanoseconds
    puts: int
    stored_bytes: int
    readers: list[ReaderSeen]


class FanOutPage(Struct):
    queues: list[FanOutSeen]
    next: str | None


class PutBody(Body):
    data: str = ""
    data_base64: str | None = None
    expire_s: Annotated[int, Meta(ge=0, lt=1_000_000)] = 0


class ReadBody(Body):
    reader: Text = ""
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


class FlushBody(Body):
    reader: Text = ""
    expired: Annotated[bool, Meta(description="only what has expired")] = False


class FlushAllBody(Body):
    expired: Annotated[bool, Meta(description="only what has expired")] = False


class Item(Struct, omit_defaults=True):
    read: str | None = None
    data: str | None = None
    data_base64: str | None = None


class ItemAnswer(Struct, omit_defaults=True):
    """``items`` if ``max`` was given; the first of them stands outside as well."""

    found: bool
    read: str | None = None
    data: str | None = None
    data_base64: str | None = None
    items: list[Item] | None = None


class FanOutStatus(Body):
    """What the fan-out queues take: see the status of the kestrel protocol."""

    status: Annotated[str, Meta(pattern=r"^(UP|READONLY|QUIESCENT|WRITEAVOID)$(?!\n)")]
