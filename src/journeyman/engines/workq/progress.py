"""The progress of jobs, as their workers report it, and lines for their logs.

    progress ID        of a leased job: replaces what was said before; its lines are added
    inspect progress   what was said, also after the job has ended

All of this is in memory alone, and bounded: the last MAX_LINES lines of a job, MAX_BYTES in all.
Beyond that the job is forgotten of which nothing was said for the longest time. A restart forgets
everything; what must be kept belongs into the result of a job.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from journeyman.protocols.workq.commands import (
    NoteProgress,
)
from journeyman.protocols.workq.replies import JobProgress, LogLine

if TYPE_CHECKING:
    pass

MAX_BYTES: Final = 64 * 1024 * 1024  # for all jobs, about
MAX_LINES: Final = 200  # for one job
MAX_TEXT: Final = 1_000  # characters of a line or note
JOB_BYTES: Final = 500  # a job without lines takes so many
LINE_BYTES: Final = 150  # a line takes so many besides its characters
CHARACTER_BYTES: Final = 4  # at most
NOTHING: Final = JobProgress()


class ProgressNotes:
    """The notes by job, with the one that was noted last at the end."""

    def __init__(self) -> None:
        self._notes: OrderedDict[bytes, JobProgress] = OrderedDict()
        self.size = 0  # bytes, about

    def progress_of(self, job_id: bytes) -> JobProgress | None:
        return self._notes.get(job_id)

    def add(self, command: NoteProgress, now_ns: int) -> None:
        before, given = self._notes.get(command.job_id, NOTHING), command.notes
        lines = [LogLine(now_ns, text[:MAX_TEXT]) for text in given.log]
        said = before.done, before.total, before.note, before.said_ns
        if (given.done, given.total, given.note) != (None, None, None):
            said = given.done, given.total, (given.note or "")[:MAX_TEXT], now_ns
        self.forget(command.job_id)
        after = JobProgress(*said, (*before.log, *lines)[-MAX_LINES:])
        self._notes[command.job_id] = after
        self.size += _size_of(after)
        while self.size > MAX_BYTES:
            self.forget(next(iter(self._notes)))

    def forget(self, job_id: bytes) -> None:
        before = self._notes.pop(job_id, None)
        if before is not None:
            self.size -= _size_of(before)


def _size_of(notes: JobProgress) -> int:
    texts = len(notes.note) + sum(len(line.text) for line in notes.log)
    return JOB_BYTES + LINE_BYTES * len(notes.log) + CHARACTER_BYTES * texts
