"""Lines that the original does not know: what they become, and how wrong ones are refused."""

from __future__ import annotations

import pytest

from journeyman.protocols.workq.commands import (
    Add,
    AddOptions,
    Complete,
    Fail,
    InspectQueues,
    Lease,
    Limits,
    RefusedLine,
    RequeueAll,
    ScheduleJob,
    SetLimits,
    Touch,
)
from journeyman.protocols.workq.parser import WorkqParser

ID = "00000000-0000-4000-8000-000000000001"
OTHER = "00000000-0000-4000-8000-000000000002"
RAW, RAW_OTHER = (bytes.fromhex(text.replace("-", "")) for text in (ID, OTHER))


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("lease a b 5 -max=100 -worker=host-1.2", Lease(("a", "b"), 5, 100, "host-1.2")),
        ("lease a 5 -worker=w", Lease(("a",), 5, 0, "w")),
        (f"touch {ID}", Touch(RAW)),
        (f"touch {ID} 5", Touch(RAW, 5)),
        ("requeue-all q 1000", RequeueAll("q", 1000)),
        ("inspect queues 1 2 -counts=1", InspectQueues(1, 2, with_counts=True)),
        ("limit q", SetLimits("q", Limits())),
        ("limit q -rate=10/m", SetLimits("q", Limits(10, 60_000))),
        ("limit q -rate=1/30s -concurrency=2", SetLimits("q", Limits(1, 30_000, 2))),
        ("limit q -key-concurrency=3", SetLimits("q", Limits(0, 0, 0, 3))),
        ("limit q -fair=1", SetLimits("q", Limits(fair=True))),
        (
            "limit q -fair=1 -weights=gold:3,b-2:1000",
            SetLimits("q", Limits(fair=True, weights={"gold": 3, "b-2": 1000})),
        ),
        ("limit q -key-rate=2/s", SetLimits("q", Limits(key_rate=2, key_per_ms=1000))),
        (f"fail {ID} 0 -delay=7\r\n", Fail(RAW, b"", 7)),
        (f"fail {ID} 0\r\n", Fail(RAW, b"", None)),
        (f"fail {ID} 0 -delay=7 -attempt=3\r\n", Fail(RAW, b"", 7, 3)),
        (f"fail {ID} 0 -attempt=3 -final=1\r\n", Fail(RAW, b"", None, 3, is_final=True)),
        (f"complete {ID} 2 -attempt=4294967295\r\nok", Complete(RAW, b"ok", 4_294_967_295)),
        (
            f"add {ID} q 1 2 0 -key=k -replace=finished -after={OTHER},{OTHER} -even-failed=1\r\n",
            Add(RAW, "q", 1, 2, b"", options=AddOptions("k", True, (RAW_OTHER,), True)),
        ),
        (
            f"add {ID} q 1 2 0 -replace=unstarted -unless={OTHER}\r\n",
            Add(
                *(RAW, "q", 1, 2, b""),
                options=AddOptions("", True, replaces_unstarted=True, unless=RAW_OTHER),
            ),
        ),
        (
            f"add {ID} q 1 2 0 -replace=finished -unique-for=2592000000\r\n",
            Add(RAW, "q", 1, 2, b"", options=AddOptions("", True, (), False, 2_592_000_000)),
        ),
        (
            f"add {ID} q 1 2 0 -replace=different\r\n",
            Add(RAW, "q", 1, 2, b"", options=AddOptions(replaces_finished=True, unless_same=True)),
        ),
        (
            f"add {ID} q 1 2 0 -priority=1 -max-attempts=2 -max-fails=3 -retry-delay=4 -key=k\r\n",
            Add(RAW, "q", 1, 2, b"", 1, 2, 3, 4, AddOptions("k")),
        ),
        (
            f"schedule {ID} q 1 2 1970-01-01T00:00:01Z 0 -key=k\r\n",
            ScheduleJob(RAW, "q", 1, 2, 10**9, b"", options=AddOptions("k")),
        ),
    ],
)
def test_lines_become_commands(line: str, command: object):
    assert WorkqParser().feed(f"{line}\r\n".encode()) == [command]


