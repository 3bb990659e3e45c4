"""Jobs onto a server: the same again is not twice, refusals are counted, the rate is kept."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from journeyman.client.errors import CannotConnect
from journeyman.errors import UsageError
from journeyman.spark.sinks.sending import Sent, check_columns, job_uuid, send_rows
from journeyman.spark.sinks.server_options import ServerOptions, split_server_address
from journeyman.testing import ManualClock
from tests.support.ports import free_port
from tests.support.scripted_peer import Cut, Exchange, ScriptedPeer

OK = b"+OK\r\n"
DUPLICATE = b"-CLIENT-ERROR Duplicate job\r\n"


def options(peer: ScriptedPeer | None, dialect: str, **more: Any) -> ServerOptions:
    port = 1 if peer is None else peer.port
    given = {"door": dialect, "address": f"127.0.0.1:{port}", "runId": "run"}
    return ServerOptions.parse(given | {name: str(value) for name, value in more.items()})


def add(key: str) -> bytes:
    return b"add %s q 60000 86400000 1\r\nx\r\n" % str(job_uuid("run", key)).encode()


def row(key: str) -> dict[str, Any]:
    return {"job_key": key, "name": "q", "payload": "x"}


def test_ids_are_made_of_run_and_key_and_are_of_version_4():
    first = job_uuid("run", "a")
    assert first == job_uuid("run", "a")
    assert first.version == 4
    others = {job_uuid("run", "b"), job_uuid("runa", ""), job_uuid("ru", "na")}
    assert first not in others
    assert len(others) == 3


def test_jobs_that_a_broken_connection_took_are_sent_again_and_not_added_twice():
    script: list[Exchange] = [
        (add("a") + add("b"), Cut),
        (add("a"), DUPLICATE),
        (add("b"), OK),
        (add("c"), DUPLICATE),
    ]
    with ScriptedPeer(script) as peer:
        rows = [row("a"), row("b"), row("c")]
        sent = send_rows(options(peer, "workq", batchSize=2), rows, ManualClock())
    assert sent == Sent(put=2, already_there=1)


def test_a_whole_task_run_twice_adds_its_jobs_once():
    script: list[Exchange] = [(add("a") + add("b"), OK + OK), (add("a") + add("b"), Cut)]
    script += [(add("a"), DUPLICATE), (add("b"), DUPLICATE)]
    with ScriptedPeer(script[:1]) as peer:
        assert send_rows(options(peer, "workq"), [row("a"), row("b")], ManualClock()).put == 2
    with ScriptedPeer(script[1:]) as peer:
        again = send_rows(options(peer, "workq"), [row("a"), row("b")], ManualClock())
    assert again.put + again.already_there == 2
    assert again.refused == 0


def test_rows_that_are_no_jobs_are_refused_and_the_others_go():
    name = "00000000-0000-4000-8000-000000000001"
    sent_line = f"schedule {name} q 5 60000 2033-05-18T03:33:20.000001Z 0 -priority=2\r\n\r\n"
    good = {"job_id": UUID(name).bytes, "name": "q", "ttr_ms": 5, "ttl_ms": 60_000, "priority": 2}
    rows: list[dict[str, Any]] = [
        good | {"name": None},
        good | {"job_id": b"short"},
        good | {"job_id": None},
        good | {"payload_size": 3},
        good | {"ttl_ms": 0},
        good | {"time_ns": 2_000_000_000_000_001_999},
    ]
    with ScriptedPeer([(sent_line.encode(), OK)]) as peer:
        sent = send_rows(options(peer, "workq"), rows, ManualClock())
    assert (sent.put, sent.refused) == (1, 5)
    reasons = [reason for _, reason in sent.first_refused]
    for reason, words in zip(
        reasons,
        ["name is null", "16-char", "both null", "payload_size is not 0", "ttl_ms must be"],
        strict=True,
    ):
        assert words in reason


def test_rows_of_ztick_are_set_and_others_are_refused():
    rows: list[dict[str, Any]] = [
        {"identifier": "a", "execution_ns": 5, "kind": "set"},
        {"identifier": "b", "execution_ns": 5, "kind": "remove"},
        {"identifier": "c", "execution_ns": None, "kind": None},
        {"identifier": None, "execution_ns": 5, "kind": "set"},
    ]
    with ScriptedPeer([(b"1 SET a 5\n", b"1 OK\n")]) as peer:
        sent = send_rows(options(peer, "ztick"), rows, ManualClock())
    assert (sent.put, sent.refused) == (1, 3)
    assert [job for job, _ in sent.first_refused] == ["b", "c", "a row without a name"]


def test_the_rate_is_kept_over_all_tasks():
    clock = ManualClock()
    script: list[Exchange] = [
        (b"%d SET j 5\n%d SET j 5\n" % (n, n + 1), b"%d OK\n%d OK\n" % (n, n + 1))
        for n in (1, 3, 5)
    ]
    with ScriptedPeer(script) as peer:
        before = clock.monotonic_ns()
        job = {"identifier": "j", "execution_ns": 5}
        limited = options(peer, "ztick", rateLimit=10, tasks=5)  # two a second for this task
        assert send_rows(limited, [job] * 6, clock).put == 6
    assert clock.monotonic_ns() - before == pytest.approx(3e9)


def test_a_server_that_stays_away_is_given_up_on_after_so_many_attempts():
    port = free_port()
    clock = ManualClock()
    before = clock.monotonic_ns()
    given = {"door": "ztick", "address": f"127.0.0.1:{port}", "maxRetries": "3"}
    with pytest.raises(CannotConnect):
        send_rows(ServerOptions.parse(given), [{"identifier": "j", "execution_ns": 5}], clock)
    assert clock.monotonic_ns() - before == pytest.approx((0.2 + 0.4 + 0.8) * 1e9)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "needs the option door"),
        ({"door": "kestrel"}, "door is ztick or workq"),
        ({"door": "ztick", "adress": "x"}, "did you mean address"),
        ({"door": "ztick", "address": "host:port"}, "an address is HOST:PORT"),
        ({"door": "ztick", "rateLimit": "5"}, "say with tasks how many"),
        ({"door": "ztick", "rateLimit": "0", "tasks": "1"}, "above 0"),
        ({"door": "ztick", "batchSize": "0"}, "batchSize is a number from 1"),
        ({"door": "ztick", "refused": "ignore"}, "refused is fail or skip"),
        ({"door": "ztick", "tls": "yes"}, "tls is true or false"),
    ],
)
def test_options_are_checked(given, words):
    with pytest.raises(UsageError, match=words):
        ServerOptions.parse(given)


def test_a_token_is_not_shown():
    assert "hidden" not in repr(ServerOptions.parse({"door": "ztick", "token": "hidden"}))


@pytest.mark.parametrize(
    ("text", "address"),
    [
        (None, ("127.0.0.1", 7)),
        ("host", ("host", 7)),
        ("host:9", ("host", 9)),
        ("[::1]:9", ("::1", 9)),
        ("[::1]", ("::1", 7)),
    ],
)
def test_addresses(text, address):
    assert split_server_address(text, 7) == address


@pytest.mark.parametrize(
    ("dialect", "columns", "words"),
    [
        ("ztick", ["identifier"], "need the column execution_ns"),
        ("workq", ["job_id"], "need the column name"),
        ("workq", ["name"], "job_key from which ids are made"),
    ],
)
def test_columns_are_checked(dialect, columns, words):
    with pytest.raises(UsageError, match=words):
        check_columns(dialect, columns)
