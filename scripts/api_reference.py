"""Make the page "API reference" of the site: every public name, its signature and its docstring.

The site's hooks call it, so that the page is never older than the source. The public packages are
those of docs/python-api.md; a name is public if it is in ``__all__``.
Clients for asyncio are not repeated: they have the calls of the blocking ones, awaited.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from enum import Enum
from types import UnionType
from typing import Any

PACKAGES = ("journeyman", "journeyman.client", "journeyman.spark", "journeyman.testing")
HEAD = """# API reference

Generated from the source. [python-api.md](python-api.md) gives an
overview, [tasks.md](tasks.md) and [client.md](client.md) explain how to use it.
"""
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def page() -> str:
    parts = [HEAD]
    for package in PACKAGES:
        module = importlib.import_module(package)
        parts.append(f"\n## `{package}`\n")
        for name in sorted(module.__all__, key=lambda each: (each.lower(), each)):
            parts += _entry(name, getattr(module, name))
    return "\n".join(parts).rstrip() + "\n"


def _entry(name: str, value: Any) -> Iterator[str]:
    is_class = inspect.isclass(value)
    yield f"### `{name}`\n"
    if isinstance(value, str):
        yield "A string.\n"
    elif isinstance(value, UnionType):
        yield "One of " + ", ".join(f"`{each.__name__}`" for each in value.__args__) + ".\n"
    elif is_class and issubclass(value, Enum):
        yield f"{_text(value)} " + ", ".join(f"`{each.name}`" for each in value) + "\n"
    elif is_class and issubclass(value, BaseException):
        yield f"{_text(value)} A `{value.__base__.__name__}`.\n"
    else:
        signature, text = _signature(name, value), _text(value)
        yield "\n\n".join(filter(None, (signature and f"`{signature}`", text))) + "\n"
        if is_class and name.startswith("Async"):
            yield f"The calls of `{name.removeprefix('Async')}`, to be awaited.\n"
        elif is_class and (members := sorted(_members(value))):
            yield "\n".join(_item(each, member) for each, member in members) + "\n"


def _item(name: str, member: Any) -> str:
    shown = name if isinstance(member, property) else _signature(name, member)
    text = " ".join(_text(member).split())
    return f"- `{shown}`" + (f": {text}" if text else "")


def _members(value: type) -> Iterator[tuple[str, Any]]:
    """Public methods and properties, also inherited ones of this project."""
    if issubclass(value, BaseException):
        return
    for name, member in inspect.getmembers_static(value):
        owner = next((c for c in value.__mro__ if name in vars(c)), value)
        is_ours = owner.__module__.partition(".")[0] == "journeyman"
        inner = member.__func__ if isinstance(member, classmethod | staticmethod) else member
        if name.startswith("_") or not is_ours:
            continue
        if inspect.isfunction(inner) or isinstance(inner, property):
            yield name, inner


class _Plain(str):
    """An annotation that is shown without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _signature(name: str, value: Any) -> str:
    """The call as it is written; "" for what has none."""
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return ""
    parameters = [
        each.replace(annotation=_plain(each.annotation))
        for each in signature.parameters.values()
        if each.name not in ("self", "cls")
    ]
    returns = _plain(signature.return_annotation)
    if inspect.isclass(value) or str(returns) == "None":
        returns = inspect.Signature.empty
    shown = str(signature.replace(parameters=parameters, return_annotation=returns))
    return name + _ADDRESS.sub("", shown).replace("(/, ", "(").replace("(/)", "()")


def _plain(annotation: Any) -> Any:
    return _Plain(annotation) if isinstance(annotation, str) else annotation


def _text(value: Any) -> str:
    """The first paragraphs of a docstring, up to code; dataclasses may have none of their own."""
    paragraphs: list[str] = []
    written = inspect.getdoc(value) or ""
    if written.startswith(f"{getattr(value, '__name__', '')}("):
        return ""
    for paragraph in written.split("\n\n"):
        if paragraph.startswith("    "):
            break
        paragraphs.append(" ".join(paragraph.split()))
    return "\n\n".join(paragraphs).replace("``", "`")
