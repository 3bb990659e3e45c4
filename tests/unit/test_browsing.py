"""Pages of jobs in order: the same as sorting everything, whatever changes meanwhile."""

from __future__ import annotations

import random
import uuid
from typing import Any

import pytest

from journeyman.engines.sorted_set import SortedSet, StillSorting
from journeyman.engines.workq import creation_order
from journeyman.engines.workq.browsing import (
    BrowseJobs,
    BrowseQueues,
    CountFacets,
    FacetCounts,
    JobsFound,
)
from journeyman.engines.workq.engine import WorkqEngine
from journeyman.engines.ztick.browsing import (
    JobPage,
    PageJobs,
    PageRules,
    PageTimetables,
)
from journeyman.engines.ztick.engine import ZtickEngine
from journeyman.engines.ztick.messages import TriggerDue
from journeyman.formats.ztick import Shell, Status
from journeyman.protocols.workq.commands import (
    Add,
    Cancel,
    Complete,
    Delete,
    Fail,
    Lease,
    Requeue,
    ScheduleJob,
)
from journeyman.protocols.ztick.commands import (
    Remove,
    RemoveRule,
    RemoveTimetable,
    Set,
    SetRule,
    SetTimetable,
)
from journeyman.protocols.ztick.grammar import read_timetable
from journeyman.servers.http.v1.work import QueueRates
from journeyman.units import NS_PER_S

NOW_NS = 1_800_000_000 * NS_PER_S


def test_chunks_of_a_sorted_set_go_both_ways():
    numbers = list(range(0, 5000, 2))
    ordered: SortedSet[int] = SortedSet(numbers)
    for bound in (None, -1, 0, 1, 2500, 2501, 4998, 6000):
        up = [n for chunk in ordered.chunks_after(bound) for n in chunk]
        assert up == [n for n in numbers if bound is None or n > bound]
        down = [n for chunk in ordered.chunks_after(bound, descending=True) for n in chunk]
        assert down == [n for n in reversed(numbers) if bound is None or n < bound]


def test_names_that_begin_with_a_prefix_are_paged():
    names = sorted(f"{letter}{number:04}" for letter in "abc" for number in range(1000))
    ordered: SortedSet[str] = SortedSet(["b", *names][1:])
    ordered.add("b")
    everything = sorted([*names, "b"])
    for prefix, after in (("", ""), ("b", ""), ("b", "b"), ("b", "b0500"), ("b", "c"), ("x", "")):
        wanted = [n for n in everything if n.startswith(prefix) and n > after]
        for limit in (1, 7, 5000):
            assert ordered.beginning_with(prefix, after, limit) == wanted[:limit]


def test_rules_and_timetables_are_paged_by_name():
    engine = ZtickEngine()
    runner = Shell("true")
    for number in range(30):
        engine.begin_batch()
        engine.decide(SetRule(b"", f"a.{number:02}", "p", runner), NOW_NS)
        timetable, _ = read_timetable({"every": "1h"})
        engine.decide(SetTimetable(b"", f"a.{number:02}", timetable, runner), NOW_NS)
        if number % 3 == 0:
            engine.undo_batch()
        else:
            engine.commit_batch()
    engine.begin_batch()
    engine.decide(RemoveRule(b"", "a.01"), NOW_NS)
    engine.decide(RemoveTimetable(b"", "a.01"), NOW_NS)
    engine.commit_batch()
    left = [f"a.{number:02}" for number in range(2, 30) if number % 3]

    def rules(*asked: Any, namespace: str = "*") -> list[str]:
        listing: Any = engine.decide(PageRules(*asked), NOW_NS, namespace).reply
        return [rule.identifier for rule in listing.rules]

    def timetables(*asked: Any, namespace: str = "*") -> list[str]:
        listing: Any = engine.decide(PageTimetables(*asked), NOW_NS, namespace).reply
        return [row.identifier for rows in listing.slices for row in rows]

    for page in (rules, timetables):
        assert page() == left
        assert page("a.1", "a.13", 3) == ["a.14", "a.16", "a.17"]
        assert page("", "", 50, namespace="a.2") == [name for name in left if name >= "a.2"]
        assert page("b", "", 50, namespace="a.") == []


