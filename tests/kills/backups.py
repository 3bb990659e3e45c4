"""How much is lost with a machine whose data directory `journeyman backup --follow` ships?

    python -m tests.kills.backups [--seconds 20] [--every 1]

A server under load of three clients and a process that follows it are killed together; the copy is
restored. Told is the time from the last command that is in the copy to the last acknowledged one.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from journeyman.backup import open_vault, restore
from journeyman.client import KestrelClient, Schedule, WorkQueue
from tests.support.servers.backed_up import CALM, FAR_NS, Load, Server, found_in


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill a server and its follower; what is lost?")
    parser.add_argument("--seconds", type=float, default=20.0, help="of load (20)")
    parser.add_argument("--every", default="1", help="seconds between two backups (1)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="follow-") as place:
        return follow(Path(place), options.seconds, options.every)


def follow(place: Path, seconds: float, every: str) -> int:
    data, vault, out = place / "data", place / "vault", sys.stdout
    times: dict[str, list[float]] = {"schedule": [], "work": [], "items": []}
    words = ["backup", str(vault), "--data", str(data), "--follow", "--every", every]
    with Server(place, data, CALM) as server:
        schedule = Schedule(port=server.port_of("schedule"))
        work = WorkQueue(port=server.port_of("work queue"))
        queues = KestrelClient(port=server.port_of("fan-out queues"))

        def timed(name: str, send: Callable[[int], object]) -> Load:
            def sending(number: int) -> None:
                send(number)
                times[name].append(time.monotonic())

            return Load(sending)

        loads = [
            timed("schedule", lambda n: schedule.set(f"job.{n}", FAR_NS + n)),
            timed("work", lambda n: work.add("work", b"%d" % n)),
            timed("items", lambda n: queues.put("orders", b"%d" % n)),
        ]
        with subprocess.Popen(
            [sys.executable, "-m", "journeyman", *words], stdout=subprocess.PIPE, text=True
        ) as follower:
            for load in loads:
                load.start()
            time.sleep(seconds)
            follower.send_signal(signal.SIGKILL)
            server.kill()
            assert follower.stdout is not None
            shipped = follower.stdout.read().splitlines()
        for load in loads:
            load.join()
    restore(open_vault(str(vault)), str(place / "restored"))
    behind = sorted(float(line.split()[-3]) for line in shipped if line.endswith(" s behind"))
    out.write(
        f"{len(behind)} backups; one took {behind[len(behind) // 2]:.2f} s in the middle, "
        f"{behind[-1]:.2f} s at the slowest\n"
    )
    for name, found in found_in(place, place / "restored").items():
        acknowledged = times[name]
        lost_s = acknowledged[-1] - acknowledged[len(found) - 1] if found else seconds
        out.write(
            f"{name:<9}{len(acknowledged):>7} acknowledged, {len(found):>7} in the copy: "
            f"{max(lost_s, 0):.2f} s lost\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
