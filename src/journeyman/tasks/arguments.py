"""Arguments and results that JSON lacks, by their annotations: dataclasses, enums, sets, models.

    def ship(order: Order, colors: set[Color]) -> Receipt

    send     Order(7)  --pack-->   {"number": 7}     refused if it does not fit the annotation
    worker   {"number": 7} --unpack--> Order(7)

Of a parameter without such a type nothing is changed. The types are those of msgspec: dataclasses,
attrs classes, Structs, enums, sets, named tuples, and containers and unions of them; and models of
pydantic, which check themselves. What is packed is plain JSON that any language can read; packing
it once more changes nothing.
"""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from functools import cached_property
from pathlib import PurePath
from typing import Any, get_args, get_type_hints

import msgspec

_SETS = (set, frozenset)
_RETURN = "return"


class Arguments:
    """The annotations of one function."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self._name = name
        self._function = function
        self._parameters = list(inspect.signature(function).parameters.values())

    @cached_property
    def _types(self) -> dict[str, Any]:
        """The types of converted parameters and of the result. They are read at the first use: an
        annotation may name a class that is defined further down."""
        try:
            hints = get_type_hints(self._function)
        except (NameError, TypeError, AttributeError):  # only for type checkers
            return {}
        hints = {name: self.hint_of_one(hint) for name, hint in hints.items()}
        return {name: hint for name, hint in hints.items() if _is_converted(hint)}

    def hint_of_one(self, hint: Any) -> Any:
        """The type in one job of what the function annotates so: the same, except in batches."""
        return hint

    def pack(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], *, begins_at: int = 0
    ) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """Return the arguments as they travel. ``begins_at`` 1: the first argument comes later.
        Raises TypeError."""
        return self._converted(args, kwargs, begins_at, self._packed)

    def unpack(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], *, begins_at: int = 0
    ) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """Return the arguments as the function takes them; those before ``begins_at`` stay. Raises
        TypeError."""
        first, rest = tuple(args[:begins_at]), args[begins_at:]
        positional, named = self._converted(rest, kwargs, begins_at, self._unpacked)
        return (*first, *positional), named

    def pack_result(self, value: Any) -> Any:
        """Raises TypeError."""
        return self._packed(_RETURN, value) if _RETURN in self._types else value

    def unpack_result(self, value: Any) -> Any:
        """Raises TypeError."""
        return self._unpacked(_RETURN, value) if _RETURN in self._types else value

    def _converted(
        self,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        begins_at: int,
        convert: Callable[[str, Any], Any],
    ) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        types = self._types
        if not types or types.keys() == {_RETURN}:
            return tuple(args), kwargs
        names = self._positions(begins_at)
        positional = [convert(next(names, ""), value) for value in args]
        return tuple(positional), {
            name: convert(self._keyword(name), value) for name, value in kwargs.items()
        }

    def _positions(self, begins_at: int) -> Iterator[str]:
        """The names of the parameters that positional arguments are for."""
        for parameter in self._parameters[begins_at:]:
            if parameter.kind is parameter.VAR_POSITIONAL:
                while True:
                    yield parameter.name
            if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
                yield parameter.name

    def _keyword(self, name: str) -> str:
        known = [each.name for each in self._parameters]
        others = [each.name for each in self._parameters if each.kind is each.VAR_KEYWORD]
        return name if name in known or not others else others[0]

    def _packed(self, name: str, value: Any) -> Any:
        if name not in self._types:
            return value
        try:
            packed = _builtins(value)
        except (TypeError, ValueError) as error:
            raise TypeError(f"{self._name}: {_called(name)}: {error}") from None
        self._unpacked(name, packed)
        return packed

    def _unpacked(self, name: str, value: Any) -> Any:
        if name not in self._types:
            return value
        try:
            return msgspec.convert(value, self._types[name], dec_hook=_read, str_keys=True)
        except (TypeError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise TypeError(f"{self._name}: {_called(name)}: {reason}") from None


def _builtins(value: Any) -> Any:
    """Sets in the order of their members, so that equal arguments of a unique job are the same."""
    try:
        return msgspec.to_builtins(value, str_keys=True, enc_hook=_written, order="deterministic")
    except TypeError:  # members of an enum have no order
        plain = sorted(value, key=str) if isinstance(value, _SETS) else value
        return msgspec.to_builtins(plain, str_keys=True, enc_hook=_written)


def _called(name: str) -> str:
    return "the result" if name == _RETURN else f"argument {name!r}"


def _is_converted(hint: Any, depth: int = 0) -> bool:
    """Return whether a type is or contains one that JSON lacks and msgspec or pydantic knows."""
    if any(_is_converted(each, depth + 1) for each in _parts(hint) if depth < 10):
        return True
    if getattr(hint, "__origin__", hint) in _SETS:
        return True
    return isinstance(hint, type) and (
        issubclass(hint, enum.Enum | msgspec.Struct)
        or is_dataclass(hint)
        or hasattr(hint, "__attrs_attrs__")
        or hasattr(hint, "model_validate")
        or (issubclass(hint, tuple) and hasattr(hint, "_fields"))
    )


def _parts(hint: Any) -> Iterable[Any]:
    return (each for each in get_args(hint) if each is not Ellipsis)


def _written(value: Any) -> Any:
    """Return a value that msgspec does not know as one that it knows."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if isinstance(value, PurePath):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def _read(kind: Any, value: Any) -> Any:
    if hasattr(kind, "model_validate"):
        return kind.model_validate(value)
    if isinstance(kind, type) and issubclass(kind, PurePath) and isinstance(value, str):
        return kind(value)
    raise TypeError(f"{getattr(kind, '__name__', kind)} cannot be read from JSON")