@pytest.mark.parametrize(
    ("line", "refusal"),
    [
        (f"schedule {ID} q 1 2 1970-01-01T00:00:01Z 0 -after={OTHER}\r\n", "Invalid Parents"),
        (f"add {ID} q 1 1 0 -after={ID}\r\n", "Invalid Parents"),
        (f"add {ID} q 1 1 0 -after={','.join([OTHER] * 1001)}\r\n", "Invalid Parents"),
        (f"add {ID} q 1 1 600000 -after={OTHER}\r\n" + "x" * 600_000, "Invalid payload size"),
        (f"add {ID} q 1 1 0 -unique-for=5\r\n", "Invalid Unique For"),
        (f"add {ID} q 1 1 0 -replace=finished -unique-for=2592000001\r\n", "Invalid Unique For"),
        (f"add {ID} q 1 1 0 -replace=finished -unique-for=x\r\n", "Invalid Unique For"),
        ("lease q 0 -max=0", "Invalid Max"),
        ("lease q 0 -max=101", "Invalid Max"),
        ("lease q 0 -worker=a/b", "Invalid Worker"),
        ("lease q 0 -what=1", "Invalid command args"),
        ("touch x", "Invalid ID"),
        (f"touch {ID} 0", "Invalid TTR"),
        (f"touch {ID} 5 6", "Invalid command args"),
        ("limit q -rate=0/s", "Invalid Rate"),
        ("limit q -rate=10/2d", "Invalid Rate"),
        ("limit q -rate=m", "Invalid Rate"),
        ("limit q -key-rate=0/s", "Invalid Rate"),
        ("limit q -fair=2", "Invalid Fair or Weights"),
        ("limit q -weights=a:1", "Invalid Fair or Weights"),
        ("limit q -fair=1 -weights=a", "Invalid Fair or Weights"),
        ("limit q -fair=1 -weights=a:0", "Invalid Fair or Weights"),
        ("limit q -fair=1 -weights=a:1001", "Invalid Fair or Weights"),
        ("limit q -fair=1 -weights=a:1,a:2", "Invalid Fair or Weights"),
        ("limit q -fair=1 -weights=a:1,", "Invalid Fair or Weights"),
        ("limit q -concurrency=0", "Invalid Concurrency"),
        ("limit q -other=1", "Invalid command args"),
        ("limit q/ -concurrency=1", "Invalid Name"),
        ("requeue-all q 0", "Invalid limit"),
        ("requeue-all q 1001", "Invalid limit"),
        (f"fail {ID} 0 -delay=x\r\n", "Invalid Delay"),
        (f"complete {ID} 0 -attempt=0\r\n", "Invalid Attempt"),
        (f"complete {ID} 0 -delay=1\r\n", "Invalid command args"),
        (f"fail {ID} 0 -attempt=4294967296\r\n", "Invalid Attempt"),
        (f"fail {ID} 0 -other=1\r\n", "Invalid command args"),
        (f"fail {ID} 0 -final=0\r\n", "Invalid command args"),
        (f"complete {ID} 0 -final=1\r\n", "Invalid command args"),
        (f"add {ID} q 1 1 0 -key=a/b\r\n", "Invalid Key"),
        (f"add {ID} q 1 1 0 -replace=all\r\n", "Invalid Replace"),
        (f"add {ID} q 1 1 0 -unless={OTHER}\r\n", "Invalid Unless"),
        (f"add {ID} q 1 1 0 -replace=finished -unless={OTHER}\r\n", "Invalid Unless"),
        (f"add {ID} q 1 1 0 -replace=unstarted -unless=x\r\n", "Invalid Unless"),
        (f"add {ID} q 1 1 0 -replace=unstarted -after={OTHER}\r\n", "Invalid Parents"),
        (
            f"add {ID} q 1 1 600000 -replace=unstarted\r\n" + "x" * 600_000,
            "Invalid payload size",
        ),
        ("inspect queues 0 1 -counts=0", "Invalid command args"),
        ("inspect queue q -counts=1", "Invalid command args"),
        (f"add {ID} q 1 1 0 -after=x\r\n", "Invalid Parents"),
        (f"add {ID} q 1 1 0 -even-failed=1\r\n", "Invalid Even"),
    ],
)
def test_wrong_lines_are_refused(line: str, refusal: str):
    (found,) = WorkqParser().feed(line.encode() + b"\r\n")
    assert isinstance(found, RefusedLine)
    assert found.complaint.startswith(refusal)
