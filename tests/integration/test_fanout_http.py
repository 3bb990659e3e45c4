"""The fan-out queues over HTTP: what is in them, and their figures."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.servers.fanout_process import FanOutProcess
from tests.support.servers.http_client import ask


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FanOutProcess]:
    with FanOutProcess(tmp_path_factory.mktemp("http"), http__listen="127.0.0.1:0") as running:
        yield running


def test_queues_and_their_readers_are_shown(server: FanOutProcess):
    with server.reader() as client:
        client.get("shown+a")
        client.get("shown+b")
        for data in (b"one", b"two"):
            client.put("shown", data)
        assert client.get("shown+a/open") == b"one"
        status, queue = ask(server, "GET", "/v1/fan-out/queues/shown")
    assert status == 200
    assert (queue["name"], queue["puts"], queue["stored_bytes"]) == ("shown", 2, 56)
    first, second = queue["readers"]
    assert (first["name"], first["items"], first["bytes"], first["open"]) == ("a", 1, 3, 1)
    assert (second["name"], second["items"], second["bytes"], second["open"]) == ("b", 2, 6, 0)
    assert int(queue["created_ns"]) > 1_600_000_000 * 10**9


def test_queue_that_does_not_exist_is_not_found_and_not_made(server: FanOutProcess):
    for name in ("nobody", "..%2f..%2fetc"):
        status, answer = ask(server, "GET", f"/v1/fan-out/queues/{name}")
        assert (status, json.loads(answer)["code"]) == (404, "queue_not_found")
    assert not list(server.queues.glob("nobody*"))


def test_figures_are_among_the_metrics(server: FanOutProcess):
    with server.reader() as client:
        client.put("measured", b"abc")
        client.get("measured/peek")
        client.get("measured/open")
        client.ask("confirm measured 9")
        # Those of other tests go.
        server.wait_until(lambda: metrics(server)["journeyman_kestrel_open_reads", ()] == 1)
        server.wait_until(lambda: metrics(server)["journeyman_kestrel_connections", ()] == 1)
        found = metrics(server)
    assert command(found, "set", "ok") >= 1
    assert command(found, "peek", "item") >= 1
    assert command(found, "get", "item") >= 1
    assert command(found, "confirm", "error") == 1
    assert found["journeyman_kestrel_get_hits_total", ()] >= 2
    assert found["journeyman_kestrel_queues", ()] >= 1
    assert found["journeyman_kestrel_readers", ()] >= 1
    assert found["journeyman_kestrel_batches_total", ()] >= 4


def metrics(server: FanOutProcess) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.http_port}/metrics") as response:
        text = response.read().decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def command(found: dict[tuple[str, tuple[tuple[str, str], ...]], float], *words: str) -> float:
    labels = tuple(zip(("command", "outcome"), words, strict=True))
    return found["journeyman_kestrel_commands_total", labels]
