"""What a ledger says of attempts is in a lake what it is in the history of the logs."""

from __future__ import annotations

from pathlib import Path

import pytest

from journeyman.formats import ledger, workq
from journeyman.spark.history.logs import attempts_of
from journeyman.spark.lakes import upkeep, work
from journeyman.spark.lakes.ingest import ingest
from journeyman.spark.lakes.storage import change_lake, open_lake
from tests.support.spark.local_work import session, spread_here
from tests.support.spark.written_logs import (
    added,
    at,
    event,
    job_id,
    key,
    ns,
    write_ledger,
    write_workq,
)

COLUMNS = ("key", "life", "attempt", "task", "worker", "outcome", "error")


@pytest.fixture(autouse=True)
def no_java(monkeypatch):
    monkeypatch.setattr(work, "spread", spread_here)


def server_logs(data: Path) -> dict[str, list[str]]:
    """A job that failed once and then went well, a cancelled one, and one that was added twice."""
    sent = b'{"v":1,"task":"shop.send","args":[],"kwargs":{}}'
    error, failed = b'{"error":"ValueError","message":"no"}', workq.Command.FAIL
    records = [
        added(1, 0, payload=sent, max_fails=3),
        event("start-attempt", 1, 1),
        workq.JobFinished(at(2), job_id(1), failed, error),
        event("timeout-attempt", 1, 2),
        event("start-attempt", 1, 3),
        event("complete", 1, 4),
        added(2, 5, payload=sent),
        event("start-attempt", 2, 6),
        workq.JobFinished(at(7), job_id(2), failed, b'{"error":"Cancelled"}'),
        *(step for life in (10, 20) for step in second_lives(life)),
    ]
    notes = [
        ledger.AttemptsBegun(at(2), "ann", {key(1): 1}),
        ledger.AttemptsBegun(at(6.5), "bob", {key(1): 2, key(2): 1}),
        ledger.JobOptionsSet(at(7), key(2), {"cancelled_ns": ns(7)}),
        ledger.AttemptsBegun(at(12), "cid", {key(3): 1}),
        ledger.AttemptsBegun(at(22), "dan", {key(3): 1}),
        ledger.StepDone(at(3), f"{key(1)}/charge#1", ns(0), "1", 0),
        ledger.StepDone(at(6), f"{key(2)}/charge#1", ns(5), "2", 0),
        ledger.EventSet(at(7), "paid", "3", 0),
        ledger.EventSet(at(8), "sent", "4", 0),
    ]
    return {
        "workq": [write_workq(data / "workq", records)],
        "ledger": [write_ledger(data, notes)],
    }


def second_lives(begin: float) -> list[workq.Record]:
    return [added(3, begin), event("start-attempt", 3, begin + 1), event("delete", 3, begin + 5)]


def rows_in(lake: str) -> list[str]:
    rows = open_lake(lake).read_arrow("silver/attempts", columns=COLUMNS).to_pylist()
    return sorted(map(repr, rows))


def test_attempts_of_a_lake_know_what_those_of_logs_know(spark, tmp_path):
    logs = server_logs(tmp_path / "data")
    lake = str(tmp_path / "lake")
    # The ledger comes later: jobs that it speaks of are folded again.
    ingest(session, lake, {"workq": logs["workq"]}, host="a")
    assert not any(open_lake(lake).read_arrow("silver/attempts")["worker"].is_valid().to_pylist())
    ingest(session, lake, logs, host="a")
    history = attempts_of(spark, logs).select(*COLUMNS).toArrow().to_pylist()
    assert rows_in(lake) == sorted(map(repr, history))
    known = {(row["key"], row["life"], row["attempt"]): row for row in history}
    assert [known[key(1), 1, attempt]["worker"] for attempt in (1, 2)] == ["ann", "bob"]
    assert [known[key(3), life, 1]["worker"] for life in (1, 2)] == ["cid", "dan"]
    assert known[key(1), 1, 1]["error"] == "ValueError"
    assert (known[key(2), 1, 1]["outcome"], known[key(2), 1, 1]["error"]) == ("cancelled", None)
    (daily,) = open_lake(lake).read_arrow("gold/throughput_daily").to_pylist()
    assert (daily["cancelled"], daily["failed"]) == (1, 1)
    in_one_go = str(tmp_path / "other")
    ingest(session, in_one_go, logs, host="a")
    assert rows_in(in_one_go) == rows_in(lake)


def test_a_forgotten_job_is_in_no_note(tmp_path):
    logs, lake = server_logs(tmp_path / "data"), str(tmp_path / "lake")
    ingest(session, lake, logs, host="a")
    with change_lake(lake) as opened:
        upkeep.forget(session, opened, [key(1), "paid"])
    known = open_lake(lake)
    assert key(1) not in known.read_arrow("bronze/notes")["key"].to_pylist()
    payloads = map(str, known.read_arrow("bronze/ledger")["payload"].to_pylist())
    assert not any(key(1) in text or "paid" in text for text in payloads)
    assert known.read_arrow("silver/steps")["key"].to_pylist() == [key(2)]
    assert known.read_arrow("silver/events")["event"].to_pylist() == ["sent"]
    workers = known.read_arrow("silver/attempts")["worker"].to_pylist()
    assert set(workers) == {"bob", "cid", "dan"}
