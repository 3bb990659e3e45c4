"""Types of settings: reading, what is allowed in words, writing as TOML.

    type                      a file gives       the environment and the command line give text
    a StrEnum                 "info"             info
    bool                      true               true, false
    int, between(1, 9)        5                  5
    Text                      "logfile"          logfile
    Text | None               "tokens", or none  tokens
    Texts                     ["-c"]             ["-c"], a TOML array
    Networks                  ["10.0.0.0/8"]     the same, each a network
    NetworksAndHosts          ["10.0.0.0/8"]     the same, each a network or a host
    Origins                   ["https://a.b"]    the same, each the origin of a web page
    Listen                    "localhost:5678"   localhost:5678

msgspec reads them; the annotation of the last four holds a function that reads them instead.
Reading is strict, as ztick is: a number in quotes is not a number. What does not fit is a
ValueError; its text, if any, says more than ``allowed`` does.

An address is written in the ways that people write it. The port follows the last colon; port 0
lets the system choose one. A missing host is refused: whether ``:5678`` means this machine or the
whole world is not for a server to guess.

    127.0.0.1:5678   localhost:5678   0.0.0.0:5678       a name or an IPv4 address
    [::1]:5678       ::1:5678         [::]:5678          IPv6, with or without brackets
    unix:/run/journeyman/schedule.sock                   a Unix socket
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import partial
from ipaddress import AddressValueError, IPv4Address, IPv6Address, ip_network
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from msgspec import Meta, Struct, ValidationError, convert

from journeyman.local_access import MAX_PATH_BYTES, UNIX_PREFIX, socket_path
from journeyman.units import DAY_MS

MAX_PORT = 65_535

_NAME = re.compile(r"(?=.{1,253}$)[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?")
_ORIGIN = re.compile(
    r"https?://(?:[a-z0-9_](?:[a-z0-9_.-]*[a-z0-9_])?|\[[0-9a-f:.]+\])(?::(\d{1,5}))?"
)
_WHOLE_NUMBER = re.compile(r"-?[0-9]{1,20}")
_PASSWORD = re.compile(r"(?i)(password\s*=\s*)('(?:[^'\\]|\\.)*'?|[^\s&']+)")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_UNITS = {"_ms": "milliseconds", "_s": "seconds", "_bytes": "bytes", "_days": "days"}


class Address(Struct, frozen=True):
    """Where a server listens. The host of an IPv6 address is kept without brackets."""

    host: str
    port: int
    path: str = ""  # the path of a Unix socket, which has neither host nor port

    def __str__(self) -> str:
        if self.path:
            return f"{UNIX_PREFIX}{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """The address, or ValueError with one phrase that says what is wrong."""
    if path := socket_path(text):
        if len(os.fsencode(path)) > MAX_PATH_BYTES:
            raise ValueError(f"the path of a socket has at most {MAX_PATH_BYTES} bytes")
        return Address("", 0, path)
    host, colon, port = text.rpartition(":")
    if not colon or not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > MAX_PORT:
        raise ValueError(f"it must end with a colon and a port from 0 to {MAX_PORT}")
    if not host:
        raise ValueError(
            f"name the host: 127.0.0.1:{port} for this machine alone, "
            f"0.0.0.0:{port} or [::]:{port} for every network"
        )
    in_brackets = host.startswith("[") and host.endswith("]")
    if in_brackets or ":" in host:
        host = host[1:-1] if in_brackets else host
        return Address(_checked(host, IPv6Address, "IPv6"), int(port))
    if re.fullmatch(r"[0-9.]+", host):
        return Address(_checked(host, IPv4Address, "IPv4"), int(port))
    if not _NAME.fullmatch(host):
        raise ValueError(f"{host!r} is neither a host name nor an IP address")
    return Address(host, int(port))


def _checked(host: str, read: Callable[[str], object], version: str) -> str:
    try:
        read(host)
    except AddressValueError:
        raise ValueError(f"{host!r} is not an {version} address") from None
    return host


# -- types -----------------------------------------------------------------------------------------

_Line = Annotated[str, Meta(pattern=r"\A[^\0]*\Z")]  # no program can be given a NUL byte


def between(low: int, high: int) -> Meta:
    """The range of a whole number, both ends included."""
    return Meta(ge=low, le=high)


def _read_address(value: object) -> Address:
    return parse_address(convert(value, str))


def _read_networks(value: object, *, or_hosts: bool = False) -> tuple[str, ...]:
    entries = convert(value, tuple[_Line, ...])
    for entry in entries:
        try:
            ip_network(entry)
        except ValueError as error:
            is_name = not re.search(r"[:/]|\A[0-9.]+\Z", entry)
            if not or_hosts or not is_name:
                raise ValueError(f"not a network: {error}") from None
            if not _NAME.fullmatch(entry.removeprefix("*.")):
                raise ValueError(f"{entry!r} is neither a network nor a host name") from None
    return entries


def _read_origins(value: object) -> tuple[str, ...]:
    entries = convert(value, tuple[_Line, ...])
    for entry in entries:
        found = _ORIGIN.fullmatch(entry)
        if found is None or int(found[1] or 0) > MAX_PORT:
            raise ValueError(
                f"not an origin: {entry!r} (expected https://host or https://host:port)"
            )
    return entries


TimeLimit = Annotated[int, between(1, DAY_MS)]
IdleTime = Annotated[int, between(0, 365 * DAY_MS)]
SyncInterval = Annotated[int, between(1, 60 * 60 * 1000)]
Days = Annotated[int, between(0, 36_500)]
Text = Annotated[_Line, Meta(min_length=1, description="a string that is not empty")]
Texts = Annotated[tuple[_Line, ...], Meta(description='an array of strings, such as ["-c"]')]
Networks = Annotated[
    tuple[str, ...],
    _read_networks,
    Meta(description='an array of networks, such as ["10.1.0.0/16", "192.0.2.7", "2001:db8::/32"]'),
]
NetworksAndHosts = Annotated[
    tuple[str, ...],
    partial(_read_networks, or_hosts=True),
    Meta(
        description="an array of networks and hosts, such as "
        '["10.1.0.0/16", "::1", "*.example.com"]'
    ),
]
Origins = Annotated[
    tuple[str, ...],
    _read_origins,
    Meta(description='an array of origins, such as ["https://dashboard.example.com"]'),
]
Listen = Annotated[
    Address,
    _read_address,
    Meta(description="host:port, such as 127.0.0.1:5678 or [::1]:5678, or unix:PATH"),
]


# -- reading and writing ---------------------------------------------------------------------------


def read_setting(kind: Any, value: object) -> Any:
    """The value of a setting from a value of a TOML file; ValueError if it does not fit."""
    reader = next(filter(callable, _parts(kind)[1]), None)
    try:
        return convert(value, kind) if reader is None else reader(value)
    except ValidationError:
        raise ValueError from None  # its text would say less than ``allowed``


def read_text(kind: Any, text: str) -> Any:
    """The value of a setting from the environment or the command line."""
    plain = _parts(kind)[0]
    if plain is Address or (isinstance(plain, type) and issubclass(plain, str)):
        return read_setting(kind, text)
    if _WHOLE_NUMBER.fullmatch(text):
        return read_setting(kind, int(text))
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except ValueError:
        raise ValueError from None  # its text would speak of a line and column
    if type(value) is int:  # in one of the other forms of TOML, such as 1_000
        raise ValueError
    return read_setting(kind, value)


def allowed(kind: Any, name: str) -> str:
    """The values of a type in words; the end of the setting's name is the unit of its number."""
    plain, details = _parts(kind)
    metas = [detail for detail in details if isinstance(detail, Meta)]
    for meta in metas:
        if meta.description:
            return meta.description
    if plain is bool:
        return "true or false"
    if issubclass(plain, StrEnum):
        return "one of " + ", ".join(plain)
    unit = next((f" of {unit}" for end, unit in _UNITS.items() if name.endswith(end)), "")
    return f"a whole number{unit} from {metas[0].ge} to {metas[0].le}"