def test_jobs_and_leases_of_a_queue_are_counted_unless_taken_back():
    engine = WorkqEngine(seed=1)
    ids = [uuid.uuid4().bytes for _ in range(4)]
    rates = QueueRates(engine.queue_totals)
    rates.sample(10.0)
    assert rates.rates_of(0) is None
    for number, job_id in enumerate(ids):
        engine.begin_batch()
        engine.decide(Add(job_id, "q", 60_000, 10**8, b""), NOW_NS)
        engine.decide(Lease(("q",), 0), NOW_NS, f"worker {number}")
        engine.decide(Complete(job_id, b""), NOW_NS)
        if number == 0:
            engine.undo_batch()
        else:
            engine.commit_batch()
    engine.begin_batch()
    engine.decide(Delete(ids[1]), NOW_NS)
    engine.undo_batch()
    engine.decide(ScheduleJob(ids[0], "q", 1000, 10**8, NOW_NS + 10**12, b""), NOW_NS)
    found: Any = engine.decide(BrowseQueues(), NOW_NS).reply
    (queue,) = found.queues
    assert (queue.added, queue.started, queue.leased) == (4, 3, 0)
    rates.sample(12.0)
    assert rates.rates_of(found.numbers[0]) == (2.0, 1.5)
    assert rates.rates_of(17) == (0.0, 0.0)


def all_pages(engine: ZtickEngine, asked: PageJobs) -> list[tuple[str, Status, int]]:
    rows: list[tuple[str, Status, int]] = []
    after = None
    for _ in range(10_000):
        page = engine.decide(
            PageJobs(asked.prefix, asked.statuses, 7, after, asked.descending, asked.text), NOW_NS
        ).reply
        if isinstance(page, StillSorting):
            continue
        assert isinstance(page, JobPage)
        rows += page.jobs
        after = page.after
        if after is None:
            return rows
    raise AssertionError("the pages have no end")


def test_pages_of_the_schedule_hold_every_job_once_in_order():
    chance = random.Random(7)
    engine = ZtickEngine()
    for step in range(3000):
        if step == 1500:
            all_pages(engine, PageJobs())  # from here on the order is kept
        name = f"{chance.choice('ab')}.{chance.randrange(400)}"
        engine.begin_batch()
        if chance.random() < 0.2:
            engine.decide(Remove(b"", name), NOW_NS)
        else:
            time_ns = NOW_NS + chance.randrange(-1000, 10**6)
            engine.decide(Set(b"", name, time_ns), NOW_NS)
        if chance.random() < 0.3:
            engine.undo_batch()
            continue
        engine.commit_batch()
    engine.begin_batch()
    engine.decide(TriggerDue(), NOW_NS)
    engine.commit_batch()
    everything = all_pages(engine, PageJobs())
    assert len({row[0] for row in everything}) == len(everything) == engine.stats().jobs_total
    assert [row[2] for row in everything] == sorted(row[2] for row in everything)
    assert all_pages(engine, PageJobs(descending=True)) == everything[::-1]
    failed = all_pages(engine, PageJobs(statuses=(Status.FAILED,)))
    assert failed == [row for row in everything if row[1] is Status.FAILED]
    assert failed
    of_a = all_pages(engine, PageJobs(prefix="a."))
    assert of_a == [row for row in everything if row[0].startswith("a.")]
    assert all_pages(engine, PageJobs(text="99")) == [r for r in everything if "99" in r[0]]


def found(engine: WorkqEngine, **asked: object) -> list[str]:
    """The payloads of all pages."""
    seen: list[str] = []
    after = None
    for _ in range(10_000):
        page: Any = engine.decide(BrowseJobs(**asked, limit=7, after=after), NOW_NS).reply  # type: ignore[arg-type]
        if isinstance(page, StillSorting):
            continue
        assert isinstance(page, JobsFound)
        seen += [job.payload.decode() for job in page.jobs]
        after = page.after
        if after is None:
            return seen
    raise AssertionError("the pages have no end")


