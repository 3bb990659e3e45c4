"""The payload of a task's job and its result: JSON that any language can read.

    {"v": 1, "task": "shop.send_mail", "args": ["a@b.c"], "kwargs": {"subject": "hi"},
     "trace": {"traceparent": "00-..."}, "then": [...]}

    result    of a completed job: the returned value, by the codec of the app
    failure   of a failed job: {"error": "ValueError", "message": "...", "traceback": "..."}

``v``, ``task``, ``args`` and ``kwargs`` are always there. ``trace`` carries the context of the
sender; ``then`` are the calls that follow, ``gather``, ``even_failed`` and ``single`` are about the
jobs before (flows.py); ``follows`` names the job before in a chain; ``send`` makes the payloads of
two sends of a unique job differ. Unknown members are ignored. The codec of an app writes args,
kwargs and results; nothing is pickled: a payload never runs code.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path, PurePath
from typing import Any, NamedTuple, Protocol
from uuid import UUID

from journeyman.errors import JourneymanError, UsageError

VERSION = 1
MAX_BYTES = 1_048_576  # the limit of a payload, and of a result
MAX_CALLS = 1000  # calls of a group with a following task; the server allows no more
_SHOWN_TRACEBACK = 20_000  # characters, from its end


class UnreadableJob(JourneymanError):
    """The payload of a job is not an envelope that this worker understands."""


class Codec(Protocol):
    """Converts values to bytes and back; replace it to support other types."""

    def dumps(self, value: Any) -> bytes:
        """Raises TypeError or ValueError for values it cannot write."""
        ...

    def loads(self, data: bytes) -> Any: ...


class JsonCodec:
    """JSON, UTF-8, compact; NaN is refused. Some types that JSON lacks are written as an object

        {"$type": "datetime", "value": "2026-11-17T02:00:00+01:00"}

    and read as what they were: see ``_KINDS``. None of them runs code or imports anything. A dict
    of just these two members travels as its items: ``{"$type": "dict", "value": [[..], [..]]}``.
    """

    def __init__(self) -> None:
        self._encode = json.JSONEncoder(
            separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=_tagged
        ).encode

    def dumps(self, value: Any) -> bytes:
        data = self._encode(value).encode()
        return self._encode(_escaped(value)).encode() if _MARK in data else data

    def loads(self, data: bytes) -> Any:
        return json.loads(data, object_hook=_untagged if _MARK in data else None)


class _Kind(NamedTuple):
    """A type that JSON lacks: its name in the JSON, and how its text is written and read."""

    name: str
    of: type
    write: Callable[[Any], str] = str
    read: Callable[[str], Any] | None = None  # None: the type itself


_MARK = b'"$type"'
_MICROSECOND = timedelta(microseconds=1)
_KINDS = (
    _Kind("datetime", datetime, datetime.isoformat, datetime.fromisoformat),  # before date
    _Kind("date", date, date.isoformat, date.fromisoformat),
    _Kind("time", time, time.isoformat, time.fromisoformat),
    _Kind(
        "timedelta_us",
        timedelta,
        lambda delta: str(delta // _MICROSECOND),
        lambda text: int(text) * _MICROSECOND,
    ),
    _Kind("decimal", Decimal),
    _Kind("uuid", UUID),
    _Kind("path", PurePath, str, Path),
    _Kind(
        "bytes",
        bytes,
        lambda data: b64encode(data).decode(),
        lambda text: b64decode(text, validate=True),
    ),
)
_READ = {kind.name: kind.read or kind.of for kind in _KINDS}
_DICT = "dict"  # one that would be taken for one of these


def _escaped(value: Any) -> Any:
    if isinstance(value, dict):
        members = {key: _escaped(each) for key, each in value.items()}
        is_like_a_tag = members.keys() == {"$type", "value"}
        return {"$type": _DICT, "value": [*members.items()]} if is_like_a_tag else members
    return [_escaped(each) for each in value] if isinstance(value, list | tuple) else value


def _tagged(value: Any) -> dict[str, str]:
    for kind in _KINDS:
        if isinstance(value, kind.of):
            return {"$type": kind.name, "value": kind.write(value)}
    hint = " (annotate the parameter with it)" if is_dataclass(value) else ""
    raise TypeError(f"{type(value).__name__} has no form in JSON{hint}")


def _untagged(members: dict[str, Any]) -> Any:
    match members:
        case {"$type": str(name), "value": str(text), **others} if not others and name in _READ:
            try:
                return _READ[name](text)
            except (ValueError, ArithmeticError) as error:  # some hold all of the text
                raise ValueError(f"not a {name}: {text[:60]!r}") from error
        case {"$type": "dict", "value": [[str(one), first], [str(other), second]], **others} if (
            not others and {one, other} == {"$type", "value"}
        ):
            return {one: first, other: second}
    return members


@dataclass(slots=True)
class Envelope:
    """One call of a task, as it travels."""

    task: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    trace: Mapping[str, str] = field(default_factory=dict)
    then: tuple[Any, ...] = ()  # see flows.py
    gather: tuple[str, ...] = ()
    even_failed: bool = False
    single: bool = False  # the result of the job before, not a list
    send_id: str = ""  # marks a send of a unique job that is repeated after a lost reply
    follows: str = ""  # the job before it in a chain, for people who follow the chain

    def encode(self, codec: Codec) -> bytes:
        """Raises UsageError that names the task and what cannot be written."""
        members: dict[str, Any] = {
            "v": VERSION,
            "task": self.task,
            "args": self.args,
            "kwargs": dict(self.kwargs),
        }
        if self.trace:
            members["trace"] = dict(self.trace)
        if self.then:
            members["then"] = self.then
        if self.gather:
            members["gather"] = self.gather
        if self.even_failed:
            members["even_failed"] = True
        if self.single:
            members["single"] = True
        if self.send_id:
            members["send"] = self.send_id
        if self.follows:
            members["follows"] = self.follows
        data = written(codec, members, f"the arguments of {self.task}")
        if len(data) > MAX_BYTES:
            raise UsageError(
                f"the arguments of {self.task} take {len(data)} bytes, at most {MAX_BYTES} fit;"
                " store them elsewhere and pass a reference"
            )
        return data

    @classmethod
    def decode(cls, data: bytes, codec: Codec) -> Envelope:
        """Raises UnreadableJob."""
        try:
            members = codec.loads(data)
            version = members["v"]
            # Python takes true for 1; other languages do not.
            is_known = type(version) is int and version == VERSION
            found = cls(
                _checked(str, members["task"]),
                tuple(_checked(_LISTS, members["args"])),
                _checked(dict, members["kwargs"]),
                _checked(dict, members.get("trace") or {}),
                tuple(_follower(each) for each in _checked(_LISTS, members.get("then") or ())),
                _ids(_checked(_LISTS, members.get("gather") or ())),
                members.get("even_failed") is True,
                members.get("single") is True,
            )
        except (*_UNREADABLE, AttributeError, RecursionError) as error:
            start = data[:60].decode("utf-8", "replace")
            raise UnreadableJob(
                f"not a task envelope: {start!r} ({type(error).__name__}: {error})"
            ) from None
        if not is_known:
            raise UnreadableJob(f"envelope version {version!r}; this worker reads {VERSION}")
        return found


_LISTS = (list, tuple)  # as a codec likes
_UNREADABLE = (ValueError, TypeError, KeyError, ArithmeticError)  # the last: of a signaling NaN


def _checked(kind: type | tuple[type, ...], value: Any) -> Any:
    if not isinstance(value, kind):
        name = "list" if isinstance(kind, tuple) else kind.__name__
        raise TypeError(f"there must be a {name}, not {repr(value)[:60]}")
    return value


def _ids(values: list[Any]) -> tuple[str, ...]:
    """Return the ids of a group, whose results are in memory together."""
    if len(values) > MAX_CALLS:
        raise ValueError(f"it follows {len(values)} jobs, at most {MAX_CALLS} are possible")
    return tuple(str(UUID(each)) for each in values)


def _follower(members: Any) -> dict[str, Any]:
    """A call that follows, before anything is run: it could not be added afterwards."""
    _checked(str, _checked(dict, members)["task"])
    _checked(_LISTS, members.get("args", ()))
    _checked(dict, members.get("kwargs", {}))
    _checked(str, members.get("queue", ""))
    if "id" in members:
        UUID(_checked(str, members["id"]))
    found: dict[str, Any] = members
    return found


def written(codec: Codec, value: Any, what: str) -> bytes:
    """Encode, or say in one line what cannot be. Raises UsageError."""
    try:
        return codec.dumps(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(
            f"cannot encode {what}: {error}; pass values that JSON has, or give App(codec=...)"
        ) from None


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an attempt failed, as text, because exceptions cannot be sent."""

    error: str
    message: str
    traceback: str = ""

    def encode(self) -> bytes:
        members = {"error": self.error, "message": self.message[:_SHOWN_TRACEBACK]}
        if self.traceback:
            members["traceback"] = self.traceback[-_SHOWN_TRACEBACK:]
        return json.dumps(members, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> Failure:
        """Read a failure, also of a worker that writes something else."""
        if not data:
            return cls("WorkerLost", "the worker died or hung, and no attempt is left")
        try:
            members = json.loads(data)
            texts = members["error"], members["message"], members.get("traceback", "")
            return cls(*(_checked(str, each) for each in texts))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return cls("Failed", data.decode("utf-8", "replace"))

    def __str__(self) -> str:
        return f"{self.error}: {self.message}" if self.message else self.error


CANCELLED = Failure("Cancelled", "a client cancelled the job")  # as the server writes it