def as_toml(value: Any) -> str:
    """The value as TOML, without the passwords of addresses; ``read`` gives it back."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_quoted, value)) + "]"
    if isinstance(value, Mapping):
        pairs = (
            f"{key if _BARE_KEY.fullmatch(key) else _quoted(key)} = {as_toml(item)}"
            for key, item in value.items()
        )
        return "{" + ", ".join(pairs) + "}"
    return _quoted(_without_password(str(value)))


def _parts(kind: Any) -> tuple[Any, tuple[Any, ...]]:
    """The plain type, and what its annotations say: the nearest first."""
    details: tuple[Any, ...] = ()
    while True:
        if get_origin(kind) is Annotated:
            details += kind.__metadata__
            kind = kind.__origin__
        elif get_origin(kind) in (Union, UnionType):
            kind = get_args(kind)[0]  # the other one is None
        else:
            return kind, details


def _without_password(text: str) -> str:
    """An address as a URL or as ``key=value`` words, with *** for its passwords."""
    scheme, separator, rest = text.partition("://")
    userinfo, at, place = rest.rpartition("@")
    user, colon, _ = userinfo.partition(":")
    if at and colon:
        text = f"{scheme}{separator}{user}:***@{place}"
    return _PASSWORD.sub(r"\1***", text)


def _quoted(text: str) -> str:
    """A TOML string: controls, quote and backslash escaped."""
    escaped = (
        f"\\u{ord(char):04x}" if char < " " or char == "\x7f" else "\\" * (char in '"\\') + char
        for char in text
    )
    return '"' + "".join(escaped) + '"'
