"""What workers say about their jobs: kept with the job, bounded, over the wire and in memory."""

from __future__ import annotations

import asyncio
import json

import pytest

import journeyman as jm
from journeyman.engines.workq import progress
from journeyman.engines.workq.engine import WorkqEngine
from journeyman.engines.workq.progress import NOTHING
from journeyman.protocols.workq import commands as ask
from journeyman.protocols.workq.parser import WorkqParser
from journeyman.protocols.workq.replies import DONE, NOT_FOUND, JobProgress, reply_bytes
from journeyman.tasks.worker.notes import JobWords
from journeyman.testing import InMemory

NOW_NS = 1_700_000_000 * 10**9
DAY_MS = 86_400_000
A, B, C = (bytes.fromhex(f"0000000d00004000800000000000000{number}") for number in range(3))


@pytest.fixture
def engine() -> WorkqEngine:
    engine = WorkqEngine()
    for job_id in (A, B, C):
        decide(engine, ask.Add(job_id, "q", DAY_MS, DAY_MS, b""))
    decide(engine, ask.Lease(("q",), 0, 3, "w"))
    return engine


def decide(engine: WorkqEngine, command: ask.Command) -> object:
    return engine.decide(command, NOW_NS).reply


def note(engine: WorkqEngine, job_id: bytes, **notes: object) -> object:
    return decide(engine, ask.NoteProgress(job_id, ask.WorkerNotes(**notes)))  # type: ignore[arg-type]


def said(engine: WorkqEngine, job_id: bytes) -> JobProgress:
    reply = decide(engine, ask.InspectProgress(job_id))
    assert isinstance(reply, JobProgress)
    return reply


def test_the_last_word_on_progress_counts_and_lines_are_added(engine):
    assert said(engine, A) == NOTHING
    assert note(engine, A, done=1, total=4, note="first", log=("one",)) == DONE
    assert note(engine, A, log=("two",)) == DONE
    assert note(engine, A, done=2, total=4) == DONE
    found = said(engine, A)
    assert (found.done, found.total, found.note) == (2, 4, "")
    assert [line.text for line in found.log] == ["one", "two"]


def test_only_a_leased_job_has_progress_and_an_ended_one_keeps_it(engine):
    note(engine, A, done=1)
    decide(engine, ask.Complete(A, b""))
    assert note(engine, A, done=2) == ask.RefusedLine(ask.Complaint.NOT_LEASED)
    assert said(engine, A).done == 1
    decide(engine, ask.Delete(A))
    assert decide(engine, ask.InspectProgress(A)) == NOT_FOUND
    assert engine._state.extensions.progress.size == 0


def test_what_is_kept_is_bounded(engine, monkeypatch):
    note(engine, A, log=["x" * 10_000])
    assert len(said(engine, A).log[0].text) == progress.MAX_TEXT
    for _ in range(3):
        note(engine, A, log=["y"] * 100)
    assert len(said(engine, A).log) == progress.MAX_LINES
    notes = engine._state.extensions.progress
    monkeypatch.setattr(progress, "MAX_BYTES", notes.size + 1)
    note(engine, B, log=["z"] * 100)
    assert said(engine, A) == NOTHING  # of which nothing was said for the longest time
    assert len(said(engine, B).log) == 100


def test_the_lines_of_the_protocol():
    text = b'{"done":1,"total":2,"note":"n","log":["l"]}'
    head = b"progress 0000000d-0000-4000-8000-000000000000 %d\r\n" % len(text)
    (read,) = WorkqParser().feed(head + text + b"\r\n")
    assert read == ask.NoteProgress(A, ask.WorkerNotes(1, 2, "n", ("l",)))
    for wrong in (b'{"done":"x"}', b"[]", b"{", b"\xff", b"[" * 5000):
        head = b"progress 0000000d-0000-4000-8000-000000000000 %d\r\n" % len(wrong)
        (read,) = WorkqParser().feed(head + wrong + b"\r\n")
        assert read == ask.RefusedLine(ask.Complaint.NOTES)
    answer = reply_bytes(JobProgress(1, 2, "n", NOW_NS))
    _, line, data, _ = answer.split(b"\r\n")
    assert line == b"progress %d" % len(data)
    assert json.loads(data)["note"] == "n"


def test_words_of_a_moment_are_one_command_and_long_logs_are_several():
    async def run() -> list[bytes]:
        sent: list[bytes] = []
        words = JobWords(asyncio.get_running_loop(), "id", sent.append)
        for number in range(100):
            words.note(ask.WorkerNotes(number, 100))
        words.note(ask.WorkerNotes(log=("line",)))
        words.flush()
        words.flush()
        for _ in range(300):
            words.note(ask.WorkerNotes(log=("x" * 2000,)))
        words.flush()
        return sent

    first, *rest = asyncio.run(run())
    assert json.loads(first.split(b"\r\n")[1]) == {"done": 99, "total": 100, "log": ["line"]}
    sizes = [len(request.split(b"\r\n")[1]) for request in rest]
    assert max(sizes) <= ask.MAX_NOTES_BYTES
    assert sum(len(json.loads(each.split(b"\r\n")[1])["log"]) for each in rest) == 200


def test_an_app_in_memory_keeps_progress():
    app = jm.App()

    @app.task
    def resize(count: int) -> None:
        for number in range(count):
            jm.job().progress(number + 1, count, "resizing")
            jm.job().log("image", number=number)

    resize.function(1)  # outside a worker it does nothing
    with InMemory(app) as queue:
        job = resize.send(3)
        assert job.progress() == NOTHING
        queue.run_all()
        found = job.progress()
    assert (found.done, found.total, found.note) == (3, 3, "resizing")
    assert [line.text for line in found.log] == [f"image number={number}" for number in range(3)]
