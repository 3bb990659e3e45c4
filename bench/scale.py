"""What a replay of a terabyte or a petabyte would take: simulated, from rates that were measured.

    python -m bench.scale                       from bench/results/pipeline.json
    python -m bench.scale --cores 256 --json    another cluster; figures for programs

What is measured: processor seconds a GB for reading and for merging, shuffle bytes a byte of log,
planning seconds a file. What is assumed is in ``Cluster`` and ``Workload``, and printed. Tasks are
dealt out to cores one by one, each taking its share with noise; some are stragglers; one bucket is
hot. A figure here is a forecast, good for its order of magnitude and for what breaks first.
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
import sys
from dataclasses import asdict, dataclass
from random import Random
from typing import Any

from bench import report

GB, TB, PB = 10**9, 10**12, 10**15
SEED = 20_240_328


@dataclass(frozen=True, slots=True)
class Rates:
    """Measured, for one dialect."""

    dialect: str
    read_cpu_s_a_gb: float
    merge_cpu_s_a_gb: float  # of log: shuffle, merge and writing of the result
    shuffle_share: float  # bytes shuffled a byte of log
    plan_s_a_file: float


@dataclass(frozen=True, slots=True)
class Cluster:
    """Assumed. Prices are those of common cloud machines by the hour, rounded."""

    cores: int
    cores_a_node: int = 16
    network_mb_s_a_node: float = 1500  # to the object store, and between nodes
    disk_mb_s_a_node: float = 1000  # local, for shuffle files
    price_a_core_hour: float = 0.05
    price_a_million_reads: float = 0.4

    @property
    def nodes(self) -> int:
        return math.ceil(self.cores / self.cores_a_node)


@dataclass(frozen=True, slots=True)
class Workload:
    """Assumed. ``file_bytes`` is the size of one segment or logfile."""

    log_bytes: int
    file_bytes: int = 256 * 1024 * 1024
    split_bytes: int = 1024 * 1024 * 1024
    bucket_bytes: int = 8 * 1024 * 1024  # of log
    buckets_a_log: int = 65_536  # at most
    logs: int = 1000
    noise: float = 0.15  # of task times, as a standard deviation of their logarithms
    stragglers: float = 0.01  # of the tasks
    straggler_factor: float = 4.0
    hot_share: float = 0.001  # of all records, in the bucket of one hot key
    task_overhead_s: float = 0.05


@dataclass(frozen=True, slots=True)
class Forecast:
    """Seconds of each part, and what the whole costs."""

    planning_s: float
    reading_s: float
    shuffle_s: float
    merging_s: float
    hot_bucket_s: float
    cost: float
    tasks: int
    files: int
    bucket_mb: float  # of packets: what a worker must hold
    limited_by: str

    @property
    def total_s(self) -> float:
        return self.planning_s + self.reading_s + self.shuffle_s + self.merging_s


def forecast(rates: Rates, cluster: Cluster, work: Workload) -> Forecast:
    files = math.ceil(work.log_bytes / work.file_bytes)
    read_tasks = max(1, math.ceil(work.log_bytes / work.split_bytes))
    read_cpu_s = work.log_bytes / GB * rates.read_cpu_s_a_gb
    merge_cpu_s = work.log_bytes / GB * rates.merge_cpu_s_a_gb
    shuffle_bytes = work.log_bytes * rates.shuffle_share
    to_store_s = work.log_bytes / (cluster.nodes * cluster.network_mb_s_a_node * 1e6)
    computing_s = makespan(read_tasks, read_cpu_s / read_tasks, cluster.cores, work)
    # Written to local disks, then fetched over the network and read from them.
    slower = min(cluster.network_mb_s_a_node, cluster.disk_mb_s_a_node / 2)
    shuffle_s = shuffle_bytes / (cluster.nodes * slower * 1e6)
    merge_tasks = max(cluster.cores, math.ceil(shuffle_bytes / (64 * 1024 * 1024)))
    hot_s = merge_cpu_s * work.hot_share
    merging_s = max(hot_s, makespan(merge_tasks, merge_cpu_s / merge_tasks, cluster.cores, work))
    parts = {
        "the driver, which lists the files": files * rates.plan_s_a_file,
        "the network to the store": to_store_s,
        "processors": computing_s,
        "the shuffle": shuffle_s,
        "one hot key": hot_s if hot_s >= merging_s else 0.0,
    }
    reading_s = max(to_store_s, computing_s)
    planning_s = files * rates.plan_s_a_file
    total_s = planning_s + reading_s + shuffle_s + merging_s
    requests = read_tasks + work.log_bytes / (16 * 1024 * 1024)  # a window is one read
    return Forecast(
        round(planning_s, 1),
        round(reading_s, 1),
        round(shuffle_s, 1),
        round(merging_s, 1),
        round(hot_s, 1),
        round(
            total_s / 3600 * cluster.cores * cluster.price_a_core_hour
            + requests / 1e6 * cluster.price_a_million_reads,
            2,
        ),
        read_tasks + merge_tasks,
        files,
        round(_bucket_bytes(work) * rates.shuffle_share / 1e6, 2),
        max(parts, key=parts.__getitem__),
    )


def makespan(tasks: int, seconds: float, cores: int, work: Workload) -> float:
    """When the last of the tasks is done, each given to the core that is free first."""
    random = Random(SEED)
    free = [0.0] * min(cores, tasks)
    for _ in range(tasks):
        taken = seconds * random.lognormvariate(0, work.noise) + work.task_overhead_s
        if random.random() < work.stragglers:
            taken *= work.straggler_factor
        heapq.heapreplace(free, free[0] + taken)
    return max(free)


def _bucket_bytes(work: Workload) -> float:
    """Bytes of log that one bucket stands for."""
    log_bytes = work.log_bytes / work.logs
    buckets = min(work.buckets_a_log, max(1, math.ceil(log_bytes / work.bucket_bytes)))
    return log_bytes / buckets


def measured() -> list[Rates]:
    figures = json.loads((report.ROOT / "bench/results/pipeline.json").read_text())["figures"]
    planning = figures["planning"]
    return [
        _rates(dialect, figures[dialect], planning["seconds"] / planning["files"])
        for dialect in ("ztick", "workq", "kestrel")
    ]


def _rates(dialect: str, figure: dict[str, Any], plan_s_a_file: float) -> Rates:
    gigabytes = figure["log_bytes"] / GB
    spark = figure["local[2]"]
    reading, whole = min(spark["reading"]["cpu_s"]), min(spark["replay"]["cpu_s"])
    return Rates(
        dialect,
        round(reading / gigabytes, 2),
        round(max(0.0, whole - reading) / gigabytes, 2),
        round(spark["shuffle"]["packet_bytes"] / figure["log_bytes"], 4),
        round(plan_s_a_file, 6),
    )


def table(rates: Rates, cores: dict[int, int]) -> list[dict[str, Any]]:
    rows = []
    for log_bytes, given in cores.items():
        found = forecast(rates, Cluster(given), Workload(log_bytes))
        rows.append({"dialect": rates.dialect, "log_bytes": log_bytes, "cores": given})
        rows[-1] |= asdict(found) | {"total_s": round(found.total_s, 1)}
    return rows


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    cores = {TB: options.cores or 64, PB: options.cores or 4096}
    rows = [row for rates in measured() for row in table(rates, cores)]
    if options.json:
        print(json.dumps({"rates": [asdict(each) for each in measured()], "forecast": rows}))
        return 0
    print("Measured")
    for each in measured():
        print(
            f"  {each.dialect:<8} reading {each.read_cpu_s_a_gb} and merging "
            f"{each.merge_cpu_s_a_gb} cpu s a GB, {each.shuffle_share:.1%} shuffled, "
            f"planning {each.plan_s_a_file * 1000:.3f} ms a file"
        )
    print(f"Assumed\n  {Cluster(0)}\n  {Workload(0)}\n")
    head = ("log", "size", "cores", "plan s", "read s", "shuffle s", "merge s", "total", "cost $")
    layout = "{:<9}{:>6}{:>7}{:>9}{:>9}{:>11}{:>9}{:>10}{:>9}  {}"
    print(layout.format(*head, "limited by"))
    for row in rows:
        size = "1 TB" if row["log_bytes"] == TB else "1 PB"
        parts = (row[name] for name in ("planning_s", "reading_s", "shuffle_s", "merging_s"))
        print(
            layout.format(
                row["dialect"],
                size,
                row["cores"],
                *(f"{part:.0f}" for part in parts),
                _duration(row["total_s"]),
                f"{row['cost']:.2f}",
                row["limited_by"],
            )
        )
    return 0


def _duration(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cores", type=int, help="the same for both sizes")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args([] if arguments is None else arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
