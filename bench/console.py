"""What does looking cost? Pages among a million jobs, and the rates of the ports while ten watch.

    python -m bench.console [--directory ON_A_DISK] [--rounds 3] [--only pages]

    first     the first page with jobs of a server that just started with 150,000 jobs, and how long
              a command waits meanwhile
    pages     50 jobs out of a million, of the schedule and of the work queue; searches by prefix,
              queue, state and error
    watched   durable SETs and lease cycles a second, with none and with ten consoles open: each
              has a page that fetches itself anew, as assets/console.js does, half of them the
              overview and half the jobs; also the processor time of the server for each command,
              which noise spares
    past      the work queue at a moment in the middle of a log of a million records, asked for the
              first time, again, and again after the log has grown; another moment
    assets    what a browser loads once, compressed

Of a page the median of a few requests counts; the rates of the two subjects take turns.
"""

from __future__ import annotations

import argparse
import http.client
import json
import selectors
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from bench import schedule_load, workqueue_load
from bench.peers import Peer, free_port
from bench.verdicts import Verdict, ask_all, best_of, read_options
from journeyman.disk import RealDisk
from journeyman.formats.framing import Entry
from journeyman.formats.workq import CODEC
from journeyman.logs.damage import read_past_damage
from journeyman.servers.http.records import last_records

JOBS = 1_000_000
REQUESTS = 15
CONSOLES = 10
SECONDS = 3.0
FIRST_JOBS = 150_000
ASK_EVERY_S = 0.005  # meanwhile
FIRST_PAGE_BAR_MS, FIRST_WAIT_BAR_MS = 500.0, 50.0
PAGE_BAR_MS, SEARCH_BAR_MS = 30.0, 200.0
WATCHED_BAR = 0.9
WATCHED_PAGES = ("/", "/console/jobs")
REST_S, REST_PARTS = 1.5, 20  # of a page between two refreshes: those of assets/console.js
PAST_BAR_S, PAST_AGAIN_BAR_S, GROWN_BAR_S = 5.0, 5.0, 5.0
ASSETS_BAR_BYTES = 80_000
SETTLE_S = 1.0


