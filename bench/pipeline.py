"""How fast is a replay on Spark, how does it grow with cores, and what memory does it need?

    python -m bench.pipeline                       30 M ztick, 5 M workq, 5 M kestrel records
    python -m bench.pipeline --scale 0.1           a tenth of everything; nothing is written
    python -m bench.pipeline --only ztick          some questions; nothing is written
    python -m bench.pipeline --directory DIR       where logs are made, kept and found again

Everything in one run, on the same logs, made by ``journeyman generate``. Every subject ends with
the same final state in Parquet (zstd). Plain Python runs once, since it is slow and steady; DuckDB
and Spark run several times, and the middle of these counts. Spark's session is warm: its first runs
are told but not counted, except for *cold*, which is the command from the shell. What a second core
gains is measured in turns: see bench.pipeline_rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import pipeline_peers, report
from bench.pipeline_rounds import in_turns

ZTICK, WORKQ, KESTREL = 30_000_000, 5_000_000, 5_000_000
ZTICK_IDS = 1_000_000
MEMORY_SIZES = (3_000_000, 10_000_000, 30_000_000)
COLD_RECORDS = 10_000
PLANNED_FILES = 10_000
REPEATS = 5
WARMING = 4  # runs until Java has compiled most of what it runs often
ROUNDS = 11  # of applications that replay in turns
QUESTIONS = ("ztick", "workq", "kestrel", "memory", "cold", "planning")

# Of the largest log's peak and the smallest's, beyond what is needed once: more is not flat.
_FLAT = 1.5


@dataclass(frozen=True, slots=True)
class Bar:
    """A ratio or a time that is to be met; ``most`` says that less is better.

    One without a bar is told beside another, which it explains.
    """

    name: str
    value: float
    bar: float | None
    most: bool = False

    @property
    def ok(self) -> bool:
        if self.bar is None:
            return True
        return self.value <= self.bar if self.most else self.value >= self.bar

    def line(self) -> str:
        if self.bar is None:
            return f"{self.name:<56}{self.value:>9.2f}   (no bar)"
        limit = f"{'at most' if self.most else 'at least'} {self.bar:g}"
        return f"{self.name:<56}{self.value:>9.2f}   {limit:<14}{'ok' if self.ok else 'MISSED'}"


class Bench:
    """The logs and where things go."""

    def __init__(self, directory: Path, scale: float, repeats: int, warming: int = WARMING) -> None:
        self.directory = directory
        self.scale = scale
        self.repeats = repeats
        self.warming = warming

    def log(self, dialect: str, records: int, *more: str) -> Path:
        """A generated log; one of the same size that is there already is taken."""
        records = max(1000, int(records * self.scale))
        path = self.directory / f"{dialect}-{records}"
        log = path / "logfile" if dialect == "ztick" else path
        if not path.exists():
            arguments = [dialect, str(log), "--records", str(records), "--quiet", *more]
            subprocess.run([*_journeyman(), "generate", *arguments], check=True)
        return log

    def ztick(self, records: int) -> Path:
        return self.log("ztick", records, "--ids", str(max(100, int(ZTICK_IDS * self.scale))))

    def spark(self, master: str, dialect: str, log: Path, *more: str) -> dict[str, Any]:
        """One application."""
        arguments = ["--master", master, "--dialect", dialect, "--log", str(log)]
        arguments += ["--output", str(self.directory / "spark")]
        arguments += ["--repeats", str(self.repeats), "--warming", str(self.warming)]
        command = [sys.executable, "-m", "bench.pipeline_spark", *arguments, *more]
        found = subprocess.run(command, cwd=report.ROOT, check=True, stdout=subprocess.PIPE)
        result: dict[str, Any] = json.loads(found.stdout.splitlines()[-1])
        return result

    def peer(self, run: pipeline_peers.Peer, log: Path, repeats: int = 1) -> dict[str, Any]:
        target = self.directory / "peer.parquet"
        seconds = []
        for _ in range(repeats):
            start = time.perf_counter()
            rows = run(log, target)
            seconds.append(round(time.perf_counter() - start, 3))
        return {"seconds": statistics.median(seconds), "rows": rows}


def measure_dialect(bench: Bench, dialect: str, log: Path) -> tuple[dict[str, Any], list[Bar]]:
    two = bench.spark("local[2]", dialect, log, *(["--write-back"] if dialect == "ztick" else []))
    found: dict[str, Any] = {"log_bytes": _size(log), "local[2]": two}
    # Of ztick the loop alone, against which the bar is: the codec would take three minutes.
    peers = {"plain loop": pipeline_peers.LOOP[dialect]}
    if dialect in pipeline_peers.CODEC:
        peers["codec and fold"] = pipeline_peers.CODEC[dialect]
    for name, peer in peers.items():
        found[name] = bench.peer(peer, log)
        if found[name]["rows"] != two["rows"]:
            raise AssertionError(
                f"{dialect}, {name}: {found[name]['rows']} rows, not {two['rows']}"
            )
    middle = two["replay"]["middle_s"]
    if dialect != "ztick":
        name = f"{dialect}: times as fast as codec and fold"
        return found, [Bar(name, found["codec and fold"]["seconds"] / middle, 6)]
    found["duckdb"] = bench.peer(pipeline_peers.DUCKDB[dialect], log, bench.repeats)
    found["turns"] = turns = measure_cores(bench, log)
    loop, duckdb = found["plain loop"]["seconds"], found["duckdb"]["seconds"]
    return found, [
        Bar("ztick: times as fast as the plain dict loop", loop / middle, 10),
        Bar("ztick: times as fast as DuckDB, two threads", duckdb / middle, 1),
        *(
            Bar(f"ztick: {name} to local[2]", gain["middle"], 1.7 if name == "local[1]" else None)
            for name, gain in turns["gains"].items()
        ),
        Bar(
            "ztick: written back as a log",
            two["write_back"]["middle_s"] / middle,
            1.5,
            most=True,
        ),
    ]


def measure_cores(bench: Bench, log: Path) -> dict[str, Any]:
    """What a second core gains, by the middles of the runs, by the best, and round by round.

    Beside the question, what explains it: local[1] has a plan of its own, one task that shares no
    work with another, and Java has the other core all the same.
    """
    one, two = ("--master", "local[1]"), ("--master", "local[2]")
    ways: dict[str, tuple[tuple[str, ...], int | None]] = {
        "local[1]": (one, None),
        "local[1], two tasks": ((*one, "--partitions", "2"), None),
        "local[1], all on one core": (one, 1),
        "local[2]": (two, None),
    }
    runs = in_turns(log, bench.directory, ways, warming=bench.warming + 2, rounds=ROUNDS)
    seconds = {name: [run["seconds"] for run in each] for name, each in runs.items()}
    base = seconds["local[2]"]
    gains = {
        name: {
            "middle": round(statistics.median(each) / statistics.median(base), 3),
            "best": round(min(each) / min(base), 3),
            "rounds": [round(a / b, 3) for a, b in zip(each, base, strict=True)],
        }
        for name, each in seconds.items()
        if each is not base
    }
    return {"runs": runs, "gains": gains}


def measure_memory(bench: Bench) -> tuple[dict[str, Any], list[Bar]]:
    """Peaks at three sizes with the same number of jobs: what grows is the log alone."""
    once = Bench(bench.directory, bench.scale, 1, warming=1)
    found = {
        str(records): once.spark("local[2]", "ztick", once.ztick(records))["peak_mb"]
        for records in MEMORY_SIZES
    }
    first, last = found[str(MEMORY_SIZES[0])], found[str(MEMORY_SIZES[-1])]
    bars = [
        Bar(f"memory: {kind} at 30 M against 3 M", last[kind] / first[kind], _FLAT, most=True)
        for kind in ("driver", "jvm", "workers")
    ]
    return found, bars


def measure_cold(bench: Bench) -> tuple[dict[str, Any], list[Bar]]:
    small = Bench(bench.directory, 1.0, bench.repeats)
    log = small.log("ztick", COLD_RECORDS)
    seconds = []
    for _ in range(bench.repeats):
        start = time.perf_counter()
        command = [*_journeyman(), "pipeline", "replay", str(log)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        seconds.append(round(time.perf_counter() - start, 2))
    return {"seconds": seconds}, [
        Bar("cold: the command, seconds", statistics.median(seconds), 8, most=True)
    ]


def measure_planning(bench: Bench) -> tuple[dict[str, Any], list[Bar]]:
    """What the driver does before a query of many files: find them and cut them into splits."""
    from journeyman.spark.files import find_source_logs
    from journeyman.spark.source.options import SourceOptions
    from journeyman.spark.source.splits import plan_partitions

    root = bench.directory / "many"
    files = max(100, int(PLANNED_FILES * bench.scale))
    entry = bytes.fromhex("00000004 02 0001 61")  # the removal of job "a"
    for number in range(files):
        directory = root / f"host={number}"
        if not directory.exists():
            directory.mkdir(parents=True)
            (directory / "logfile").write_bytes(entry)
    start = time.perf_counter()
    options = SourceOptions.parse("ztick", {"path": str(root)})
    partitions = plan_partitions(find_source_logs(options), options)
    seconds = time.perf_counter() - start
    return {"files": files, "seconds": round(seconds, 3), "partitions": len(partitions)}, []


def measure(bench: Bench, question: str) -> tuple[dict[str, Any], list[Bar]]:
    if question == "ztick":
        return measure_dialect(bench, "ztick", bench.ztick(ZTICK))
    if question == "workq":
        return measure_dialect(bench, "workq", bench.log("workq", WORKQ))
    if question == "kestrel":
        return measure_dialect(bench, "kestrel", bench.log("kestrel", KESTREL))
    others = {"memory": measure_memory, "cold": measure_cold, "planning": measure_planning}
    return others[question](bench)


def _journeyman() -> list[str]:
    return [sys.executable, "-m", "journeyman"]


def _size(log: Path) -> int:
    return sum(path.stat().st_size for path in ([log] if log.is_file() else log.iterdir()))


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    questions = options.only or QUESTIONS
    with tempfile.TemporaryDirectory(prefix="journeyman-bench-") as temporary:
        directory = Path(options.directory or temporary)
        directory.mkdir(parents=True, exist_ok=True)
        bench = Bench(directory, options.scale, options.repeats)
        figures: dict[str, Any] = {}
        bars: list[Bar] = []
        for question in questions:
            figures[question], found = measure(bench, question)
            bars += found
            print(json.dumps({question: figures[question]}, indent=2), flush=True)
    print("\n" + "\n".join(bar.line() for bar in bars))
    figures["bars"] = [
        {"name": bar.name, "value": round(bar.value, 2), "bar": bar.bar, "ok": bar.ok}
        for bar in bars
    ]
    if options.save or (options.scale == 1 and tuple(questions) == QUESTIONS):
        path = report.write_result("pipeline", {"scale": options.scale, **figures})
        print(f"\nwritten to {path.relative_to(report.ROOT)}")
    return 0 if all(bar.ok for bar in bars) else 1


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="of all sizes")
    parser.add_argument("--only", nargs="+", choices=QUESTIONS)
    parser.add_argument("--directory", help="for logs and results; kept")
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--save", action="store_true", help="write results of any scale")
    return parser.parse_args([] if arguments is None else arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
