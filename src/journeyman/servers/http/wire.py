"""Answers as JSON: how ids, times, bytes and names of any value that is answered are written.

    job_id: bytes            "id": the UUID as text
    created_ns: int          "created": RFC 3339 in UTC with nine digits, and "created_ns": as
                             text, because JavaScript rounds numbers of that size
    payload: bytes           "payload" where it is UTF-8, else "payload_base64"
    names                    bytes of a log that are not UTF-8 are written with a backslash

A view that an engine answers with (protocols/workq/replies.py) needs no second type for HTTP:
``encode`` writes it, and ``describe_fields`` makes the schemas of what is written.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, Final

import msgspec

from journeyman.protocols.workq.replies import id_text
from journeyman.units import NS_PER_S

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_NS, _LAST_NS = -62_135_596_800 * NS_PER_S, 253_402_300_799 * NS_PER_S
_PLAIN, _ID, _TIME, _BYTES = range(4)
_TEXT: Final = {"type": "string"}
_TIME_SCHEMA: Final = _TEXT | {"description": "RFC 3339, UTC, with nanoseconds"}
_NS_SCHEMA: Final = _TEXT | {"pattern": "^-?[0-9]+$", "description": "since 1970, as a string"}
_NULL: Final = {"type": "null"}


def encode_json(value: Any) -> bytes:
    return msgspec.json.encode(plain(value))


def plain(value: Any) -> Any:
    """The value as JSON has it: dicts, lists, texts and numbers."""
    if isinstance(value, msgspec.Struct):
        return dict(_members(value))
    if isinstance(value, str):
        return value if value.isascii() else shown_name(value)
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value


def _members(value: msgspec.Struct) -> Iterator[tuple[str, Any]]:
    omits_defaults = value.__struct_config__.omit_defaults
    for field, kind in _kinds(type(value)):
        member, name = getattr(value, field.name), field.encode_name
        if omits_defaults and member == field.default:
            continue
        if kind == _ID:
            yield "id", id_text(member)
        elif kind == _TIME:
            yield name.removesuffix("_ns"), None if member is None else time_text(member)
            yield name, None if member is None else str(member)
        elif kind == _BYTES and member is not None:
            yield from text_or_base64(name, member).items()
        else:
            yield name, plain(member)


@cache
def _kinds(kind: type[msgspec.Struct]) -> list[tuple[Any, int]]:
    fields = msgspec.structs.fields(kind)
    return [(field, _kind_of(field.name, msgspec.json.schema(field.type))) for field in fields]


def _kind_of(name: str, schema: dict[str, Any]) -> int:
    if name == "job_id":
        return _ID
    types = schema.get("anyOf", [schema])
    if name.endswith("_ns") and any(each.get("type") == "integer" for each in types):
        return _TIME
    return _BYTES if any("contentEncoding" in each for each in types) else _PLAIN


def describe_fields(components: dict[str, Any]) -> None:
    """Make schemas of types, as msgspec makes them, those of their JSON."""
    for component in components.values():
        properties: dict[str, Any] = {}
        required: list[str] = []
        for name, schema in component.get("properties", {}).items():
            described = dict(_described(name, schema))
            properties |= described
            is_either_of_two = f"{name}_base64" in described
            if name in component.get("required", ()) and not is_either_of_two:
                required += described
        if properties:
            component |= {"properties": properties, "required": required}


def _described(name: str, schema: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    kind = _kind_of(name, schema)
    may_be_null = _NULL in schema.get("anyOf", [])
    if kind == _ID:
        yield "id", _TEXT | {"format": "uuid"}
    elif kind == _TIME:
        for each, form in ((name.removesuffix("_ns"), _TIME_SCHEMA), (name, _NS_SCHEMA)):
            yield each, {"anyOf": [form, _NULL]} if may_be_null else form
    elif kind == _BYTES:
        yield name, _TEXT | {"description": "where it is UTF-8"}
        yield f"{name}_base64", _TEXT | {"description": "where it is not UTF-8"}
    else:
        yield name, schema


def time_text(unix_ns: int) -> str:
    """RFC 3339, UTC, nine digits; what is outside the calendar is shown as its nearest end."""
    seconds, rest_ns = divmod(min(max(unix_ns, _FIRST_NS), _LAST_NS), NS_PER_S)
    moment = _EPOCH + timedelta(seconds=seconds)
    return f"{moment.replace(tzinfo=None).isoformat()}.{rest_ns:09d}Z"


def text_or_base64(name: str, data: bytes | memoryview) -> dict[str, str]:
    """Bytes under a name that says what they are."""
    try:
        return {name: bytes(data).decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": b64encode(data).decode()}


def shown_name(name: str) -> str:
    """A log of the original may hold names that are not text."""
    return name.encode(errors="surrogateescape").decode(errors="backslashreplace")
