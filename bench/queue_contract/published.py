"""Our figures beside those that postgresql-job-queue-benchmarking has published.

They are of its sweep of 2026-05-09 (results/2026-05-09-full-sweep/SUMMARY.md there): four cores and
8 GB, PostgreSQL 18.3, phases of full length. pgque is left out of the throughput, because it is an
event bus that acknowledges a batch at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

WORKERS: Final = (4, 16, 64, 128)
JOBS_PER_SECOND: Final[Mapping[str, tuple[float, ...]]] = {
    "awa": (426.8, 1_729, 5_369, 8_499),
    "pg-boss": (512.0, 2_048, 2_387, 2_387),
    "river": (79.2, 316.8, 500.9, 491.2),
    "absurd": (219.2, 339.2, 398.1, 409.6),
    "oban": (247.4, 249.1, 283.9, 283.3),
    "procrastinate": (247.3, 268.3, 269.0, 263.9),
    "pgmq": (3_571, 11_277, 10_243, 6_180),
}
# Completions per second in the phase of recovery, in percent of the baseline; None: no sample.
SYSTEMS: Final = ("awa", "pgque", "river", "oban", "pg-boss", "absurd", "procrastinate", "pgmq")
RECOVERY: Final[Mapping[str, tuple[int | None, ...]]] = {
    "postgres_restart": (100, 100, 101, 0, None, 0, 0, 0),
    "pg_backend_kill": (100, 100, 101, 100, None, 0, 0, 0),
    "pool_exhaustion": (100, 100, 100, 86, 96, 87, 99, 100),
    "crash_recovery": (98, 98, 121, 98, 117, 103, 73, 74),
    "repeated_kills": (99, 72, 109, 88, 99, 112, 18, 26),
}


def tables(figures: Mapping[str, Any]) -> str:
    """Return the figures of a run beside the published ones, as two tables in Markdown."""
    lines = ["| jobs per second with | " + " | ".join(f"{n} workers" for n in WORKERS) + " |"]
    lines.append("|---" * (len(WORKERS) + 1) + "|")
    ours = [figures[f"throughput_{workers}"]["jobs_per_second"] for workers in WORKERS]
    for name, rates in {"**journeyman**": ours, **JOBS_PER_SECOND}.items():
        lines.append(f"| {name} | " + " | ".join(f"{rate:,.0f}" for rate in rates) + " |")
    lines += ["", "| | **journeyman** | lost | done twice | " + " | ".join(SYSTEMS) + " |"]
    lines.append("|---" * (len(SYSTEMS) + 4) + "|")
    for name, published in RECOVERY.items():
        found = figures[name]
        lost = f"{found['lost']} of {found['acknowledged']:,}"
        others = ["-" if percent is None else f"{percent} %" for percent in published]
        cells = [f"**{found['ratio']:.0%}**".replace("%", " %"), lost, str(found["done_twice"])]
        lines.append(f"| {name} | " + " | ".join([*cells, *others]) + " |")
    return "\n".join(lines)
