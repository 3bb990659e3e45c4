"""What happens to broker and worker while jobs are sent."""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.compare.power import Files
from bench.compare.world import World

PAUSE_S = 15.0
CLOCK_STEP = "+1d"
_COMPLAINT = re.compile(
    r"corrupt|damage|checksum|crc|invalid|malformed|bad file|mismatch|quarantin", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Setup:
    """How a run begins: how many jobs, at what pace."""

    jobs: int
    pause_s: float = 0.03


def worker_kill(world: World, setup: Setup) -> bool:
    """Kill the worker twice while jobs run; start another one each time."""
    _begin(world, setup)
    for _ in range(2):
        time.sleep(1.5)
        world.kill_worker()
        world.start_worker()
    return _send_the_rest(world)


def broker_kill(world: World, setup: Setup) -> bool:
    """Kill the broker with SIGKILL twice, and start it again."""
    _begin(world, setup)
    for _ in range(2):
        time.sleep(1.5)
        world.stop_broker(signal.SIGKILL)
        if not world.start_broker():
            return False
    return _send_the_rest(world)


def power_cut(world: World, setup: Setup) -> bool:
    """Cut the power of the broker's machine: files hold what was synced, then all start again."""
    files = Files(world.data)
    world.start_broker()
    _begin(world, setup)
    time.sleep(3.0)
    if world.broker is None:  # the database is a file that sender and worker write
        world.kill_sender()
        world.kill_worker()
    else:
        world.stop_broker(signal.SIGKILL)
    files.follow(world.traces)
    files.leave()
    for lock in world.data.rglob("postmaster.pid"):
        lock.unlink()  # the process that it names did not survive the machine
    if world.broker is None:
        world.start_worker()
        return True
    return world.start_broker() and _send_the_rest(world)


def paused_worker(world: World, setup: Setup) -> bool:
    """Stop the worker's processes for a while, as a frozen machine would, then let them go on."""
    _begin(world, setup)
    time.sleep(1.5)
    world.pause_worker(PAUSE_S)
    return _send_the_rest(world)


def paused_broker(world: World, setup: Setup) -> bool:
    """Stop the broker's processes for a while, then let them go on."""
    _begin(world, setup)
    time.sleep(1.5)
    world.pause_broker(PAUSE_S)
    return _send_the_rest(world)


def clock_step(world: World, setup: Setup) -> bool:
    """Set the broker's clock a day ahead while jobs are sent."""
    assert world.clock is not None
    _begin(world, setup)
    time.sleep(1.5)
    world.clock.write_text(CLOCK_STEP)
    return _send_the_rest(world)


def full_disk(world: World, setup: Setup) -> bool:
    """Fill the broker's disk for three seconds while jobs are sent."""
    _begin(world, setup)
    time.sleep(1.0)
    filler = world.data / "filler"
    descriptor = os.open(filler, os.O_WRONLY | os.O_CREAT)
    with contextlib.suppress(OSError):  # the disk is full
        while True:
            os.write(descriptor, bytes(1 << 16))
    os.close(descriptor)
    time.sleep(3.0)
    filler.unlink()
    return _send_the_rest(world)


def bit_flip(world: World, setup: Setup) -> bool:
    """Stop the broker cleanly with jobs on its disk, flip one bit of its data, and start it."""
    world.start_sender(1, setup.jobs, 0.0)
    _wait_for_sender(world)
    if world.broker is not None:
        world.stop_broker(signal.SIGTERM)
    flip_one_bit(world.data, random.Random(f"{world.place.name}"))
    if not world.start_broker():
        return False
    world.start_worker()
    return True


FAULTS: dict[str, Callable[[World, Setup], bool]] = {
    "worker_kill": worker_kill,
    "broker_kill": broker_kill,
    "power_cut": power_cut,
    "full_disk": full_disk,
    "bit_flip": bit_flip,
    "clock_step": clock_step,
    "paused_worker": paused_worker,
    "paused_broker": paused_broker,
}


def not_possible(fault: str, world_has_broker: bool, place: Path) -> str | None:
    """Return why a fault cannot be tried here, or None."""
    if fault in ("broker_kill", "clock_step") and not world_has_broker:
        return "has no broker"
    if fault == "power_cut" and shutil.which("strace") is None:
        return "needs strace"
    if fault == "clock_step" and not any(Path("/usr/lib").rglob("libfaketime.so.1")):
        return "needs libfaketime"
    if fault == "full_disk":
        probe = place / "probe"
        probe.mkdir(exist_ok=True)
        if mount(probe, 1) is not None:
            return "needs the right to mount"
        unmount(probe)
    return None


def mount(directory: Path, mebibytes: int) -> str | None:
    """Mount a small disk in memory; return the error if that is not allowed."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m,mode=0777", "none", str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stderr if done.returncode else None


def unmount(directory: Path) -> None:
    """Take the small disk away, whoever still has a file of it open."""
    subprocess.run(["umount", "-l", str(directory)], capture_output=True, check=False)


def flip_one_bit(directory: Path, chosen: random.Random) -> None:
    """Flip one bit of what the peer wrote last: in the newest file with data, in its last half."""
    files = [path for path in directory.rglob("*") if path.is_file() and path.stat().st_size > 512]
    if not files:
        return
    path = max(files, key=lambda path: path.stat().st_mtime_ns)
    data = bytearray(path.read_bytes())
    end = len(data.rstrip(b"\0"))
    at = chosen.randrange(end // 2, end)
    data[at] ^= 1 << chosen.randrange(8)
    with path.open("r+b") as file:
        file.write(data)


def complains(output: str) -> bool:
    """True if the peer says that its data is damaged."""
    return _COMPLAINT.search(output) is not None


def _begin(world: World, setup: Setup) -> None:
    world.start_worker()
    world.start_sender(1, setup.jobs, setup.pause_s)


def _send_the_rest(world: World) -> bool:
    _wait_for_sender(world)
    return True


def _wait_for_sender(world: World) -> None:
    assert world.sender is not None
    try:
        world.sender.wait(240.0)
    except subprocess.TimeoutExpired:
        world.kill_sender()  # a client that never gave up: what it has sent counts
