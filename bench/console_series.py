"""What do figures over time cost? Two days of minutes of many queues, on disk and in memory.

    python -m bench.console_series DIRECTORY [--minutes 2880] [--queues 1000] [--busy 50]

Records of a work queue are made up and counted as the helper process counts them. Printed as JSON:
bytes on disk, memory of the process beyond what it had before the first record, records a second
of processor time, and the time to answer a chart of a day and the rows of all queues.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from journeyman.disk import disk_of
from journeyman.formats.timed_frame import Instant
from journeyman.formats.workq import Command, JobAdded, JobEvent, JobFinished, Record
from journeyman.logs.workq.tail import TailPlace
from journeyman.servers.series.answers import Wanted, read_series, summarize
from journeyman.servers.series.counting import WorkCounts
from journeyman.servers.series.files import SeriesFiles
from journeyman.servers.series.follower import Lane
from journeyman.testing import ManualClock
from journeyman.units import DAY_S, MINUTE_S, NS_PER_S

BEGIN_S = 1_795_000_000 // MINUTE_S * MINUTE_S
JOBS = 3  # of a busy queue in a minute
BATCH = 5_000


def records(minutes: int, queues: int, busy: int) -> Iterator[Record]:
    """In each minute so many of the queues have a few jobs; one in ten fails."""
    chance = random.Random(1)
    number = 0
    for minute in range(minutes):
        begin_ns = (BEGIN_S + minute * MINUTE_S) * NS_PER_S
        for queue in chance.sample(range(queues), busy):
            for job in range(JOBS):
                number += 1
                job_id = number.to_bytes(16)
                begun = Instant(begin_ns + job * NS_PER_S + chance.randrange(NS_PER_S))
                ended = Instant(begun.unix_ns + chance.randrange(50 * NS_PER_S))
                added = Instant(begin_ns + job * NS_PER_S)
                payload = b'{"v":1,"task":"shop.task_%d","args":[],"kwargs":{}}' % (queue % 50)
                common = (f"queue-{queue}", 60_000, 86_400_000, 0, 0, 0, payload, None, added)
                yield JobAdded(added, job_id, *common)
                yield JobEvent(begun, job_id, Command.START_ATTEMPT)
                if chance.random() < 0.1:
                    result = b'{"error":"ValueError","message":"no"}'
                    yield JobFinished(ended, job_id, Command.FAIL, result)
                else:
                    yield JobFinished(ended, job_id, Command.COMPLETE, b"1")


class MadeUp:
    """Records that are made when they are asked for."""

    def __init__(self, rows: Iterator[Record]) -> None:
        self._rows = rows
        self._read = 0

    def read(self, place: TailPlace) -> tuple[Sequence[Record], TailPlace]:  # noqa: ARG002
        some = list(islice(self._rows, BATCH))
        self._read += len(some)
        return some, TailPlace(1, self._read)

    def time_ns(self, record: Record) -> int:
        return record.logged.unix_ns


def anonymous_bytes() -> int:
    found = re.search(r"RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def measure(directory: Path, minutes: int, queues: int, busy: int) -> dict[str, float]:
    end_s = BEGIN_S + minutes * MINUTE_S
    files = SeriesFiles(disk_of(str(directory)), str(directory))
    source = MadeUp(records(minutes, queues, busy))
    lane = Lane(files, source, ManualClock(end_s * NS_PER_S), TailPlace(), WorkCounts)
    lane.open()
    before, begun = anonymous_bytes(), time.process_time()
    while lane.step():
        pass
    counted_s = time.process_time() - begun
    lane.save()
    most = anonymous_bytes()
    begun = time.process_time()
    day = Wanted("task", "shop.task_7", "", end_s - DAY_S, end_s, 600)
    read_series(lane, day, ["completed", "run_p99", "ready"])
    chart_s = time.process_time() - begun
    begun = time.process_time()
    rows = summarize(lane, Wanted("queue", "", "", end_s - 3600, end_s, 0))
    rows_s = time.process_time() - begun
    return {
        "disk_mb": round(sum(path.stat().st_size for path in directory.iterdir()) / 1e6, 1),
        "memory_mb": round((most - before) / 1e6, 1),
        "records_per_s": round(minutes * busy * JOBS * 3 / counted_s),
        "chart_of_a_day_s": round(chart_s, 3),
        "rows_of_an_hour_s": round(rows_s, 3),
        "rows": len(rows),
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="The cost of figures over time.")
    parser.add_argument("directory", type=Path)
    for name, usual in (("minutes", 2880), ("queues", 1000), ("busy", 50)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    options = parser.parse_args(arguments)
    options.directory.mkdir(parents=True, exist_ok=True)
    print(json.dumps(measure(options.directory, options.minutes, options.queues, options.busy)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