def test_jobs_of_the_work_queue_are_found_newest_first():
    chance = random.Random(11)
    engine = WorkqEngine(seed=1)
    ids: list[bytes] = []
    for number in range(300):
        if number == 100:
            assert len(found(engine)) == 100  # from here on the order is kept
        job_id = uuid.UUID(int=chance.getrandbits(128), version=4).bytes
        ids.append(job_id)
        name = f"q{number % 3}"
        engine.begin_batch()
        if number % 10 == 9:
            due_ns = NOW_NS + 100 * NS_PER_S
            job = ScheduleJob(job_id, name, 1000, 10**8, due_ns, b"p%d" % number)
            engine.decide(job, NOW_NS)
        else:
            engine.decide(Add(job_id, name, 60_000, 10**8, b"p%d" % number), NOW_NS)
        engine.commit_batch()
    engine.begin_batch()
    engine.decide(Add(uuid.uuid4().bytes, "q0", 1, 10**8, b"undone"), NOW_NS)
    engine.undo_batch()
    engine.decide(Delete(ids[5]), NOW_NS)
    engine.decide(Fail(ids[6], b"Timeout: mail server"), NOW_NS)
    engine.decide(Fail(ids[7], b"no such user"), NOW_NS)
    engine.decide(Lease(("q0",), 0), NOW_NS, "worker")
    newest = [f"p{n}" for n in reversed(range(300)) if n != 5]
    assert found(engine) == newest
    assert found(engine, queue="q1") == [p for p in newest if int(p[1:]) % 3 == 1]
    assert found(engine, state="dead") == ["p7", "p6"]
    assert found(engine, error="timeout") == ["p6"]
    assert found(engine, state="dead", queue="q1") == ["p7"]
    engine.begin_batch()
    engine.decide(Requeue(ids[6]), NOW_NS)
    engine.undo_batch()
    assert found(engine, state="dead") == ["p7", "p6"]
    assert found(engine, state="leased") == ["p0"]
    assert found(engine, state="scheduled") == [p for p in newest if int(p[1:]) % 10 == 9]
    assert found(engine, text=str(uuid.UUID(bytes=ids[42]))) == ["p42"]
    assert found(engine, text=ids[42].hex()[:12]) == ["p42"]
    assert found(engine, text="p29") == [p for p in newest if "p29" in p]
    assert found(engine, queue="none") == []
    assert found(engine, prefix="q2", state="ready") == [
        p for p in newest if int(p[1:]) % 3 == 2 and int(p[1:]) % 10 != 9
    ]
    queues: Any = engine.decide(BrowseQueues(limit=2), NOW_NS).reply
    assert [(q.name, q.ready, q.dead, q.leased) for q in queues.queues] == [
        ("q0", 88, 1, 1),
        ("q1", 89, 1, 0),
    ]
    assert queues.has_more
    rest: Any = engine.decide(BrowseQueues(after="q1"), NOW_NS).reply
    assert [queue.name for queue in rest.queues] == ["q2"]


