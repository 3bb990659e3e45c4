"""Power is cut after every system call of a real server: what it had acknowledged is there."""

from __future__ import annotations

import os
import time
from pathlib import Path

from journeyman.testing import Survival
from tests.support.crash.acknowledged import COMMANDS, Recovered, Sender, job_id, states
from tests.support.crash.cuts import EXTREMES
from tests.support.crash.traces import CALLS, crash_points, events_of, skip_if_refused, strace
from tests.support.servers.whole_process import WholeProcess

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


def test_every_system_call_of_a_server(tmp_path: Path):
    skip_if_refused(tmp_path)
    trace = tmp_path / "trace"
    prefix = strace(trace, "-e", f"trace={CALLS}")
    with WholeProcess(tmp_path, settings=SETTINGS, prefix=prefix) as server:
        sender = Sender(server.ports)
        half = len(COMMANDS) // 2
        assert sender.send(COMMANDS[:half])
        server.wait_for_line("the log was compacted")
        assert sender.send(COMMANDS[half:])
        sender.close()
        server.kill()
    events = list(events_of(trace, server.data))
    replies = [event for event in events if event.kind == "reply"]
    assert len(replies) == len(COMMANDS), [each.data for each in replies]
    assert {"write", "sync", "rename", "remove"} <= {event.kind for event in events}
    expected, ids = states(COMMANDS), [job_id(n) for n in range(len(COMMANDS))]
    options = {"data.directory": str(server.data), **SETTINGS}
    checked = 0
    for number, answered, disk in crash_points(events):
        rests: tuple[Survival, ...] = (*EXTREMES, number)
        for rest in rests if EVERY_STATE else (rests[number % 3],):
            after = disk.after_crash(rest)
            found = Recovered(after, options, time.time_ns()).state(ids)
            assert found in expected[answered : answered + 2], (number, events[number], rest)
            checked += 1
    assert checked > 100
