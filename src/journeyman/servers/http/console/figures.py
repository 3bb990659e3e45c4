"""The last hour of the server's figures, for the lines of the overview.

A sample every SAMPLE_S, also without viewers: a few numbers, of which MOST are kept. Rates
are what the counters gained between two samples.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Final

from journeyman.servers.core.upkeep import delay_to_second
from journeyman.servers.http.errors import ApiError
from journeyman.servers.http.queue_rates import QueueRates
from journeyman.servers.http.v1 import values
from journeyman.servers.http.v1.server import ServerRoutes

SAMPLE_S: Final = 6.0
MOST: Final = 600
WIDTH, HEIGHT = 240.0, 44.0


@dataclass(frozen=True, slots=True)
class Sample:
    time_s: float
    values: dict[str, float]


class FigureHistory:
    def __init__(self, server: ServerRoutes, rates: QueueRates) -> None:
        self._server = server
        self._rates = rates
        self.samples: deque[Sample] = deque(maxlen=MOST)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                self.note(await self._server.measure())
                self._rates.sample(asyncio.get_running_loop().time())
            except ApiError:
                return  # the server is stopping
            await asyncio.sleep(delay_to_second(loop, SAMPLE_S))

    def note(self, figures: values.Figures) -> None:
        noted = series_of(figures)
        self.samples.append(Sample(asyncio.get_running_loop().time(), noted))

    def series(self, name: str) -> list[float]:
        return [sample.values.get(name, 0.0) for sample in self.samples]

    def line(self, name: str) -> str:
        """The points of a polyline in a box of WIDTH x HEIGHT; empty with fewer than two."""
        numbers = self.series(name)
        if len(numbers) < 2:
            return ""
        most, step = max(*numbers, 1e-9), WIDTH / (len(numbers) - 1)
        points = (
            f"{index * step:.1f},{HEIGHT - 2 - (HEIGHT - 4) * number / most:.1f}"
            for index, number in enumerate(numbers)
        )
        return " ".join(points)


def series_of(figures: values.Figures) -> dict[str, float]:
    """The numbers that lines are drawn of."""
    work, fan_out = figures.work or {}, figures.fan_out or {}
    return {
        "schedule_rate": figures.rates.get("schedule", 0.0),
        "run_rate": figures.rates.get("runs", 0.0),
        "work_rate": figures.rates.get("work", 0.0),
        "fan_out_rate": figures.rates.get("fan_out", 0.0),
        "planned": figures.schedule["jobs_planned"],
        "failed": figures.schedule["jobs_failed"],
        "ready": work.get("ready", 0),
        "leased": work.get("leased", 0),
        "dead": work.get("failed", 0),
        "lag": fan_out.get("items", 0),
        "log_bytes": sum(each["log_bytes"] for each in figures.disk.values()),
    }
