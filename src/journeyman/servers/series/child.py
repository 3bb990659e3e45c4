"""The helper process of figures over time: follows the logs, and answers from what it counted.

The server calls the functions below there (core/helper_process.py). What is new is counted in a
thread of its own; a lock keeps a question from seeing half of a batch.
"""

from __future__ import annotations

from typing import Final

from journeyman.clock import SystemClock
from journeyman.disk import disk_of
from journeyman.errors import JourneymanError
from journeyman.logs.workq.tail import NewRecords
from journeyman.servers.core import following
from journeyman.servers.core.following import Turns, prepare_following, refusing, say
from journeyman.servers.series import answers
from journeyman.servers.series.answers import FoundSeries, FoundSummary, PageOfRows, Wanted
from journeyman.servers.series.cells import RUNS, WORK, family_of
from journeyman.servers.series.files import SeriesFiles
from journeyman.servers.series.follower import AnyLane, runs_lane, work_lane

POLL_S: Final = 1.0  # between two looks at the logs, if nothing is new
start_following, take_messages = following.start_following, following.take_messages
close = following.close


class _Series:
    """The lanes of this process."""

    def __init__(self) -> None:
        self.lanes: dict[str, AnyLane] = {}
        self.turns = Turns()
        self.trouble = ""

    def step(self) -> bool:
        has_more = False
        for lane in self.lanes.values():
            with self.turns:
                try:
                    has_more |= lane.step()
                    self.trouble = ""
                except (OSError, JourneymanError) as error:  # the disk is full, or away
                    if str(error) != self.trouble:
                        self.trouble = str(error)
                        say(f"figures over time wait: {error}")
        return has_more

    def save(self) -> None:
        for lane in self.lanes.values():
            lane.save()


_series = _Series()


@refusing
def open_series(directory: str, work_log: str, runs: str) -> str:
    """``work_log`` and ``runs`` are directories; empty: there is none."""
    disk, clock = disk_of(directory), SystemClock()
    if work_log:
        files = SeriesFiles(disk, f"{directory}/{WORK}")
        _series.lanes[WORK] = work_lane(files, NewRecords(disk_of(work_log), work_log), clock)
    if runs:
        files = SeriesFiles(disk, f"{directory}/{RUNS}")
        _series.lanes[RUNS] = runs_lane(files, disk_of(runs), runs, clock)
    for lane in _series.lanes.values():
        if reason := lane.open():
            say(f"figures are counted again from the log: {reason}")
    prepare_following("journeyman-series", _series.step, POLL_S, _series.save)
    return directory


def get_series(wanted: Wanted, figures: list[str]) -> FoundSeries | None:
    """Return the figures over time. None: what is asked for is not counted here."""
    lane = _series.lanes.get(family_of(wanted.kind))
    if lane is None:
        return None
    with _series.turns:
        return answers.read_series(lane, wanted, figures)


def get_summaries(wanted: Wanted, page: PageOfRows) -> tuple[list[FoundSummary], int]:
    """Return the rows of a page, and how many there are: all of them would stop the server for as
    long as it reads them."""
    return answers.turn_to_page(_summaries(wanted), page)


def get_lately(of_queues: Wanted, of_tasks: Wanted) -> tuple[dict[str, int], dict[str, int]]:
    return answers.count_lately(_summaries(of_queues), _summaries(of_tasks))


def _summaries(wanted: Wanted) -> list[FoundSummary]:
    lane = _series.lanes.get(family_of(wanted.kind))
    if lane is None:
        return []
    with _series.turns:
        return answers.summarize(lane, wanted)
