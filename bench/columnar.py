"""How much faster is columnar than Python? On one core, on the same bytes, in one run.

    python -m bench.columnar

Three readers of each log:

    loop      the plainest Python that takes out the same fields with the same checks
    codec     journeyman.formats, one record object an entry
    columnar  journeyman.columnar, all columns, payloads included

Each is run five times in turn, and the best time counts. The bar is against the faster Python, the
plain loop. For keys there is no plainer loop than the codec.

Then the price of numba: the first call of a fresh installation, which compiles, and the first call
of a later process, which loads the machine code from disk. Imports are counted in.
"""

from __future__ import annotations

import gc
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from bench import python_loops, report, sample_logs
from journeyman.columnar.kestrel import decode
from journeyman.columnar.workq import decode as workq
from journeyman.columnar.ztick import decode as ztick
from journeyman.formats import kestrel as kestrel_format
from journeyman.formats import workq as workq_format
from journeyman.formats import ztick as ztick_format
from journeyman.formats.framing import iter_entries

REPEATS = 5

Reader = Callable[[], int]  # gives the number of records, to be sure that all did the same work


@dataclass(frozen=True, slots=True)
class Question:
    name: str
    size: int
    bar: float | None  # columnar must be this many times as fast as the loop
    loop: Reader
    codec: Reader
    columnar: Reader


@dataclass(frozen=True, slots=True)
class Figure:
    name: str
    records: int
    mb: float
    loop_mb_s: float
    codec_mb_s: float
    columnar_mb_s: float
    ratio: float
    bar: float | None

    @property
    def ok(self) -> bool:
        return self.bar is None or self.ratio >= self.bar


def questions() -> list[Question]:
    ztick_log = sample_logs.ztick_log(300_000)
    workq_log = sample_logs.workq_log(40_000)
    kestrel_log = sample_logs.kestrel_log(100_000)
    return [
        Question(
            "ztick",
            len(ztick_log),
            20.0,
            lambda: len(python_loops.ztick_loop(ztick_log)),
            lambda: sum(1 for _ in iter_entries(ztick_format.CODEC, ztick_log)),
            lambda: sum(c.batch.num_rows for c in ztick.iter_batches(ztick_log)),
        ),
        Question(
            "workq, CRC checked",
            len(workq_log),
            10.0,
            lambda: len(python_loops.workq_loop(workq_log)),
            lambda: sum(1 for _ in iter_entries(workq_format.CODEC, workq_log, 8)),
            lambda: sum(c.batch.num_rows for c in workq.iter_batches(workq_log, payloads=True)),
        ),
        Question(
            "kestrel",
            len(kestrel_log),
            10.0,
            lambda: len(python_loops.kestrel_loop(kestrel_log)),
            lambda: sum(1 for _ in iter_entries(kestrel_format.WRITER, kestrel_log, 4)),
            lambda: sum(c.batch.num_rows for c in decode.iter_batches(kestrel_log, payloads=True)),
        ),
    ]


def measure(question: Question) -> Figure:
    readers = [question.loop, question.codec, question.columnar]
    _, records = timed(question.columnar)  # not counted: it compiles
    best = [float("inf")] * len(readers)
    for _ in range(REPEATS):
        for i, reader in enumerate(readers):
            seconds, found = timed(reader)
            if found != records:
                raise AssertionError(f"{question.name}: {found} records, not {records}")
            best[i] = min(best[i], seconds)
    mb = question.size / 1e6
    loop_s, codec_s, columnar_s = best
    return Figure(
        question.name,
        records,
        round(mb, 1),
        round(mb / loop_s, 1),
        round(mb / codec_s, 1),
        round(mb / columnar_s, 1),
        round(loop_s / columnar_s, 1),
        question.bar,
    )


def timed(reader: Reader) -> tuple[float, int]:
    """Processor time, as all three only compute, in one thread; other programs do not count.

    Without garbage collection: it would only slow the loops, which make many objects.
    """
    gc.collect()
    gc.disable()
    try:
        start = time.process_time()
        found = reader()
        return time.process_time() - start, found
    finally:
        gc.enable()


def first_calls() -> dict[str, dict[str, float]]:
    """Processor seconds of a process that reads one log, without and with a cache."""
    figures = {}
    for dialect in ("ztick", "workq", "kestrel"):
        with tempfile.TemporaryDirectory() as cache:
            code = f"from journeyman.columnar.{dialect} import decode; decode.decode(b'', 0)"
            command = [sys.executable, "-c", code]
            environment = os.environ | {"NUMBA_CACHE_DIR": cache}
            seconds = []
            for _ in range(2):
                before = children_s()
                subprocess.run(command, env=environment, check=True)
                seconds.append(round(children_s() - before, 2))
        figures[dialect] = {"compiling_s": seconds[0], "loading_s": seconds[1]}
    return figures


def children_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main() -> int:
    report.pin_to_one_core()
    print("Columnar against Python, one core, best of five, MB/s of log\n")
    head = ("log", "MB", "loop", "codec", "columnar", "ratio", "bar", "")
    layout = "{:<20}{:>8}{:>8}{:>8}{:>10}{:>8}{:>6}  {}"
    print(layout.format(*head))
    figures = [measure(question) for question in questions()]
    for figure in figures:
        bar = "-" if figure.bar is None else f"{figure.bar:.0f}"
        verdict = "" if figure.bar is None else "ok" if figure.ok else "MISSED"
        cells = (figure.mb, figure.loop_mb_s, figure.codec_mb_s, figure.columnar_mb_s)
        print(layout.format(figure.name, *cells, f"{figure.ratio:.0f}x", bar, verdict).rstrip())
    print("\nFirst call in a process, imports included, seconds\n")
    starts = first_calls()
    for dialect, seconds in starts.items():
        compiling, loading = seconds["compiling_s"], seconds["loading_s"]
        print(f"{dialect:<20}compiling {compiling:.1f}, later {loading:.1f}")
    result = {"speed": [asdict(figure) for figure in figures], "first_call": starts}
    path = report.write_result("columnar", result)
    print(f"\nwritten to {path.relative_to(report.ROOT)}")
    return 0 if all(figure.ok for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
