"""Kinds of values a setting can have: what is allowed, in words; reading; writing as TOML.

    kind              a file gives       the environment and the command line give text
    Choice(enum)      "info"             info
    Flag()            true               true, false
    Integer(1, 9)     5                  5
    Text()            "logfile"          logfile
    SecretText()      the same; shown without the password of an address
    Optional(Text())  "tokens", or none  tokens
    TextList()        ["-c"]             ["-c"], a TOML array
    Networks()        ["10.0.0.0/8"]     the same, each a network
    NetworkList()     ["10.0.0.0/8"]     the same, each a network or a host
    ListenAddress()   "localhost:5678"   localhost:5678

Reading is strict, as ztick is: a number in quotes is not a number. What does not fit is a
ValueError; its text, if any, says more than ``allowed`` does.

An address is written in the ways that people write it. The port follows the last colon; port 0
lets the system choose one. A missing host is refused: whether ``:5678`` means this machine or the
whole world is not for a server to guess.

    127.0.0.1:5678   localhost:5678   0.0.0.0:5678       a name or an IPv4 address
    [::1]:5678       ::1:5678         [::]:5678          IPv6, with or without brackets
    unix:/run/journeyman/schedule.sock                   a Unix socket

``setting`` makes one row of the table of settings: a field of a dataclass that says what it is.
"""

from __future__ import annotations

import os
import re
import tomllib
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from enum import StrEnum
from ipaddress import AddressValueError, IPv4Address, IPv6Address, ip_network
from typing import Generic, TypeVar

from journeyman.local_access import MAX_PATH_BYTES, UNIX_PREFIX, socket_path

MAX_PORT = 65_535

_NAME = re.compile(r"(?=.{1,253}$)[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?")


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens. The host of an IPv6 address is kept without brackets."""

    host: str
    port: int
    path: str = ""  # of a Unix socket: then there is neither host nor port

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
        return Address(_ipv6(host[1:-1] if in_brackets else host), int(port))
    if re.fullmatch(r"[0-9.]+", host):
        return Address(_ipv4(host), int(port))
    if not _NAME.fullmatch(host):
        raise ValueError(f"{host!r} is neither a host name nor an IP address")
    return Address(host, int(port))


def _ipv4(host: str) -> str:
    try:
        IPv4Address(host)
    except AddressValueError:
        raise ValueError(f"{host!r} is not an IPv4 address") from None
    return host


def _ipv6(host: str) -> str:
    try:
        IPv6Address(host)
    except AddressValueError:
        raise ValueError(f"{host!r} is not an IPv6 address") from None
    return host


T = TypeVar("T")


def setting(kind: ValueKind[T], default: T, meaning: str, *, key: str = "") -> T:
    """A field that is a setting. ``key`` where ztick's name lacks the unit."""
    metadata = {"kind": kind, "meaning": meaning, "key": key}
    return field(default=default, metadata=metadata)


E = TypeVar("E", bound=StrEnum)

_PASSWORD = re.compile(r"(?i)(password\s*=\s*)('(?:[^'\\]|\\.)*'?|[^\s&']+)")


class ValueKind(ABC, Generic[T]):
    """One kind of value."""

    allowed: str

    @abstractmethod
    def read(self, value: object) -> T:
        """The value of a setting from a value of a TOML file; ValueError if it does not fit."""

    def read_text(self, text: str) -> T:
        """The value of a setting from the environment or the command line."""
        return self.read(text)

    @abstractmethod
    def write(self, value: T) -> str:
        """The value as TOML; ``read`` gives it back."""


class Choice(ValueKind[E]):
    def __init__(self, words: type[E]) -> None:
        self._words = words
        self.allowed = "one of " + ", ".join(words)

    def read(self, value: object) -> E:
        if not isinstance(value, str):
            raise ValueError
        try:
            return self._words(value)
        except ValueError:
            raise ValueError from None  # its text would only repeat the value

    def write(self, value: E) -> str:
        return quoted(value)


class Flag(ValueKind[bool]):
    allowed = "true or false"

    def read(self, value: object) -> bool:
        if not isinstance(value, bool):
            raise ValueError
        return value

    def read_text(self, text: str) -> bool:
        if text not in ("true", "false"):
            raise ValueError
        return text == "true"

    def write(self, value: bool) -> str:
        return "true" if value else "false"


