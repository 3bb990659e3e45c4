"""Parts of the HTTP port without a server: idempotency keys, records of others' jobs."""

from __future__ import annotations

import asyncio
import gzip
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import web

from journeyman.config import WorkqPersistence
from journeyman.disk import RealDisk
from journeyman.engines.ztick.browsing import JobPage, PageJobs
from journeyman.errors import JourneymanError, SnapshotGivenUp
from journeyman.formats import workq, ztick
from journeyman.formats.framing import DecodedRecords, Entry
from journeyman.formats.ledger import ActionAudited
from journeyman.formats.timed_frame import Instant
from journeyman.formats.workq import Command, JobFinished
from journeyman.protocols.workq.replies import id_text
from journeyman.servers.http import records, routes, sending, ztick_paths
from journeyman.servers.http.problems import ApiError
from journeyman.servers.http.shares import Shares
from journeyman.servers.http.v1.audits import Audits
from journeyman.servers.http.v1.backend import HttpBackend
from journeyman.servers.http.v1.log import LogRoutes
from journeyman.servers.http.v1.past import PastRoutes
from tests.support.token_calls import TokenRequest


class SlowRoutes(routes.Routes):
    """The request with the body b"slow" fails when it is let go; all others are answered."""

    def __init__(self) -> None:
        super().__init__([])
        self.let_go = asyncio.Event()

    async def _make(self, route: routes.Route, request: web.Request, data: bytes) -> routes._Answer:
        if data == b"slow":
            await self.let_go.wait()
            raise ApiError(503, "no")
        return routes._Answer(200, data, "application/json")