class Server(Peer):
    """All services, with the data in ``directory``."""

    def __init__(self, directory: Path) -> None:
        self.http_port, self.schedule_port, self.work_port = (free_port() for _ in range(3))
        command = [sys.executable, "-m", "journeyman", "serve", "--data", "data"]
        command += ["--http-listen", f"127.0.0.1:{self.http_port}", "--kestrel-listen", "off"]
        command += ["--listen", f"127.0.0.1:{self.schedule_port}"]
        command += ["--workq-listen", f"127.0.0.1:{self.work_port}", "--cmdlog-sync", "always"]
        super().__init__("journeyman", command, self.http_port, directory)

    def get(self, path: str) -> tuple[float, bytes]:
        """Milliseconds, and the body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.http_port, timeout=120)
        begin = time.perf_counter()
        connection.request("GET", path)
        response = connection.getresponse()
        body = response.read()
        took_ms = (time.perf_counter() - begin) * 1000
        connection.close()
        if response.status != 200:
            raise SystemExit(f"{path}: {response.status} {body[:200]!r}")
        return took_ms, body

    def median_ms(self, path: str) -> float:
        return round(statistics.median(self.get(path)[0] for _ in range(REQUESTS)), 2)


def generate(directory: Path, dialect: str, path: str, *options: str) -> None:
    (directory / "data").mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "journeyman", "generate", dialect, f"data/{path}"]
    subprocess.run([*command, *options], cwd=directory, check=True, stdout=subprocess.DEVNULL)


def ask_first(directory: Path) -> tuple[Any, list[Verdict]]:
    many = ("--records", str(3 * FIRST_JOBS), "--ids", str(FIRST_JOBS), "--start", "now")
    generate(directory, "workq", "workq", *many, "--removals", "0")
    with Server(directory) as server:
        over, waits = threading.Event(), list[float]()
        with socket.create_connection(("127.0.0.1", server.work_port), 60) as client:

            def keep_asking() -> None:
                while not over.wait(ASK_EVERY_S):
                    begin = time.perf_counter()
                    client.sendall(b"inspect queue nothing-here\r\n")
                    client.recv(4096)
                    waits.append((time.perf_counter() - begin) * 1000)

            server.get("/console/settings")  # HTTP is imported for the first client
            asking = threading.Thread(target=keep_asking)
            asking.start()
            time.sleep(SETTLE_S)
            usual_ms, waits[:] = max(waits), []
            used_s = server.cpu_seconds()
            first_ms = server.get("/console/jobs")[0]
            used_s = server.cpu_seconds() - used_s
            over.set()
            asking.join(60)
        warm_ms = server.median_ms("/console/jobs")
    figures = {
        "first_ms": round(first_ms, 1), "first_cpu_ms": round(1000 * used_s),
        "warm_ms": warm_ms, "longest_wait_ms": round(max(waits), 1),
        "longest_wait_before_ms": round(usual_ms, 1),
    }  # fmt: skip
    print(figures)
    return figures, [
        Verdict("first page with 150,000 jobs, ms", figures["first_ms"], FIRST_PAGE_BAR_MS, False),
        Verdict("a command meanwhile, ms", figures["longest_wait_ms"], FIRST_WAIT_BAR_MS, False),
    ]


def ask_pages(directory: Path) -> tuple[Any, list[Verdict]]:
    many = ("--records", str(JOBS), "--ids", str(JOBS), "--start", "now")
    generate(directory, "ztick", "schedule.log", *many, "--removals", "0")
    generate(directory, "workq", "workq", *many)
    figures: dict[str, float] = {}
    with Server(directory) as server:
        begin = time.perf_counter()
        for path in ("/v1/schedule/jobs", "/v1/work/jobs"):
            server.get(path)
        figures["sorted once, s"] = round(time.perf_counter() - begin, 2)
        page = json.loads(server.get("/v1/work/jobs?limit=1")[1])["jobs"][0]
        wait_for_figures(server)
        asked = {
            "schedule: 50 jobs": "/v1/schedule/jobs",
            "schedule: 50 jobs, page 2": f"/v1/schedule/jobs?cursor={_next(server)}",
            "schedule: console": "/console/jobs?q=in:schedule",
            "work: 50 jobs": "/v1/work/jobs",
            "work: console": "/console/jobs?q=in:work",
            "search: status": "/v1/schedule/jobs?status=failed",
            "search: prefix": "/v1/schedule/jobs?prefix=job.000009",
            "search: prefix that none has": "/v1/schedule/jobs?prefix=zzz",
            "search: queue": f"/v1/work/jobs?queue={page['queue']}",
            "search: state": "/v1/work/jobs?state=dead",
            "search: id": f"/v1/work/jobs?text={page['id']}",
            "search: error": "/v1/work/jobs?state=dead&error=timeout",
        }
        for name, path in asked.items():
            figures[name] = server.median_ms(path)
            print(f"{name:<32}{figures[name]:>9.2f} ms")
    pages = [f for name, f in figures.items() if "50 jobs" in name or "console" in name]
    searches = [figure for name, figure in figures.items() if name.startswith("search")]
    return figures, [
        Verdict("50 of a million jobs, ms", max(pages), PAGE_BAR_MS, False),
        Verdict("slowest search, ms", max(searches), SEARCH_BAR_MS, False),
    ]


def wait_for_figures(server: Server) -> None:
    """Until the figures over time have all of the log. Before that a page waits for its turn with
    the process that counts, which is what ``first`` measures."""
    begin_ns, as_of_ns = time.time_ns(), 0
    while as_of_ns < begin_ns:
        time.sleep(0.5)
        as_of_ns = int(json.loads(server.get("/v1/series?of=work&figure=added")[1])["as_of_ns"])


def _next(server: Server) -> str:
    return str(json.loads(server.get("/v1/schedule/jobs")[1])["next"])


@contextmanager
def consoles(server: Server, count: int) -> Iterator[None]:
    """So many browsers, as far as the server can tell. They take little of this machine: browsers
    are elsewhere."""
    over = threading.Event()
    heard: Counter[socket.socket] = Counter()
    streams = []
    for _ in range(count):
        stream = socket.create_connection(("127.0.0.1", server.http_port), 60)
        stream.sendall(b"GET /console/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        streams.append(stream)

    def read() -> None:
        with selectors.DefaultSelector() as selector:
            for stream in streams:
                selector.register(stream, selectors.EVENT_READ)
            while not over.wait(0.02):
                for key, _ in selector.select(0):
                    assert isinstance(key.fileobj, socket.socket)
                    heard[key.fileobj] += key.fileobj.recv(1 << 20).count(b"event: tick")

    def look() -> None:
        due_s = [time.perf_counter() + REST_S * number / count for number in range(count)]
        while count and not over.wait(max(0.0, min(due_s) - time.perf_counter())):
            number = due_s.index(min(due_s))
            took_s = server.get(WATCHED_PAGES[number % len(WATCHED_PAGES)])[0] / 1000
            due_s[number] = time.perf_counter() + max(REST_S, REST_PARTS * took_s)

    threads = [threading.Thread(target=each, daemon=True) for each in (read, look)]
    for thread in threads:
        thread.start()
    time.sleep(SETTLE_S)
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join(30)
        for stream in streams:
            stream.close()
            if not heard[stream]:
                raise SystemExit("a console heard nothing")


def ask_watched(directory: Path, *, rounds: int) -> tuple[Any, list[Verdict]]:
    figures: dict[str, Any] = {}
    verdicts = []
    with Server(directory) as server:
        sets = partial(
            schedule_load.measure, "journeyman", server.schedule_port, connections=50, depth=1,
            seconds=SECONDS,
        )  # fmt: skip
        leases = partial(
            workqueue_load.measure, "journeyman", server.work_port, connections=50, seconds=SECONDS
        )

        spent: dict[tuple[str, int], list[float]] = {}

        def watched(name: str, load: Any, count: int, first: int) -> Any:
            with consoles(server, count):
                before = server.cpu_seconds()
                rate = load(first=first)
                used_s = server.cpu_seconds() - before
            spent.setdefault((name, count), []).append(used_s / (rate.per_second * SECONDS))
            return rate

        for name, load in (("SET", sets), ("lease", leases)):
            numbers = iter(range(10**9))

            def run(
                _: int, count: int, name: str = name, load: Any = load, numbers: Any = numbers
            ) -> Any:
                return watched(name, load, count, next(numbers) * 300_000)

            best = best_of(
                rounds, {"none": partial(run, count=0), "ten": partial(run, count=CONSOLES)}
            )
            ratio = round(best["ten"].per_second / best["none"].per_second, 3)
            figures[name] = {each: round(rate.per_second) for each, rate in best.items()}
            figures[name]["ratio"] = ratio
            for each, count in (("none", 0), ("ten", CONSOLES)):
                figures[name][f"cpu_us, {each}"] = round(min(spent[name, count]) * 1e6, 1)
            print(f"{name}: {figures[name]}")
            verdicts.append(Verdict(f"{name} with ten consoles", ratio, WATCHED_BAR, True))
    return figures, verdicts


def ask_past(directory: Path) -> tuple[Any, list[Verdict]]:
    generate(directory, "workq", "workq", "--records", str(JOBS), "--start", "now")
    middle_ns = sum(_span(directory / "data" / "workq")) // 2
    with Server(directory) as server:  # the process that reads the past is not there yet
        moment = f"/v1/past/work?at={middle_ns}"
        first_s = server.get(moment)[0] / 1000
        again_s = server.median_ms(moment) / 1000
        workqueue_load.measure("journeyman", server.work_port, connections=5, seconds=1.0, first=0)
        grown_s = server.get(moment)[0] / 1000
        another_s = server.get(f"/v1/past/work?at={middle_ns + 1}")[0] / 1000
        page_s = server.median_ms(f"/v1/work/jobs?at={middle_ns}&state=dead") / 1000
    figures = {
        "first_s": round(first_s, 3), "again_s": round(again_s, 3), "grown_s": round(grown_s, 3),
        "another_s": round(another_s, 3), "page_s": page_s,
    }  # fmt: skip
    print(figures)
    return figures, [
        Verdict("state at a moment, first time, s", figures["first_s"], PAST_BAR_S, False),
        Verdict("the same again, s", figures["again_s"], PAST_AGAIN_BAR_S, False),
        Verdict("the same when the log has grown, s", grown_s, GROWN_BAR_S, False),
    ]


def _span(log: Path) -> tuple[int, int]:
    """When the first and the last record of the log were written."""
    files = sorted(log.glob("*.log"))
    first = next(iter(read_past_damage(CODEC, files[0].read_bytes())))
    last = last_records(RealDisk(), CODEC, str(files[-1]), 1)[0].entry
    assert isinstance(first, Entry)
    return first.record.logged.unix_ns, last.record.logged.unix_ns


def ask_assets(_: Path) -> tuple[Any, list[Verdict]]:
    from journeyman.servers.http.console.drawing import all_assets

    sizes = {name: len(asset.compressed) for name, asset in all_assets().items()}
    total = sum(sizes.values())
    print(f"assets: {total} bytes")
    return sizes, [Verdict("all assets, compressed bytes", total, ASSETS_BAR_BYTES, False)]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="The cost of looking.")
    options = read_options(parser, ("first", "pages", "watched", "past", "assets"), arguments)
    questions: dict[str, Any] = {
        "first": ask_first,
        "pages": ask_pages,
        "watched": partial(ask_watched, rounds=options.rounds),
        "past": ask_past,
        "assets": ask_assets,
    }
    return ask_all("console", questions, {}, options)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
