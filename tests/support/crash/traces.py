r"""Power loss from traces: what a real server asked of the kernel, and every disk that may be left.

    strace --> lines --> Event: create write sync rename remove truncate mkdir | reply
                           |
                           +--one after another--> SimulatedDisk --after_crash--> what is left

The load sends one command at a time. So the n-th reply in the trace acknowledges the n-th command,
and after a crash the server must hold what the first n commands made, or n + 1 of them: the one
under way may have happened (acknowledged.py).

A write counts when it begins, a sync when it has returned: between the two anything may be true.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.simulated_disk import SimulatedDisk

CALLS = (
    "openat,write,writev,pwrite64,sendto,sendmsg,fsync,fdatasync,rename,renameat,renameat2,"
    "unlink,unlinkat,ftruncate,mkdir,mkdirat"
)
_LINE = re.compile(r"^(\d+) +(?:<\.\.\. (\w+) resumed>(.*)|(\w+)\((.*))$")
_HEX = re.compile(r"\\x([0-9a-f]{2})")
_FD = re.compile(r"^-?\w+<((?:\\x[0-9a-f]{2})+)>")
_STRING = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')
_PLACE = re.compile(r'", (?:0x)?[0-9a-f]+, (\d+)')  # of a pwrite64: after the data and its size
_UNFINISHED = " <unfinished ...>"  # a line of another thread came before the call's end
_ENDS_WELL = re.compile(r"\) += \d+")
_FAILS = re.compile(
    r"\) += -1"
)  # one that was killed ends with a question mark: it may have worked


@dataclass(frozen=True, slots=True)
class Event:
    kind: str
    path: str = ""
    data: bytes = b""
    other: str = ""  # the new name of a rename
    size: int = 0  # of a truncate; where a write_at begins


class StraceRefused(AssertionError):
    """This machine does not let one process trace another."""


def strace(trace: Path, *options: str) -> list[str]:
    """The command line before that of the server. StraceRefused, if it cannot be used here."""
    probe = subprocess.run(
        ["strace", "-f", "-o", str(trace), "-e", "trace=write", "true"],
        capture_output=True,
        text=True,
        check=False,
    )
    if probe.returncode:
        raise StraceRefused(f"strace cannot trace here: {probe.stderr.strip()}")
    return [
        "strace",
        "-f",
        "--seccomp-bpf",
        "-y",
        "-xx",
        "-s",
        "1048576",
        "-o",
        str(trace),
        *options,
    ]


def skip_if_refused(directory: Path) -> None:
    """Containers may forbid tracing: there the test is reported as skipped, with the reason."""
    try:
        strace(directory / "probe")
    except StraceRefused as error:
        pytest.skip(str(error))


def events_of(trace: Path, directory: Path) -> Iterator[Event]:
    """What concerns files below a directory, and bytes that left through sockets."""
    root = str(directory)
    lines = [found for line in trace.read_text().splitlines() if (found := _LINE.match(line))]
    failed = _that_failed(lines)
    begun: dict[str, tuple[str, str]] = {}
    for number, (pid, resumed, rest, call, arguments) in enumerate(map(re.Match.groups, lines)):
        if call is not None and arguments.endswith(_UNFINISHED):
            begun[pid] = call, arguments.removesuffix(_UNFINISHED)
            if not _is_sync(call) and number not in failed:
                yield from _event(*begun[pid], root)
        elif call is not None:
            if _ENDS_WELL.search(arguments) or not (_is_sync(call) or _FAILS.search(arguments)):
                yield from _event(call, arguments, root)
        elif resumed and pid in begun:
            interrupted = begun.pop(pid)
            if _is_sync(interrupted[0]) and _ENDS_WELL.search(rest):
                yield from _event(*interrupted, root)


def _that_failed(lines: list[re.Match[str]]) -> set[int]:
    """The lines where calls began that another thread's line interrupted, and that failed."""
    begun: dict[str, int] = {}
    failed = set()
    for number, (pid, resumed, rest, _, arguments) in enumerate(map(re.Match.groups, lines)):
        if not resumed and arguments.endswith(_UNFINISHED):
            begun[pid] = number
        elif resumed and pid in begun:
            first = begun.pop(pid)
            if _FAILS.search(rest):
                failed.add(first)
    return failed


def _is_sync(call: str) -> bool:
    return call in ("fsync", "fdatasync")


def _event(call: str, arguments: str, root: str) -> Iterator[Event]:
    names = [_text(each) for each in _STRING.findall(arguments)]
    fd = _FD.match(arguments)
    path = _text(fd[1]).decode() if fd else ""
    if call in ("write", "writev", "sendto", "sendmsg", "pwrite64"):
        data = b"".join(names)
        if path.startswith(("socket:", "TCP:")):
            yield Event("reply", data=data)
        elif path.startswith(root):
            if call == "pwrite64":  # of a store; logs are only appended to
                place = _PLACE.search(arguments)
                assert place is not None, arguments[-100:]
                yield Event("write_at", path, data, size=int(place[1]))
            else:
                yield Event("write", path, data)
    elif _is_sync(call):
        if path.startswith(root):
            yield Event("sync", path)
    elif call == "ftruncate":
        if path.startswith(root):
            yield Event("truncate", path, size=int(arguments.rpartition(", ")[2].split(")")[0]))
    elif names and names[0].decode().startswith(root):
        first = names[0].decode()
        if call == "openat" and "O_CREAT" in arguments:
            yield Event("create", first)
        elif call.startswith("mkdir"):
            yield Event("mkdir", first)
        elif call.startswith("unlink"):
            yield Event("remove", first)
        elif call.startswith("rename"):
            yield Event("rename", first, other=names[1].decode())


def _text(escaped: str) -> bytes:
    return bytes.fromhex("".join(_HEX.findall(escaped)))


def replay(disk: SimulatedDisk, event: Event) -> None:
    """Do to the disk what the server did to the machine's."""
    path = event.path
    if event.kind == "mkdir":
        disk.make_dirs(path)
    elif event.kind == "create":
        disk.open_append(path).close()
    elif event.kind == "write":
        disk.open_append(path).write(event.data)
    elif event.kind == "write_at":
        disk.write_at(path, event.size, event.data)
    elif event.kind == "truncate":
        disk.open_append(path).truncate(event.size)
    elif event.kind == "rename":
        disk.rename(path, event.other)
    elif event.kind == "remove":
        disk.remove(path)
    elif event.kind == "sync" and disk.is_dir(path):
        disk.sync_dir(path)
    elif event.kind == "sync":
        disk.open_append(path).sync()


def crash_points(events: list[Event]) -> Iterator[tuple[int, int, SimulatedDisk]]:
    """After each event that changes the disk: its number, the replies so far, and the disk."""
    disk, replies = SimulatedDisk(), 0
    for number, event in enumerate(events):
        if event.kind == "reply":
            replies += 1
        else:
            replay(disk, event)
            yield number, replies, disk


def serve(arguments: list[str], directory: Path, before: list[str]) -> subprocess.Popen[str]:
    """A server whose lines come out of ``stderr``."""
    return subprocess.Popen(
        [*before, sys.executable, "-m", "journeyman", "serve", *arguments],
        cwd=directory,
        stderr=subprocess.PIPE,
        text=True,
    )


Load = Callable[[dict[str, int]], object]