def test_a_request_whose_key_was_crowded_out_fails_as_itself(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(routes, "MAX_KEPT_ANSWERS", 1)

    async def run() -> None:
        own = SlowRoutes()
        request, route = cast(web.Request, TokenRequest()), cast(routes.Route, None)
        first, second = (
            asyncio.create_task(own._answer_once(route, request, b"slow", "k")) for _ in range(2)
        )
        await asyncio.sleep(0)
        await own._answer_once(route, request, b"", "another key")
        own.let_go.set()
        for task in (first, second):
            with pytest.raises(ApiError, match="no"):
                await asyncio.wait_for(task, 20)

    asyncio.run(run())


def test_a_kept_answer_is_encoded_for_the_client_that_asks_again():
    """The first client took gzip; the second one did not say so."""

    async def run() -> None:
        own, route = SlowRoutes(), cast(routes.Route, None)
        body = b'"' + b"a" * 5_000 + b'"'
        first, second = TokenRequest(), TokenRequest()
        first.headers["Accept-Encoding"] = "gzip"
        answers: Any = [
            await own._answer_once(route, cast(web.Request, each), body, "k")
            for each in (first, second)
        ]
        assert gzip.decompress(answers[0].body) == body
        assert answers[1].body == body
        assert "Content-Encoding" not in answers[1].headers
        assert answers[1].headers["Idempotency-Replayed"] == "true"

    asyncio.run(run())


@pytest.mark.parametrize(
    ("header", "takes"),
    [
        *(("", False), ("gzip", True), ("GZIP;q=1, br", True), ("br, gzip ; q=0.001", True)),
        *(("gzip;q=0", False), ("br, gzip; Q=0.000", False), ("*", True), ("*;q=0", False)),
        *(("*, gzip;q=0", False), ("notgzip", False), ("identity", False)),
    ],
)
def test_what_a_client_refuses_is_not_sent_to_it(header: str, takes: bool):
    request = TokenRequest()
    request.headers["Accept-Encoding"] = header
    assert routes.takes_gzip(cast(web.Request, request)) is takes


def test_an_empty_log_has_no_past(tmp_path: Path):
    """Not one that begins in 1970."""
    log = tmp_path / "log"
    backend = SimpleNamespace(disk=RealDisk(), work_log=lambda: (str(log), ""))
    past = PastRoutes(cast(Any, backend))
    log.mkdir()
    assert asyncio.run(past.span()) is None
    (log / "000000001.log").write_bytes(workq.CODEC.header)
    assert asyncio.run(past.span()) is None
    times = (5, 6, 7)
    records = [JobFinished(Instant(at), bytes(16), Command.COMPLETE, b"") for at in times]
    (log / "000000002.log").write_bytes(
        workq.CODEC.header + b"".join(map(workq.CODEC.encode, records))
    )
    assert asyncio.run(past.span()) == (5, 7)


def test_a_flood_of_keys_of_one_token_leaves_those_of_others(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(routes, "MAX_KEPT_ANSWERS", 2)

    async def run() -> None:
        own, route = SlowRoutes(), cast(routes.Route, None)

        async def send(name: str, key: str) -> Any:
            request = TokenRequest(name)
            return await own._answer_once(route, cast(web.Request, request), b"1", key)

        await send("team", "mine")
        for number in range(5):
            await send("others", str(number))
        assert (await send("team", "mine")).headers["Idempotency-Replayed"] == "true"
        assert "Idempotency-Replayed" not in (await send("others", "0")).headers

    asyncio.run(run())


def test_a_stream_that_is_never_read_ends(monkeypatch: pytest.MonkeyPatch):
    """And leaves its place to others; what waits for it is bounded until then."""
    monkeypatch.setattr(sending, "WRITE_S", 0.05)
    aborted = []

    class Unread(web.StreamResponse):
        async def prepare(self, request: Any) -> Any: ...

        async def write(self, data: Any) -> None:
            if b"retry" not in data:
                await asyncio.Event().wait()

    async def run() -> None:
        monkeypatch.setattr(web, "StreamResponse", Unread)

        async def make() -> bytes:
            return b"event"

        channel = sending.Channel(make, 0.0)
        transport = SimpleNamespace(abort=lambda: aborted.append(True))
        request: Any = TokenRequest()
        request.transport = transport
        await asyncio.wait_for(sending.stream_events(request, [channel]), 60)
        assert len(channel) == 0

    asyncio.run(run())
    assert aborted == [True]


def test_a_stream_ends_with_the_lease_of_the_server(monkeypatch: pytest.MonkeyPatch):
    """Another server may be active by then, and know better."""
    written: list[bytes] = []

    class Read(web.StreamResponse):
        async def prepare(self, request: Any) -> Any: ...

        async def write(self, data: Any) -> None:
            written.append(data)

    async def run() -> None:
        monkeypatch.setattr(web, "StreamResponse", Read)

        async def make() -> bytes:
            return b"event"

        channel = sending.Channel(make, 0.0)
        request: Any = TokenRequest(is_active=lambda: written.count(b"event") < 3)
        await asyncio.wait_for(sending.stream_events(request, [channel]), 60)
        assert len(channel) == 0

    asyncio.run(run())
    assert written.count(b"event") == 3


def test_a_tail_decodes_no_more_of_a_batch_than_it_shows():
    """A batch of the schedule is bytes already; to decode all of it for a few took a tenth."""
    job = ztick.JobSet("a", 1, ztick.Status.PLANNED)
    batch = [ztick.CODEC.encode(job)] * sending.MOST_RECORDS + [b"never looked at"] * 500
    sample = sending.RecordSample()
    sample.note("schedule", DecodedRecords(ztick.CODEC, batch))
    sample.note("schedule", DecodedRecords(ztick.CODEC, [b"never looked at"]))
    kept, more = sample.take()
    assert kept == [("schedule", job)] * sending.MOST_RECORDS
    assert more == 501


def test_audits_that_come_together_share_a_write():
    class OneWriteAtATime:
        def __init__(self) -> None:
            self.batches: list[list[str]] = []

        async def note(self, records: list[ActionAudited]) -> None:
            self.batches.append([record.target for record in records])
            await asyncio.sleep(0)
            if "refused" in self.batches[-1]:
                raise JourneymanError("the disk is full")

    async def run() -> None:
        ledger, said = OneWriteAtATime(), []
        messages = SimpleNamespace(info=lambda *_, **__: None, warn=lambda *a, **_: said.append(a))
        clock = SimpleNamespace(now_ns=lambda: 1)
        backend = SimpleNamespace(ledger=ledger, messages=messages, clock=clock)
        audits = Audits(cast(Any, backend))
        names = [str(number) for number in range(20)]
        await asyncio.gather(*(audits.note("who", "http", "PUT", name, "done") for name in names))
        assert [name for batch in ledger.batches for name in batch] == names
        assert len(ledger.batches) <= 2
        await audits.note("who", "http", "PUT", "refused", "done")
        assert said == [("audits are lost",)]
        await audits.note("who", "http", "PUT", "again", "done")
        assert ledger.batches[-1] == ["again"]

    asyncio.run(run())


def test_records_whose_queue_is_not_known_are_for_tokens_of_all_namespaces(
    monkeypatch: pytest.MonkeyPatch,
):
    """A cleaning may have taken the add of a job, which names its queue, and left its result."""
    job_id = bytes.fromhex("00000000000040008000000000000001")
    finished = JobFinished(Instant(1), job_id, Command.COMPLETE, b"of another team")
    placed = records.PlacedRecord("file", Entry(0, 1, finished), b"")
    monkeypatch.setattr(records, "of_work_job", lambda *_: [placed])
    work = SimpleNamespace(enabled=True, persistence=WorkqPersistence.LOG, cmdlog_path="log")
    histories = Shares(1, 1, "full")
    backend = SimpleNamespace(settings=SimpleNamespace(workq=work), disk=None, histories=histories)
    own = LogRoutes(cast(Any, backend), cast(Any, None))

    def ask(namespace: str) -> Any:
        request = cast(web.Request, TokenRequest(namespace=namespace))
        call = routes.RouteCall(request, {"job": id_text(job_id)}, None, None)
        return asyncio.run(own.work_history(call))

    assert len(ask("*").records) == 1
    with pytest.raises(ApiError, match="no such job"):
        ask("team.")


def test_the_records_of_a_job_are_bounded_in_bytes(tmp_path: Path):
    """Each of its attempts may have failed with a result of a megabyte."""
    job_id = bytes.fromhex("00000000000040008000000000000001")
    failed = JobFinished(Instant(1), job_id, Command.FAIL, bytes(1024 * 1024))
    data = workq.CODEC.header + workq.CODEC.encode(failed) * 40
    (tmp_path / "000000001.log").write_bytes(data)
    found = records.of_work_job(RealDisk(), str(tmp_path), job_id)
    assert len(found) == records.MOST_BYTES // (1024 * 1024)
    assert {len(each.data) for each in found} == {records.SHOWN_BYTES}
    assert found[0].entry.record == failed


@pytest.mark.parametrize(("prefix", "after"), [("", b"0"), ("team.", None)])
def test_a_token_with_a_namespace_gets_no_cursor_in_the_middle(prefix: str, after: bytes | None):
    """It names the last job that was looked at, which may be another's."""
    asked = []

    async def ask(page: PageJobs) -> JobPage:
        asked.append(page.after)
        return JobPage((), b"%d" % len(asked[1:]) if len(asked) < 3 else None, len(asked) == 3)

    async def turn() -> None: ...

    backend = cast(Any, SimpleNamespace())
    backend.shared = SimpleNamespace(slices=SimpleNamespace(turn=turn))
    call = cast(Any, SimpleNamespace(prefix=prefix))
    search = PageJobs(text="none has it")
    backend._loop_time = iter((0.0, 9.0, 9.0, 9.0)).__next__
    assert asyncio.run(HttpBackend._gather(backend, ask, call, search)) == ((), after)
    if prefix:
        asked.clear()
        backend._loop_time = iter((0.0, 99.0)).__next__
        with pytest.raises(ApiError, match="too long"):
            asyncio.run(HttpBackend._gather(backend, ask, call, search))


@pytest.mark.parametrize("error", [TimeoutError, SnapshotGivenUp])
def test_a_list_that_ends_early_is_cut_and_nothing_follows_it(error: type[Exception]):
    """Another answer in the middle of a body would be taken for a part of it."""

    async def turn() -> None: ...

    async def write(_: object, __: bytes) -> None:
        raise error

    class Started(web.StreamResponse):
        async def prepare(self, _: object) -> None: ...

    closed: list[bool] = []
    sender = SimpleNamespace(turn=turn, write=write, close_unread=lambda: closed.append(True))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(web, "StreamResponse", Started)
        sent = asyncio.run(ztick_paths.send_list(cast(Any, {"sender": sender}), [[b"1"]]))
    assert (type(sent), closed) == (Started, [True])
