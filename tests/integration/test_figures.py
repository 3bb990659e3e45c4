"""Figures of a running server: by queue, of the disk, and of the build."""

from __future__ import annotations

import urllib.request
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from journeyman import __version__
from journeyman.client import KestrelClient
from journeyman.servers.workq.metrics import MOST_QUEUES
from tests.support.servers.workq_process import WorkqProcess

SETTINGS = {
    "http.listen": "127.0.0.1:0",
    "database.persistence": "logfile",
    "workq.cmdlog_sync": "always",
    "kestrel.enabled": "true",
    "kestrel.listen": "127.0.0.1:0",
}


def figures(server: WorkqProcess) -> dict[tuple[str, ...], float]:
    """By name and the values of its labels."""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.http_port}/metrics") as response:
        text = response.read().decode()
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_figures_by_queue_of_the_disk_and_of_the_build(tmp_path: Path):
    with WorkqProcess(tmp_path, settings=SETTINGS) as server, server.worker() as client:
        port = int(server.wait_for_line(r"the fan-out queues listen on \S+:(\d+)")[1])
        client.add("mail", b"1", flags="-priority=-5")
        server.wait_until(
            lambda: figures(server)["journeyman_workq_oldest_ready_seconds", "mail"] > 0.5,
            "the first job has waited",
        )
        client.add("mail", b"2", flags="-priority=9")  # first in the queue, and not the oldest
        client.add("spam", b"3")
        with KestrelClient(port=port) as queues:
            queues.get("orders", reader="billing")
            queues.put("orders", b"abc")
        found = figures(server)
        assert found["journeyman_workq_queue_jobs", "mail", "ready"] == 2
        assert found["journeyman_workq_queue_jobs", "spam", "ready"] == 1
        assert found["journeyman_workq_queue_jobs", "(other)", "ready"] == 0
        assert found["journeyman_workq_oldest_ready_seconds", "mail"] > 0.5
        assert found["journeyman_kestrel_reader_items", "orders", "billing"] == 1
        assert found["journeyman_kestrel_reader_bytes", "orders", "billing"] == 3
        assert found["journeyman_sync_duration_seconds_count", "workq"] >= 3
        assert found["journeyman_sync_duration_seconds_count", "kestrel"] >= 1
        server.wait_until(
            lambda: figures(server).get(("journeyman_log_bytes", "workq"), 0) > 0, "sampled"
        )
        found = figures(server)
        assert {key[1] for key in found if key[0] == "journeyman_disk_free_bytes"} == {
            "schedule",
            "workq",
            "kestrel",
        }
        [build] = [key for key in found if key[0] == "journeyman_build_info"]
        assert __version__ in build
        assert server.stop() == 0


def test_number_of_queues_with_figures_is_bounded(tmp_path: Path):
    with WorkqProcess(tmp_path, settings=SETTINGS) as server, server.worker() as client:
        for number in range(MOST_QUEUES + 20):
            client.add(f"queue-{number}")
        client.add("queue-0")
        found = figures(server)
        ready = {key[1]: n for key, n in found.items() if key[0].endswith("workq_queue_jobs")}
        shown = {
            key[1]: n
            for key, n in found.items()
            if key[0] == "journeyman_workq_queue_jobs" and key[2] == "ready"
        }
        assert len(ready) == len(shown) == MOST_QUEUES + 1
        assert shown["queue-0"] == 2
        assert shown["(other)"] == 20
        assert sum(shown.values()) == MOST_QUEUES + 21
