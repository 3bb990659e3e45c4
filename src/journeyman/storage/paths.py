"""Where a store is: ``storage.path`` as it is written -> a directory, or an address.

~/x, ~//x        $HOME/x          $HOME, $HOME/x     the home directory, or x in it
anything else    as it is         (also ~ alone, ~someone, and $HOMEX)
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from journeyman.errors import UsageError


def expanded(path: str, environ: Mapping[str, str] | None = None) -> str:
    """The path with its home directory put in. Raises UsageError if there is none."""
    environ = os.environ if environ is None else environ
    if path.startswith("~/"):
        while path.startswith("~/"):
            path = path[2:].lstrip("/")
        return os.path.join(_home(environ), path)
    if path == "$HOME" or path.startswith("$HOME/"):
        return os.path.join(_home(environ), path[len("$HOME") :].lstrip("/"))
    return path


def _home(environ: Mapping[str, str]) -> str:
    home = environ.get("HOME")
    if not home:
        raise UsageError("cannot resolve storage.path because HOME is not set")
    return home