class Integer(ValueKind[int]):
    def __init__(self, low: int, high: int, unit: str = "") -> None:
        self._range = range(low, high + 1)
        self.allowed = f"a whole number{unit and ' of ' + unit} from {low} to {high}"

    def read(self, value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or value not in self._range:
            raise ValueError
        return value

    def read_text(self, text: str) -> int:
        if not text.isascii() or not text.removeprefix("-").isdigit() or len(text) > 20:
            raise ValueError
        return self.read(int(text))

    def write(self, value: int) -> str:
        return str(value)


class Text(ValueKind[str]):
    allowed = "a string that is not empty"

    def read(self, value: object) -> str:
        if not isinstance(value, str) or not value or "\0" in value:
            raise ValueError
        return value

    def write(self, value: str) -> str:
        return quoted(value)


class SecretText(Text):
    """Text that may be an address with a password, which is not shown."""

    def write(self, value: str) -> str:
        return quoted(without_password(value))


def without_password(text: str) -> str:
    """An address as a URL or as ``key=value`` words, with *** for its passwords."""
    scheme, separator, rest = text.partition("://")
    userinfo, at, place = rest.rpartition("@")
    user, colon, _ = userinfo.partition(":")
    if at and colon:
        text = f"{scheme}{separator}{user}:***@{place}"
    return _PASSWORD.sub(r"\1***", text)


class TextList(ValueKind[tuple[str, ...]]):
    allowed = 'an array of strings, such as ["-c"]'

    def read(self, value: object) -> tuple[str, ...]:
        if not isinstance(value, list):
            raise ValueError
        if not all(isinstance(item, str) and "\0" not in item for item in value):
            raise ValueError
        return tuple(value)

    def read_text(self, text: str) -> tuple[str, ...]:
        try:
            document = tomllib.loads(f"value = {text}")
        except ValueError:
            raise ValueError from None  # its text would speak of a line and column
        return self.read(document["value"])

    def write(self, value: tuple[str, ...]) -> str:
        return "[" + ", ".join(map(quoted, value)) + "]"


class NetworkList(TextList):
    allowed = 'an array of networks and hosts, such as ["10.1.0.0/16", "::1", "*.example.com"]'

    def read(self, value: object) -> tuple[str, ...]:
        entries = super().read(value)
        for entry in entries:
            _check_network_or_host(entry)
        return entries


class Networks(TextList):
    allowed = 'an array of networks, such as ["10.1.0.0/16", "192.0.2.7", "2001:db8::/32"]'

    def read(self, value: object) -> tuple[str, ...]:
        entries = super().read(value)
        for entry in entries:
            try:
                ip_network(entry)
            except ValueError as error:
                raise ValueError(f"not a network: {error}") from None
        return entries


def _check_network_or_host(entry: str) -> None:
    """Raises ValueError with a phrase that says what is wrong."""
    try:
        ip_network(entry)
    except ValueError as error:
        if ":" in entry or "/" in entry or re.fullmatch(r"[0-9.]+", entry):
            raise ValueError(f"not a network: {error}") from None
        if not _NAME.fullmatch(entry.removeprefix("*.")):
            raise ValueError(f"{entry!r} is neither a network nor a host name") from None


class ListenAddress(ValueKind[Address]):
    allowed = "host:port, such as 127.0.0.1:5678 or [::1]:5678, or unix:PATH"

    def read(self, value: object) -> Address:
        if not isinstance(value, str):
            raise ValueError
        return parse_address(value)

    def write(self, value: Address) -> str:
        return quoted(str(value))


class Optional(ValueKind[T | None]):
    """A setting that may be left out. None is never written, so never read."""

    def __init__(self, kind: ValueKind[T]) -> None:
        self._kind = kind
        self.allowed = kind.allowed

    def read(self, value: object) -> T:
        return self._kind.read(value)

    def read_text(self, text: str) -> T:
        return self._kind.read_text(text)

    def write(self, value: T | None) -> str:
        if value is None:
            raise ValueError("a setting that is not set cannot be written")
        return self._kind.write(value)


def quoted(text: str) -> str:
    """A TOML string: controls, quote and backslash escaped."""
    escaped = (
        f"\\u{ord(char):04x}" if char < " " or char == "\x7f" else "\\" * (char in '"\\') + char
        for char in text
    )
    return '"' + "".join(escaped) + '"'
