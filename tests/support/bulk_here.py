"""Bulk reading of logs without a process of its own, whose libraries take a second to import.

The same reader sends the same messages, pickled and read back. What is left out is the process:
that one is started, dies and is missed in tests/integration/test_helper_process.py.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from journeyman.servers.core import helper_process
from journeyman.servers.core.helper_process import receive, send


def read_here(reader: str, files: list[str], *arguments: Any) -> Iterator[Any]:
    """In place of ``bulk_loading.read``; a failure of the reader is not hidden."""
    requests, answers = io.BytesIO(), io.BytesIO()
    send(requests, ("pieces_of", (files, *arguments)))
    requests.seek(0)
    helper_process.serve(import_module(reader), requests, answers)
    answers.seek(0)
    outcome, answer = receive(answers)
    while outcome == helper_process.PART:
        yield answer
        outcome, answer = receive(answers)
    assert outcome == helper_process.DONE, answer
