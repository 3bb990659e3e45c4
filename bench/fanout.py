"""How fast are the fan-out queues, and how do they compare? In one run, on one disk.

    python -m bench.fanout [--directory ON_A_DISK] [--rounds 3] [--items 10000000]

    cycles      put, get, confirm beside Redis Streams' XADD, XREADGROUP, XACK, pipelined by 100;
                one connection, and four. Durable before it is answered (always, appendfsync
                always), and synced by the clock (interval, everysec)
    readers     what a put costs with 1, 10 and 100 readers: the same, whoever reads
    memory      ten million items of 100 bytes that wait: resident, and the time of a restart

The subjects take turns, some short rounds each, and the best round of each counts. Load comes from
another process (fanout_load.py); ``generator`` is the part of a core that it needed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from bench import fanout_peers, peers
from bench.fanout_load import DEPTH, measure
from bench.fanout_memory import measure_long_queue
from bench.generator import WARM_UP_S, Rate
from bench.verdicts import Verdict, ask_all, best_of, read_options

SECONDS = 2.0
PUT_CONNECTIONS = 4
CYCLE_BARS = {"always": {1: 1.2, 4: 1.0}, "interval": {1: 1.0, 4: 0.8}}  # by connections
READERS = (1, 10, 100)
READERS_BAR = 0.9
MEMORY_ITEMS = 10_000_000
MEMORY_BAR_MB = 300
RESTART_BAR_S = 10.0


def cycles(directory: Path, options: argparse.Namespace) -> tuple[dict[str, Any], list[Verdict]]:
    figures: dict[str, Any] = {}
    verdicts = []
    for policy, bars in CYCLE_BARS.items():
        with ExitStack() as stack:
            every = (
                fanout_peers.journeyman(directory / policy / "journeyman", policy),
                fanout_peers.redis(directory / policy / "redis", policy),
            )
            servers = [stack.enter_context(server) for server in every if server is not None]
            for connections, bar in bars.items():
                best = _cycles_of(servers, connections, options)
                shape = f"{policy}, {connections} connection{'s' if connections > 1 else ''}"
                figures[shape] = {name: _as_figures(rate) for name, rate in best.items()}
                peer = best.get("redis")
                ratio = round(best["journeyman"].per_second / peer.per_second, 2) if peer else None
                _print_rates(f"put, get, confirm, {shape}: {ratio or '-'}x Redis Streams", best)
                verdicts.append(Verdict(f"{shape}: times Redis Streams", ratio, bar, True))
    return figures, verdicts


def _cycles_of(
    servers: Iterable[peers.Peer], connections: int, options: argparse.Namespace
) -> dict[str, Rate]:
    def load(server: peers.Peer) -> Callable[[int], Rate]:
        return lambda _: measure(
            server.name, server.port, connections=connections, seconds=options.seconds
        )

    return best_of(options.rounds, {server.name: load(server) for server in servers})


def _print_rates(title: str, best: Mapping[str, Rate]) -> None:
    print(title)
    for name, rate in best.items():
        print(f"  {name:<12}{rate.per_second:>10,.0f}/s   generator {rate.cpu:.0%}")


def readers(directory: Path, options: argparse.Namespace) -> tuple[dict[str, Any], list[Verdict]]:
    """Of each the cheapest round, in processor time: what others do meanwhile hardly counts."""
    figures: dict[str, dict[str, float]] = {}
    with ExitStack() as stack:
        servers = {
            count: stack.enter_context(fanout_peers.journeyman(directory / str(count), "interval"))
            for count in READERS
        }
        for _ in range(options.rounds):
            for count, server in servers.items():
                found = _put_cost(server, count, options.seconds)
                known = figures.setdefault(str(count), found)
                if found["cpu_us_a_put"] < known["cpu_us_a_put"]:
                    figures[str(count)] = found
    print("puts, interval, by the number of readers")
    for name, each in figures.items():
        print(
            f"  {name:<12}{each['per_second']:>10,}/s   {each['cpu_us_a_put']} us of processor time"
        )
    few, many = (figures[str(count)]["cpu_us_a_put"] for count in (READERS[0], READERS[-1]))
    verdict = Verdict("a put: cost with 1 reader to 100", round(few / many, 2), READERS_BAR, True)
    return figures, [verdict]


def _put_cost(server: peers.Peer, count: int, seconds: float) -> dict[str, float]:
    before = server.cpu_seconds()
    rate = measure(
        "journeyman", server.port, connections=PUT_CONNECTIONS, seconds=seconds, readers=count
    )
    puts = rate.per_second * (seconds + WARM_UP_S)
    cost_us = (server.cpu_seconds() - before) / puts * 1e6
    return {"per_second": round(rate.per_second), "cpu_us_a_put": round(cost_us, 2)}


def memory(directory: Path, options: argparse.Namespace) -> tuple[dict[str, Any], list[Verdict]]:
    found = measure_long_queue(directory / "long", options.items)
    print(f"{found.items:,} items of 100 bytes that wait, put in {found.fill_s} s")
    print(f"  filled      {found.filled_mb:>8} MB, at most {found.filled_peak_mb} MB")
    print(
        f"  restarted   {found.restarted_mb:>8} MB, at most {found.restarted_peak_mb} MB,", end=" "
    )
    print(f"first item after {found.first_item_s} s")
    most = max(found.filled_peak_mb, found.restarted_peak_mb)
    verdicts = [
        Verdict("a long queue: MB at most", most, MEMORY_BAR_MB, False),
        Verdict("a long queue: first item, s", found.first_item_s, RESTART_BAR_S, False),
    ]
    return asdict(found), verdicts


def _as_figures(rate: Rate) -> dict[str, float]:
    return {"per_second": round(rate.per_second), "generator_cpu": round(rate.cpu, 2)}


QUESTIONS = {"cycles": cycles, "readers": readers, "memory": memory}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.fanout", description="See above.")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="that a round takes (2)")
    parser.add_argument("--items", type=int, default=MEMORY_ITEMS, help="of the long queue")
    options = read_options(parser, QUESTIONS, arguments)
    figures: dict[str, Any] = {
        "file_system": peers.file_system(Path(options.directory)),
        "redis": peers.version_of("redis-server", "--version"),
        "rounds": options.rounds,
        "seconds": options.seconds,
        "pipelined_by": DEPTH,
    }
    asked = {name: partial(ask, options=options) for name, ask in QUESTIONS.items()}
    is_whole = options.items == MEMORY_ITEMS and options.seconds == SECONDS
    return ask_all("fanout", asked, figures, options, keep=is_whole)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
