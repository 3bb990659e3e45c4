"""Public names of a package that are imported at their first use.

A command that needs one client, or one constant, then does not pay for all of the package. Modules
are asked in the order given: those that are cheap, or that most programs need, come first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any


def lazy_names(package: str, names: Sequence[str], modules: Sequence[str]) -> Callable[[str], Any]:
    """The ``__getattr__`` of a package whose ``names`` stand in these modules."""

    def find(name: str) -> Any:
        if name in names:
            for module in modules:
                found = getattr(import_module(module), name, None)
                if found is not None:
                    return found
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return find
