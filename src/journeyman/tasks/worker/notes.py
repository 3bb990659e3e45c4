"""Progress and log lines of running tasks: one command for all that a job says in a moment.

    jm.job().progress, log --from any thread--> words --SEND_S later, or at the end--> progress ID

A note is not repeated: if it is lost with a connection, the next one says more.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable
from typing import Final

from journeyman.protocols.workq.commands import MAX_NOTES_BYTES, WorkerNotes

SEND_S: Final = 0.25
MAX_LINES: Final = 200  # that wait; the server keeps no more
MAX_TEXT: Final = 1_000


class JobWords:
    """The notes of one job; ``send`` gets a whole command, on the event loop."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, job_id: str, send: Callable[[bytes], None]
    ) -> None:
        self._loop = loop
        self._job_id = job_id
        self._send = send
        self._said: WorkerNotes | None = None  # the last word on progress
        self._lines: deque[str] = deque(maxlen=MAX_LINES)
        self._is_due = False

    def note(self, notes: WorkerNotes) -> None:
        """Note what the task says, from any thread."""
        self._lines.extend(line[:MAX_TEXT] for line in notes.log)
        if not notes.log:
            self._said = notes
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon_threadsafe(self._loop.call_later, SEND_S, self.flush)

    def flush(self) -> None:
        """Send what was said since the last time."""
        self._is_due = False
        said, self._said = self._said, None
        while said is not None or self._lines:
            members: dict[str, object] = {}
            if said is not None:
                members = {"done": said.done, "total": said.total}
                members |= {} if said.note is None else {"note": said.note[:MAX_TEXT]}
            said, lines, size = None, list[str](), 0
            while self._lines and size < MAX_NOTES_BYTES // 2:
                lines.append(self._lines.popleft())
                size += len(json.dumps(lines[-1]))
            data = json.dumps(members | {"log": lines}).encode()
            head = f"progress {self._job_id} {len(data)}\r\n".encode()
            self._send(head + data + b"\r\n")
