"""Power is cut after every system call of a real server: what it had acknowledged is there."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

from journeyman.formats import ztick
from journeyman.logs.segments import kestrel_segments, names_in
from tests.support.crash.acknowledged import COMMANDS, FAR_NS, Recovered, Sender, job_id, states
from tests.support.crash.cuts import EXTREMES
from tests.support.crash.traces import (
    CALLS,
    Event,
    crash_points,
    events_of,
    skip_if_refused,
    strace,
)
from tests.support.originals import appended_by_libkestrel, appended_by_ztick
from tests.support.servers.whole_process import WholeProcess
from tests.support.simulated_files import Survival

SETTINGS = {
    "database.compression_interval": "1",
    "workq.cmdlog_seg_size": "700",
    "workq.cmdlog_clean_int": "200",
    "kestrel.segment_bytes": "1024",
    "kestrel.checkpoint_interval_ms": "100",
    "history.enabled": "false",
}
# Every state by hand and in `make proof`; here each call is followed by one of the three rests.
EVERY_STATE = bool(os.environ.get("JOURNEYMAN_EVERY_STATE"))


def traced(directory: Path) -> tuple[WholeProcess, list[Event], int]:
    """What a server did that was sent all COMMANDS, and when it was killed: leases run until
    then, however long the check takes."""
    trace = directory / "trace"
    prefix = strace(trace, "-e", f"trace={CALLS}")
    with WholeProcess(directory, settings=SETTINGS, prefix=prefix) as server:
        sender = Sender(server.ports)
        half = len(COMMANDS) // 2
        assert sender.send(COMMANDS[:half])
        server.wait_for_line("the log was compacted")
        assert sender.send(COMMANDS[half:])
        sender.close()
        server.kill()
        killed_ns = time.time_ns()
    events = list(events_of(trace, server.data))
    replies = [event for event in events if event.kind == "reply"]
    assert len(replies) == len(COMMANDS), [each.data for each in replies]
    return server, events, killed_ns


def test_every_system_call_of_a_server(tmp_path: Path):
    skip_if_refused(tmp_path)
    server, events, now_ns = traced(tmp_path)
    assert {"write", "sync", "rename", "remove"} <= {event.kind for event in events}
    expected, ids = states(COMMANDS), [job_id(n) for n in range(len(COMMANDS))]
    options = {"data.directory": str(server.data), **SETTINGS}
    checked = 0
    for number, answered, disk in crash_points(events):
        rests: tuple[Survival, ...] = (*EXTREMES, number)
        for rest in rests if EVERY_STATE else (rests[number % 3],):
            after = disk.after_crash(rest)
            found = Recovered(after, options, now_ns).state(ids)
            assert found in expected[answered : answered + 2], (number, events[number], rest)
            checked += 1
    assert checked > 100


def test_originals_write_between_a_crash_and_the_return(tmp_path: Path):
    """What they have acknowledged is there as well, unless zeros show that power was cut."""
    skip_if_refused(tmp_path)
    server, events, now_ns = traced(tmp_path)
    expected, ids = states(COMMANDS), [job_id(n) for n in range(len(COMMANDS))]
    options = {"data.directory": str(server.data), **SETTINGS}
    log, spool = str(server.data / "schedule.log"), server.data / "kestrel"
    foreign: list[ztick.Record] = [ztick.JobSet("theirs", FAR_NS, ztick.Status.PLANNED)]
    checked = kept = 0
    for number, answered, disk in crash_points(events):
        rests: tuple[Survival, ...] = (*EXTREMES, number)
        for rest in rests if EVERY_STATE else (rests[number % 3],):
            after = disk.after_crash(rest)
            names = kestrel_segments("f", names_in(after, str(spool)))
            segments = {name: after.read_bytes(str(spool / name)) for name in names}
            if not after.exists(log) or not segments:
                continue
            before = [after.read_bytes(log), *segments.values()]
            after.plant(log, appended_by_ztick(after.read_bytes(log), foreign))
            changed, _ = appended_by_libkestrel(segments, "f", [b"their item"])
            for name, data in changed.items():
                after.plant(str(spool / name), data)
            found = Recovered(after, options, now_ns).state(ids)
            ours = replace(
                found,
                jobs=tuple(job for job in found.jobs if job[0] != "theirs"),
                items=tuple(item for item in found.items if item != "their item"),
            )
            assert ours in expected[answered : answered + 2], (number, events[number], rest)
            is_all = ("theirs", FAR_NS) in found.jobs and found.items[-1:] == ("their item",)
            assert is_all or any(bytes(16) in data for data in before), (number, rest)
            checked += 1
            kept += is_all
    assert checked > 50
    assert kept > 0.8 * checked


def in_hex(text: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in text.encode())


def test_calls_that_another_thread_interrupts(tmp_path: Path):
    """A trace breaks a call in two wherever threads meet; one that failed changed nothing."""
    file = in_hex("/data/log")
    (tmp_path / "trace").write_text(
        f"""1 ftruncate(3<{file}>, 7 <unfinished ...>
2 unlink("{file}" <unfinished ...>
3 fsync(3<{file}> <unfinished ...>
2 <... unlink resumed>) = -1 ENOENT (No such file or directory)
1 <... ftruncate resumed>) = 0
3 <... fsync resumed>) = 0
1 pwrite64(3<{file}>, "{in_hex("ab")}", 2, 40 <unfinished ...>
2 fsync(3<{file}> <unfinished ...>
3 ftruncate(3<{file}>, 9) = ?
1 <... pwrite64 resumed>) = ?
2 <... fsync resumed>) = ?
1 +++ killed by SIGKILL +++
"""
    )
    assert list(events_of(tmp_path / "trace", Path("/data"))) == [
        Event("truncate", "/data/log", size=7),
        Event("sync", "/data/log"),
        Event("write_at", "/data/log", b"ab", size=40),
        Event("truncate", "/data/log", size=9),
    ]
