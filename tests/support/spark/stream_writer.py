"""A program that writes three logs without pause, and a ledger of what it wrote.

    python -m tests.support.spark.stream_writer DIRECTORY

It appends to a ztick log, a workq log and a kestrel queue under DIRECTORY until it is told to stop.
On stdin ``compact`` compacts the ztick log, ``stop`` ends it; a line on stdout says when that is
done, and a first one when all logs are there. The ledger is the keys of each log in the order
written, one file each.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from uuid import UUID

from journeyman.clock import SystemClock
from journeyman.formats.timed_frame import Instant
from journeyman.formats.workq import CODEC, Command, JobAdded
from journeyman.formats.ztick import JobRemoved, JobSet, Record, Status
from tests.support.spark.stream_driver import open_kestrel, open_workq, open_ztick

BATCH = 20
PAUSE_S = 0.1
SEGMENT_BYTES = 10_000


def main() -> None:
    directory = Path(sys.argv[1])
    stopped, clock = threading.Event(), SystemClock()
    with (
        open_ztick(directory / "ztick" / "logfile") as schedule,
        open_workq(directory / "workq", SEGMENT_BYTES) as queue,
        open_kestrel(directory / "kestrel", segment_bytes=SEGMENT_BYTES) as journal,
    ):
        writing = threading.Lock()
        ledger: dict[str, list[str]] = {"ztick": [], "workq": [], "kestrel": []}

        def write() -> None:
            number, is_last = 0, False
            # One more batch after the end, so that the newest file of each log has records.
            while not is_last:
                is_last = stopped.wait(PAUSE_S)
                with writing:
                    records = [_ztick_record(n) for n in range(number, number + BATCH)]
                    schedule.append(records)
                    jobs = [_workq_record(n, clock) for n in range(number, number + BATCH)]
                    queue.append(jobs)
                    for n in range(number, number + BATCH):
                        journal.put(b"item %d" % n)
                ledger["ztick"] += [record.identifier for record in records]
                ledger["workq"] += [str(UUID(bytes=job.job_id)) for job in jobs]
                ledger["kestrel"] += [str(n + 1) for n in range(number, number + BATCH)]
                number += BATCH

        writer = threading.Thread(target=write)
        writer.start()
        print("writing", flush=True)
        for line in sys.stdin:
            if line.strip() == "compact":
                schedule.compact()
                print("compacted", flush=True)
            else:
                break
        stopped.set()
        writer.join()
    for dialect, keys in ledger.items():
        (directory / f"{dialect}.ledger").write_text("\n".join(keys))
    print("stopped", flush=True)


def _ztick_record(number: int) -> Record:
    """Every third job is removed again, so that compaction has something to drop."""
    if number % 3 == 2:
        return JobRemoved(f"job.{number - 1}")
    return JobSet(f"job.{number}", 1_700_000_000_000_000_000 + number, Status.PLANNED)


def _workq_record(number: int, clock: SystemClock) -> JobAdded:
    now = Instant(clock.now_ns())
    job_id = bytes.fromhex("0000000a000040008000") + number.to_bytes(6, "big")
    job = JobAdded(now, job_id, "queue", 1000, 60_000, 0, 3, 0, b"payload", None, now, Command.ADD)
    assert CODEC.encode(job)
    return job


if __name__ == "__main__":
    main()
