"""URLs of a server: one for all three services."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from journeyman.client import (
    AsyncWorkQueue,
    InvalidRequest,
    KestrelClient,
    Schedule,
    ServerUrl,
    WorkQueue,
    parse_url,
)

ROOT = Path(__file__).parents[1] / "integration" / "data" / "root.pem"


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("journeyman://queue.internal", ServerUrl("queue.internal")),
        ("journeyman://s%20ecret@h:9923", ServerUrl("h", "s ecret", {"work_queue": 9923})),
        (
            "journeyman+tls://[::1]/?schedule=1&fan_out=2&http=3",
            ServerUrl("::1", None, {"schedule": 1, "fan_out": 2, "http": 3}, True),
        ),
        (
            "journeyman://h?tls=yes&ca=/x.pem&timeout_s=2.5&connections=3",
            ServerUrl("h", is_tls=True, ca="/x.pem", timeout_s=2.5, connections=3),
        ),
    ],
)
def test_url_names_host_token_ports_and_options(url: str, expected: ServerUrl):
    assert parse_url(url) == expected


def test_without_url_the_environment_counts_and_then_this_machine(monkeypatch):
    monkeypatch.delenv("JOURNEYMAN_URL", raising=False)
    assert parse_url() == ServerUrl("127.0.0.1")
    monkeypatch.setenv("JOURNEYMAN_URL", "journeyman://elsewhere")
    assert parse_url() == ServerUrl("elsewhere")
    assert parse_url("journeyman://here") == ServerUrl("here")


@pytest.mark.parametrize("make", [Schedule, WorkQueue, KestrelClient, AsyncWorkQueue])
def test_each_client_finds_its_own_port(make: Any):
    url = "journeyman://h:7?schedule=5&fan_out=6&timeout_s=3&connections=2"
    endpoint = make.from_url(url)._pool._endpoint
    ports = {"schedule": 5, "fan_out": 6, "work_queue": 7}
    assert endpoint.address == ("h", ports[make.service.word])
    assert endpoint.timeout_s == 3.0
    plain = make.from_url("journeyman://h")._pool._endpoint
    assert plain.address == ("h", make.service.default_port)


def test_certificates_of_the_url_are_trusted():
    client = WorkQueue.from_url(f"journeyman+tls://localhost?ca={ROOT}")
    context = client._pool._endpoint.tls
    assert context is not None
    assert len(context.get_ca_certs()) == 1


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://secret@host", r"must be journeyman://.*begins with 'http'"),
        ("127.0.0.1:9922", r"must be journeyman://.*: it has no journeyman://"),
        ("secret@host", r"must be journeyman://.*: it has no journeyman://"),
        ("journeyman://", r"must be journeyman://.*: it has no host"),
        ("journeyman://host/path", r"must be journeyman://.*: it has a path"),
        ("journeyman://host:99999", r"cannot be read: Port out of range"),
        ("journeyman://host?port=5", r"unknown option 'port': one of schedule, work_queue"),
        ("journeyman://host?schedule=x", r"schedule in the URL must be a whole number, not 'x'"),
        ("journeyman://host?tls=maybe", r"tls in the URL must be true or false, not 'maybe'"),
        ("journeyman://host?timeout_s=x", r"timeout_s in the URL must be a number, not 'x'"),
        ("journeyman://host?timeout_s=0", r"timeout_s must be more than 0 seconds"),
        ("journeyman://host?schedule=0", r"port must be a whole number from 1 to 65535, not 0"),
        ("journeyman://host?connections=0", r"connections must be a whole number from 1"),
        ("journeyman+tls://host?ca=/no/such.pem", r"cannot read the certificates in /no/such.pem"),
    ],
)
def test_bad_urls_are_explained_without_showing_the_token(url: str, said: str):
    with pytest.raises(InvalidRequest, match=said) as caught:
        Schedule.from_url(url)
    assert "secret" not in str(caught.value)
