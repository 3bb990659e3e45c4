"""The adapter for another project's benchmark keeps to that benchmark's contract."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from bench.queue_contract import adapter

from tests.support.ports import free_port

METRICS = {
    *("claim_p50_ms", "claim_p95_ms", "claim_p99_ms"),
    *("enqueue_rate", "completion_rate", "queue_depth"),
}


@pytest.mark.slow
def test_the_adapter_sends_what_it_is_told_works_and_says_how_much(data_address: str):
    environment = os.environ | {
        "DATABASE_URL": data_address.replace("postgresql://", "postgres://"),
        "SCENARIO": "long_horizon",
        "PRODUCER_PACING": "harness",
        "SAMPLE_EVERY_S": "1",
        "JOURNEYMAN_PORT": str(free_port()),
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.queue_contract.adapter"],
        env=environment, cwd=Path(__file__).parent.parent.parent, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        descriptor = json.loads(process.stdout.readline())
        manifest = json.loads((Path(adapter.__file__).parent / "adapter.json").read_text())
        assert descriptor["kind"] == "descriptor"
        assert manifest.items() <= descriptor.items()
        seen, completed = set[str](), 0.0
        while completed < 1 or seen < METRICS:
            process.stdin.write("ENQUEUE 3\n")  # what is told before the server is there is lost
            process.stdin.flush()
            sample = json.loads(process.stdout.readline())
            seen.add(sample["metric"])
            if sample["metric"] == "completion_rate":
                completed += sample["value"]
        assert seen == METRICS
        process.send_signal(signal.SIGTERM)
        process.stdin.close()
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