def test_the_order_is_right_whatever_changes_while_it_is_made(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(creation_order, "SORTED_AT_ONCE", 40)
    monkeypatch.setattr(creation_order, "PART_JOBS", 15)
    chance = random.Random(3)
    engine = WorkqEngine(seed=1)
    jobs: dict[bytes, int] = {}
    dead: set[bytes] = set()

    def add(number: int) -> None:
        job_id = uuid.UUID(int=chance.getrandbits(128), version=4).bytes
        job = Add(job_id, f"q{number % 3}", 60_000, 10**8, b"%d" % number)
        engine.decide(job, NOW_NS + number)
        jobs[job_id] = number

    for number in range(2_000):
        add(number)
    for job_id in chance.sample(sorted(jobs), 100):
        engine.decide(Fail(job_id, b"no"), NOW_NS)
        dead.add(job_id)
    steps = 0
    while isinstance(engine.decide(BrowseJobs(), NOW_NS).reply, StillSorting):
        steps += 1
        add(2_000 + steps)
        gone = chance.choice(sorted(jobs))
        engine.decide(Delete(gone), NOW_NS)
        jobs.pop(gone)
        dead.discard(gone)
        failed = chance.choice(sorted(jobs.keys() - dead))
        engine.decide(Fail(failed, b"no"), NOW_NS)
        dead.add(failed)
        revived = chance.choice(sorted(dead))
        engine.decide(Requeue(revived), NOW_NS)
        dead.discard(revived)
        engine.begin_batch()
        engine.decide(Delete(chance.choice(sorted(jobs))), NOW_NS)
        engine.undo_batch()
    assert steps > 60
    everything = found(engine)
    assert sorted(everything) == sorted(str(number) for number in jobs.values())
    of_time = [p for p in everything if p not in {str(jobs[j]) for j in jobs.keys() - dead}]
    assert found(engine, state="dead") == of_time
    queue: list[str] = found(engine, queue="q1")
    assert queue == [p for p in everything if int(p) % 3 == 1]


def task_engine() -> WorkqEngine:
    engine = WorkqEngine(seed=1)
    calls = [("acme.charge", "4634"), ("acme.charge", '"a b", 7'), ("shop.mail", "4634")]
    for number in range(30):
        task, args = calls[number % 3]
        payload = f'{{"v":1,"task":"{task}","args":[{args}],"kwargs":{{"n":{number}}}}}'
        job_id = uuid.UUID(int=number, version=4).bytes
        now_ns = NOW_NS + number
        engine.decide(Add(job_id, task.partition(".")[0], 60_000, 10**8, payload.encode()), now_ns)
    return engine


def calls_found(engine: WorkqEngine, **asked: object) -> list[int]:
    return [int(payload.rpartition(":")[2].strip("}")) for payload in found(engine, **asked)]


def test_arguments_are_found_as_they_are_shown():
    engine = task_engine()
    assert calls_found(engine, text="acme.charge(4634") == list(range(27, -1, -3))
    assert calls_found(engine, text='Acme.Charge("a b", 7, n=4)') == [4]
    assert calls_found(engine, text="charge(9") == []
    assert calls_found(engine, text="(4634, n=2)") == [2]


def test_jobs_of_a_task_are_found():
    engine = task_engine()
    assert calls_found(engine, task="shop.mail") == list(range(29, 0, -3))
    assert calls_found(engine, task="shop.mai") == []
    assert calls_found(engine, task="acme.charge", queue="shop") == []


def test_the_longest_runs_and_waits_come_first():
    engine = task_engine()
    for number in range(10):
        begun_ns = NOW_NS + (number * 7 % 10 + 1) * NS_PER_S
        engine.decide(Lease(("acme",), 0), begun_ns, f"worker {number}")
        ended_ns = begun_ns + (number * 3 % 10 + 1) * NS_PER_S
        leased: Any = engine.decide(BrowseJobs(state="leased"), begun_ns).reply
        engine.decide(Complete(leased.jobs[0].job_id, b""), ended_ns)
    for order in ("run", "wait"):
        page: Any = engine.decide(BrowseJobs(order=order, limit=4), NOW_NS).reply
        lengths = [
            job.finished_ns - job.started_ns if order == "run" else job.started_ns - job.created_ns
            for job in page.jobs
        ]
        assert len(lengths) == 4
        assert lengths == sorted(lengths, reverse=True)
        assert lengths[0] > 9 * NS_PER_S
        assert (page.after, page.looked) == (None, 30)


def test_jobs_are_counted_by_queue_and_state():
    engine = task_engine()
    ids = [uuid.UUID(int=number, version=4).bytes for number in range(30)]
    engine.decide(Fail(ids[0], b"no"), NOW_NS)
    engine.decide(Cancel(ids[1]), NOW_NS)
    engine.decide(Complete(ids[3], b""), NOW_NS)
    engine.decide(Lease(("acme",), 0), NOW_NS, "worker")
    counted: Any = StillSorting()
    while isinstance(counted, StillSorting):
        counted = engine.decide(CountFacets(), NOW_NS).reply
    assert isinstance(counted, FacetCounts)
    assert counted.states == {
        "ready": 26, "scheduled": 0, "leased": 1, "completed": 1, "dead": 1, "cancelled": 1,
        "waiting": 0,
    }  # fmt: skip
    assert counted.queues == {"acme": 20, "shop": 10}
    of_shop: Any = engine.decide(CountFacets("shop"), NOW_NS).reply
    assert (of_shop.states["ready"], of_shop.queues) == (10, {"shop": 10})
    of_none: Any = engine.decide(CountFacets(prefix="x."), NOW_NS).reply
    assert of_none.queues == {}
