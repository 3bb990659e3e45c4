"""Run every program of this folder; exit with 1 if one of them misses a bar."""

from __future__ import annotations

import sys

from bench import (
    columnar,
    console,
    fanout,
    pipeline,
    schedule,
    schedule_memory,
    steps,
    storage,
    tasks,
    timetables,
    workqueue,
)

PROGRAMS = (
    columnar.main,
    schedule_memory.main,
    schedule.main,
    timetables.main,
    workqueue.main,
    tasks.main,
    steps.main,
    fanout.main,
    storage.main,
    console.main,
    pipeline.main,
)

if __name__ == "__main__":
    sys.exit(max(main() for main in PROGRAMS))
