"""Values that are made by the million: dataclasses that are frozen for the type checker only.

A frozen dataclass takes three times as long to make, because every field is set by a call. Records
are made for every command and every row of a log, so there it shows. What is decorated with
``value`` has slots, is compared and hashed by its fields, and must not be changed: mypy sees to
that as it does for ``frozen=True``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

T = TypeVar("T")

if TYPE_CHECKING:
    from typing import dataclass_transform

    @dataclass_transform(frozen_default=True)
    def value(cls: type[T]) -> type[T]: ...
else:
    value = dataclass(slots=True, unsafe_hash=True)
