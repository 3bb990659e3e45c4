"""A cell: what happened to one thing in one minute or hour. A block: all cells of that time.

    key     "work", queue, task       jobs of the work queue; the task is empty if they call none
            "runs", rule, timetable   runs of the schedule; the timetable is empty if there is none

The parts of a key are joined with a zero byte, which no name holds. Figures of a queue, a task, a
rule or a timetable are the sum of the cells that name it, so a token sees exactly those of its own
queues. What is counted follows the views of the lake (spark/views).
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import nlargest
from typing import Final, NamedTuple

from msgspec import Struct, field

from journeyman.servers.series.lengths import Histogram, add_lengths

WORK: Final = "work"
RUNS: Final = "runs"
OTHERS: Final = "(others)"  # the name of what is beyond a bound
MAX_ERRORS: Final = 12  # classes of errors in a cell
MAX_EXAMPLES: Final = 3  # jobs that a cell remembers: the slowest, and the last that failed
COUNTS: Final = (
    *("added", "started", "completed", "failed", "timed_out", "cut_off"),
    *("expired", "deleted", "cancelled"),
)
DEPTHS: Final = ("scheduled", "ready", "running")


class Example(NamedTuple):
    """A job that stands out. ``key``: its id, or the name of a job of the schedule."""

    run_us: int
    ended_ns: int
    key: bytes
    error: str = ""


class Cell(Struct, array_like=True):
    """Counts, depths at the end of the time, lengths, failures by class of error, examples."""

    added: int = 0
    started: int = 0
    completed: int = 0
    failed: int = 0
    timed_out: int = 0
    cut_off: int = 0
    expired: int = 0
    deleted: int = 0
    cancelled: int = 0
    scheduled: int = 0
    ready: int = 0
    running: int = 0
    wait: Histogram = field(default_factory=dict)
    run: Histogram = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)
    slowest: list[Example] = field(default_factory=list)
    latest_failed: list[Example] = field(default_factory=list)

    def note_error(self, error: str, count: int = 1) -> None:
        if error not in self.errors and len(self.errors) >= MAX_ERRORS:
            error = OTHERS
        self.errors[error] = self.errors.get(error, 0) + count

    def note_slow(self, example: Example) -> None:
        slowest = self.slowest
        if len(slowest) < MAX_EXAMPLES or example.run_us > slowest[-1].run_us:
            self.slowest = nlargest(MAX_EXAMPLES, [*slowest, example])

    def note_failed(self, example: Example) -> None:
        self.latest_failed = [*self.latest_failed[1 - MAX_EXAMPLES :], example]

    def add(self, later: Cell) -> None:
        """Take in what happened to the same thing, or to another one of a sum, afterwards."""
        for name in COUNTS:
            setattr(self, name, getattr(self, name) + getattr(later, name))
        add_lengths(self.wait, later.wait)
        add_lengths(self.run, later.run)
        for error, count in later.errors.items():
            self.note_error(error, count)
        self.slowest = nlargest(MAX_EXAMPLES, [*self.slowest, *later.slowest])
        failed = sorted([*self.latest_failed, *later.latest_failed], key=lambda each: each.ended_ns)
        self.latest_failed = failed[-MAX_EXAMPLES:]

    def set_depth(self, depth: Sequence[int]) -> None:
        """How many jobs are scheduled, ready and running."""
        self.scheduled, self.ready, self.running = depth


class CellBlock(Struct, array_like=True):
    """The cells of one minute or hour, by key. ``is_whole``: what has no cell has no jobs."""

    begin_s: int
    is_whole: bool
    cells: dict[str, Cell]


def work_key(queue: str, task: str) -> str:
    return f"{WORK}\0{queue}\0{task}"


def runs_key(rule: str, timetable: str) -> str:
    return f"{RUNS}\0{rule}\0{timetable}"


def key_parts(key: str) -> tuple[str, str, str]:
    """Family, queue or rule, task or timetable."""
    family, name, part = key.split("\0")
    return family, name, part


def family_of(kind: str) -> str:
    """The family of what figures can be asked of."""
    return WORK if kind in ("work", "queue", "task") else RUNS
