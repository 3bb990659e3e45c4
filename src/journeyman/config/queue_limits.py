"""Limits of fan-out queues and their readers: tables inside the section [kestrel].

    [kestrel.default]                        for every queue and reader
    [kestrel.queue.orders]                   for one queue, and all its readers
    [kestrel.queue.orders.reader.billing]    for one of its readers

What the nearest table does not say is taken from the one above it, key by key. So that a limit can
be lifted again, 0 says that there is none, and an empty name that there is no such queue.

Each table is the value of a setting, so the environment, the command line and `config --show` have
it too, in one line: ``{orders = {max_items = 5, reader = {billing = {max_open = 10}}}}``.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from journeyman.config.kinds import Flag, Integer, Kind, quoted
from journeyman.protocols.kestrel.readers import is_queue_name, is_reader_name

T = TypeVar("T")

_MANY = 10**15
_LONG_MS = 3650 * 24 * 60 * 60 * 1000  # ten years


class WrongKey(ValueError):
    """What is wrong with a value is inside it: ``path`` leads there."""

    def __init__(self, path: tuple[str, ...], value: object, problem: str) -> None:
        super().__init__(problem)
        self.path = path
        self.value = value
        self.problem = problem

    def under(self, name: str) -> WrongKey:
        return WrongKey((name, *self.path), self.value, self.problem)


class _QueueName(Kind[str]):
    allowed = "the name of a queue, made of A-Z a-z 0-9 : _ -, or an empty string"

    def read(self, value: object) -> str:
        if not isinstance(value, str) or (value and not is_queue_name(value)):
            raise ValueError
        return value

    def write(self, value: str) -> str:
        return quoted(value)


READER_KEYS: Mapping[str, Kind[Any]] = {
    "max_items": Integer(0, _MANY),
    "max_bytes": Integer(0, _MANY, "bytes"),
    "drops_oldest": Flag(),
    "max_age_ms": Integer(0, _LONG_MS, "milliseconds"),
    "expire_to": _QueueName(),
    "max_errors": Integer(0, 1_000_000),
    "errors_to": _QueueName(),
    "max_open": Integer(1, 1_000_000),
    "max_expire_sweep": Integer(0, _MANY),
}
QUEUE_KEYS: Mapping[str, Kind[Any]] = {
    "max_item_bytes": Integer(0, 16 * 1024 * 1024, "bytes"),
    "max_queue_age_ms": Integer(0, _LONG_MS, "milliseconds"),
    **READER_KEYS,
}
_READER = "reader"


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """What the table of a queue says, and the tables of readers in it. Only what was given."""

    queue: str = ""
    given: Mapping[str, Any] = field(default_factory=dict)
    readers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


class QueueTable(Kind[QueueLimits]):
    """[kestrel.default]: no reader has a table of its own."""

    allowed = "a table of limits, such as {max_items = 1000}"

    def read(self, value: object) -> QueueLimits:
        return QueueLimits(given=_read_keys(value, QUEUE_KEYS))

    def read_text(self, text: str) -> QueueLimits:
        return self.read(_parsed(text))

    def write(self, value: QueueLimits) -> str:
        return _write_table(_written(value.given))


class QueueTables(Kind[tuple[QueueLimits, ...]]):
    """[kestrel.queue.*]: by the names of the queues."""

    allowed = "tables of limits by queue, such as {orders = {max_items = 1000}}"

    def read(self, value: object) -> tuple[QueueLimits, ...]:
        return tuple(_each(value, is_queue_name, _read_queue).values())

    def read_text(self, text: str) -> tuple[QueueLimits, ...]:
        return self.read(_parsed(text))

    def write(self, value: tuple[QueueLimits, ...]) -> str:
        queues = {}
        for limits in value:
            table = _written(limits.given)
            readers = {name: _write_table(_written(keys)) for name, keys in limits.readers.items()}
            if readers:
                table[_READER] = _write_table(readers)
            queues[limits.queue] = _write_table(table)
        return _write_table(queues)


# -- reading -------------------------------------------------------------------------------------


def _read_queue(name: str, value: object) -> QueueLimits:
    table = dict(_items(value))
    try:
        readers = _each(table.pop(_READER, {}), is_reader_name, _read_reader)
    except WrongKey as error:
        raise error.under(_READER) from None
    return QueueLimits(name, _read_keys(table, QUEUE_KEYS), readers)


def _read_reader(_: str, value: object) -> Mapping[str, Any]:
    return _read_keys(value, READER_KEYS)


def _each(
    value: object, is_name: Callable[[str], bool], read: Callable[[str, object], T]
) -> dict[str, T]:
    """A table of tables, by names of queues or readers."""
    found: dict[str, T] = {}
    for name, table in _items(value):
        if not is_name(name):
            raise WrongKey((name,), table, "expected another name: this one cannot be")
        try:
            found[name] = read(name, table)
        except WrongKey as error:
            raise error.under(name) from None
    return found


def _read_keys(value: object, known: Mapping[str, Kind[Any]]) -> Mapping[str, Any]:
    given: dict[str, Any] = {}
    for key, found in _items(value):
        kind = known.get(key)
        if kind is None:
            raise WrongKey((key,), found, f"unknown key; allowed are {', '.join(known)}")
        try:
            given[key] = kind.read(found)
        except ValueError:
            raise WrongKey((key,), found, f"expected {kind.allowed}") from None
    return given


def _items(value: object) -> list[tuple[str, object]]:
    if not isinstance(value, dict):
        raise WrongKey((), value, "expected a table")
    return list(value.items())


def _parsed(text: str) -> object:
    try:
        document = tomllib.loads(f"value = {text}")
    except ValueError:
        raise ValueError from None  # its text would speak of a line and column
    return document["value"]


# -- writing -------------------------------------------------------------------------------------


def _written(given: Mapping[str, Any]) -> dict[str, str]:
    return {key: QUEUE_KEYS[key].write(value) for key, value in given.items()}


def _write_table(values: Mapping[str, str]) -> str:
    return "{" + ", ".join(f"{_key(key)} = {text}" for key, text in values.items()) + "}"


def _key(key: str) -> str:
    bare = key.isascii() and key.replace("_", "").replace("-", "").isalnum()
    return key if bare else quoted(key)
