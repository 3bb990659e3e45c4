r"""Payloads and results of tasks are read for the task, its arguments, the class of an error.

    payload   {"v": 1, "task": "shop.send_mail", ...}       see tasks/envelope.py
    result    {"error": "ValueError", ...}

Names are looked for in the first bytes alone, with one expression, so that a bulk reader finds the
same ones in columns of blocks. A name that needs an escape in JSON, or has other characters than
printable ASCII, is none.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

NAME_BYTES: Final = 240  # a name must end within so many
TASK: Final = r'^\{"v":\s?[0-9]+,\s?"task":\s?"(?P<name>[ -!#-\[\]-~]{1,200})"'
ERROR: Final = r'^\{"error":\s?"(?P<name>[ -!#-\[\]-~]{1,200})"'

MAX_READ_BYTES: Final = 256 * 1024  # longer payloads are not read as calls

_task = re.compile(TASK.encode()).match
_error = re.compile(ERROR.encode()).match


def task_of(payload: bytes) -> str:
    """The task that a payload calls; empty: it is not the call of a task."""
    found = _task(payload, 0, NAME_BYTES)
    return "" if found is None else found[1].decode("ascii")


def error_class_of(result: bytes) -> str:
    """The class of the error in the result of a job that failed; empty: the worker wrote something
    else."""
    found = _error(result, 0, NAME_BYTES)
    return "" if found is None else found[1].decode("ascii")


class NextCall(msgspec.Struct):
    """A call that follows in a chain."""

    task: str
    id: str = ""


class TaskCall(msgspec.Struct):
    """The payload of a task's job (docs/tasks.md), as far as it is shown."""

    v: int
    task: str
    args: list[msgspec.Raw]
    kwargs: dict[str, msgspec.Raw]
    then: list[NextCall] = []
    gather: list[str] = []
    follows: str = ""

    @property
    def arguments(self) -> str:
        """The arguments as they are written in a call; their values are JSON."""
        given = [_text(value) for value in self.args]
        given += [f"{name}={_text(value)}" for name, value in self.kwargs.items()]
        return ", ".join(given)


_CALL: Final = msgspec.json.Decoder(TaskCall)


def call_of(payload: bytes | None) -> TaskCall | None:
    """Read the call of a task from a payload. None: it is not one."""
    if payload is None or not payload.startswith(b"{") or len(payload) > MAX_READ_BYTES:
        return None
    try:
        return _CALL.decode(payload)
    except (msgspec.DecodeError, RecursionError, ValueError):
        return None


def _text(value: msgspec.Raw) -> str:
    return bytes(value).decode("utf-8", "replace")
