"""Logs in PostgreSQL beside logs in files: commands per second, and the time of a takeover.

    python -m bench.database                  all questions
    python -m bench.database --only takeover  one of them, nothing is written

Both servers sync every batch. PostgreSQL runs with its default settings, on the same disk and the
same cores as everything else, so a database on a machine of its own costs less processor time here
and more time on the network.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench import peers, schedule_load, workqueue_load
from bench.generator import Rate
from bench.task_peers import durable_postgres
from bench.verdicts import Verdict, ask_all, best_of, read_options

SECONDS = 2.0
CONNECTIONS = 50
RUN_JOBS = 10_000_000  # numbers that one run of the load may use
BARS = {"SET": 0.55, "work queue cycles": 0.5}
TAKEOVER_BAR_S = 0.7


def _server(name: str, directory: Path, data: str) -> tuple[peers.Peer, int]:
    """A server with all services; the port of its work queue."""
    port, work = peers.free_port(), peers.free_port()
    command = [sys.executable, "-m", "journeyman", "serve", "--data", data]
    command += ["--listen", f"127.0.0.1:{port}", "--workq-listen", f"127.0.0.1:{work}"]
    command += ["--cmdlog-sync", "always", "--kestrel-listen", f"127.0.0.1:{peers.free_port()}"]
    command += ["--http-listen", "off"]
    return peers.Peer(name, command, port, directory), work


def _address(directory: Path, stack: ExitStack) -> str:
    found = durable_postgres(directory / "postgres", stack)
    words = dict(word.split("=") for word in found.split())
    return f"postgresql://{words['user']}@{words['host']}:{words['port']}/{words['dbname']}"


def rates(directory: Path, rounds: int) -> tuple[dict[str, Any], list[Verdict]]:
    figures, verdicts = {}, []
    with ExitStack() as stack:
        places = {"files": "data", "database": _address(directory, stack)}
        servers = {name: _server(name, directory / name, data) for name, data in places.items()}
        for server, _ in servers.values():
            stack.enter_context(server)

        def sets(port: int) -> Any:
            return lambda number: schedule_load.measure(
                "journeyman", port, connections=CONNECTIONS, depth=1, seconds=SECONDS,
                first=number * RUN_JOBS,
            )  # fmt: skip

        def cycles(port: int) -> Any:
            return lambda number: workqueue_load.measure(
                "journeyman", port, connections=CONNECTIONS, seconds=SECONDS,
                first=number * RUN_JOBS,
            )  # fmt: skip

        loads = {
            "SET": {name: sets(server.port) for name, (server, _) in servers.items()},
            "work queue cycles": {name: cycles(port) for name, (_, port) in servers.items()},
        }
        for question, subjects in loads.items():
            best: dict[str, Rate] = best_of(rounds, subjects)
            ratio = best["database"].per_second / best["files"].per_second
            for name, rate in best.items():
                print(f"{question}: {name:<10}{rate.per_second:>10,.0f}/s")
            figures[question] = {name: round(rate.per_second) for name, rate in best.items()}
            verdicts.append(
                Verdict(f"{question}, times files", round(ratio, 2), BARS[question], True)
            )
    return figures, verdicts


def takeover(directory: Path, rounds: int) -> tuple[dict[str, Any], list[Verdict]]:
    """From kill -9, or a stop in order, to the first answer of the server that stood by."""
    figures, verdicts = {}, []
    with ExitStack() as stack:
        address = _address(directory, stack)
        for kind in (signal.SIGKILL, signal.SIGTERM):
            times = []
            for number in range(rounds):
                pair = [
                    _server(name, directory / f"{kind.name}-{number}-{name}", address)[0]
                    for name in ("active", "standby")
                ]
                times.append(_taken_over(pair, kind))
            print(f"takeover after {kind.name}: {', '.join(f'{took:.2f} s' for took in times)}")
            best = round(min(times), 2)
            figures[kind.name] = {"seconds": best}
            verdicts.append(Verdict(f"takeover, {kind.name}, s", best, TAKEOVER_BAR_S, False))
    return figures, verdicts


def _taken_over(pair: list[peers.Peer], kind: signal.Signals) -> float:
    active, standby = pair
    active.start()
    output = standby.directory / f"{standby.name}.out"
    with ExitStack() as stack:
        stack.callback(active.stop)
        standby.begin()
        stack.callback(standby.stop)
        while "standing by" not in output.read_text():
            time.sleep(0.05)
        begin = time.perf_counter()
        os.kill(active.process_id, kind)
        while not _answers(standby.port):
            time.sleep(0.005)
        return time.perf_counter() - begin


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), 1.0) as client:
            client.sendall(b"a GET none\n")
            return client.recv(100).startswith(b"a ")
    except OSError:
        return False


QUESTIONS = {"rates": rates, "takeover": takeover}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.database", description="See above.")
    options = read_options(parser, QUESTIONS, arguments)
    figures = {"cores": os.cpu_count(), "file_system": peers.file_system(Path(options.directory))}

    def question(name: str) -> Any:
        return lambda place: QUESTIONS[name](place, options.rounds)

    return ask_all("database", {name: question(name) for name in QUESTIONS}, figures, options)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
