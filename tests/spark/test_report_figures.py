"""Every figure of a report, checked against a count in plain Python that shares no code with it.

The logs hold what real ones do: failures, retries, timeouts, expired jobs, deleted ones, jobs that
no rule matches, runs without recorded times, runs cut off and run again, leases without an add,
readers at different places, segments that were removed.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import pytest

from journeyman.formats import kestrel, workq, ztick
from journeyman.logs.ztick import run_history
from journeyman.spark.history.columns import RowFilter
from journeyman.spark.history.logs import attempts_of
from journeyman.spark.history.summaries import summary
from journeyman.spark.lakes.ingest import ingest
from journeyman.spark.lakes.storage import Lake, open_lake
from journeyman.spark.report import report, report_of_lake
from journeyman.spark.report.axis import MOST_POINTS
from journeyman.spark.report.figures import TOP
from journeyman.spark.report.page import Bars, Chart, Report, Section, Table
from journeyman.spark.report.units import column_unit, format_in, format_value
from tests.support import report_counts as by_hand
from tests.support.report_counts import Axis, Queue, Try, is_between, rounded_percentile
from tests.support.spark.written_logs import (
    added,
    at,
    event,
    job_id,
    ns,
    planned,
    put,
    run,
    write_kestrel,
    write_workq,
    write_ztick,
)

pytestmark = pytest.mark.usefixtures("planned_once")

MADE_NS = ns(1_000_000)
QUEUES = [f"queue{number:02d}" for number in range(15)]
FAILED = ("failed", "timed-out", "cut-off")
SUCCEEDED = ("completed", "executed")


def work(seed: int = 7, jobs: int = 400) -> list[workq.Record]:
    """What a server with some workers writes, and a few odd records at the end."""
    chance = random.Random(seed)
    log: list[tuple[float, int, workq.Record]] = []

    def note(record: workq.Record, seconds: float) -> None:
        log.append((seconds, len(log), record))

    for number in range(1, jobs):
        now = chance.uniform(0, 3000)
        due = now + chance.uniform(10, 900) if chance.random() < 0.2 else None
        ttl = chance.choice([15, 100_000, 100_000])
        most_fails, most_attempts = chance.choice([0, 3]), chance.choice([0, 0, 2])
        queue = QUEUES[min(int(chance.expovariate(0.25)), len(QUEUES) - 1)]
        job = added(
            number,
            now,
            queue=queue,
            due_s=due,
            ttl_s=ttl,
            max_fails=most_fails,
            max_attempts=most_attempts,
            payload=b"p" * chance.randrange(60),
        )
        note(job, now)
        _live(chance, note, number, due or now, ttl, most_attempts, most_fails)
    records = [record for _, _, record in sorted(log, key=lambda each: each[:2])]
    return [*records, *_odd()]


def _live(chance, note, number, ready, ttl, most_attempts, most_fails) -> None:
    """One job from ready to its end, if it has one."""
    expires, attempts, fails = ready + ttl, 0, 0
    while True:
        start = ready + chance.choice([0.0, chance.expovariate(0.1), chance.expovariate(2)])
        fate = chance.choices(
            ["complete", "fail", "time out", "stay", "delete", "unleased fail"],
            [60, 18, 10, 3, 5, 4],
        )[0]
        if start > 3000 or (fate == "stay" and chance.random() < 0.5):
            return
        if start >= expires:
            note(event("expire", number, expires), expires)
            return
        if fate == "delete":
            note(event("delete", number, start), start)
            return
        if fate != "unleased fail":
            note(event("start-attempt", number, start), start)
            attempts += 1
        if fate == "stay":
            return
        end = start if fate == "unleased fail" else start + chance.expovariate(0.2)
        if fate == "time out":
            end = start + 60
            note(event("timeout-attempt", number, end), end)
            if most_attempts and attempts >= most_attempts:
                return
            ready = end
            continue
        is_final = fate == "complete" or fails + 1 >= most_fails
        if is_final or chance.random() < 0.5:
            note(event("complete" if fate == "complete" else "fail", number, end), end)
        else:  # as written today: hidden from the original
            hidden = workq.JobFinished(at(end), job_id(number), workq.Command.FAIL, b"", True)
            note(hidden, end)
        if is_final:
            if chance.random() < 0.3:  # its result was fetched, and the job deleted
                note(event("delete", number, end + 5), end + 5)
            return
        note(event("timeout-attempt", number, end), end)  # a retry
        fails, ready = fails + 1, end


def _odd() -> list[workq.Record]:
    """Orders that a server writes rarely, after everything else."""
    return [
        # Runs in the foreground: no add. One is over, of the other the expiry is not logged yet.
        *(event("start-attempt", 9001, 3100), event("complete", 9001, 3103)),
        event("expire", 9001, 3110),
        *(event("start-attempt", 9002, 3111), event("fail", 9002, 3112)),
        # Leased again while leased; the timeout of the first lease comes late.
        *(added(9003, 3113), event("start-attempt", 9003, 3114)),
        *(event("start-attempt", 9003, 3120), event("timeout-attempt", 9003, 3121)),
        event("complete", 9003, 3125),
        # The lease stands before the add.
        *(event("start-attempt", 9004, 3126), added(9004, 3126), event("complete", 9004, 3127)),
        # An id used again: the end of the former job is missing.
        *(added(9005, 3128, queue="old"), added(9005, 3129, queue="new")),
        # Finished twice, and leased after it was finished.
        *(added(9006, 3130), event("start-attempt", 9006, 3131), event("complete", 9006, 3132)),
        *(event("complete", 9006, 3133), event("start-attempt", 9006, 3134)),
        # Leased in the very nanosecond in which it was added.
        *(added(9007, 3135), event("start-attempt", 9007, 3135), event("complete", 9007, 3135)),
        # The log ends with records that end no attempt.
        event("delete", 9006, 3400),
    ]


def schedule(
    seed: int = 3, jobs: int = 300
) -> tuple[list[ztick.Record], list[run_history.RunLine]]:
    chance = random.Random(seed)
    records: list[ztick.Record] = [
        ztick.RuleSet("mail", "mail.", ztick.Shell("true")),
        ztick.RuleSet("backup", "backup.", ztick.Shell("true")),
        ztick.RuleSet("gone", "gone.", ztick.Shell("true")),
        ztick.RuleRemoved("gone"),
        ztick.JobRemoved("never.set"),
    ]
    runs = []
    for number in range(jobs):
        due = chance.uniform(100, 2500)
        fate = chance.choices(
            ["run", "fail", "no rule", "no line", "cut off", "kill", "plan", "move", "remove"],
            [120, 30, 40, 10, 8, 4, 20, 8, 6],
        )[0]
        rule = chance.choice(["mail", "mail", "backup"])
        job = f"lonely.{number}" if fate == "no rule" else f"{rule}.{number}"
        if fate == "plan":
            due = chance.choice([due, 5000 + number])
        records.append(planned(job, due))
        if fate == "move":
            records.append(planned(job, due + 4000))
        elif fate == "remove":
            records.append(ztick.JobRemoved(job))
        elif fate != "plan":
            records.append(planned(job, due, "triggered"))
        started = due + chance.choice([0.0, 0.001, 0.01, chance.uniform(0, 3)])
        ended = started + chance.expovariate(0.5)
        if fate == "cut off":
            runs.append(run(job, due, started, ended, "cut-off"))
            started, ended = ended + 30, ended + 31
        if fate in ("run", "fail", "cut off"):
            outcome = "failed" if fate == "fail" else "executed"
            runs.append(run(job, due, started, ended, outcome))
            records.append(planned(job, due, outcome))
        elif fate in ("no rule", "no line"):
            records.append(planned(job, due, "failed" if fate == "no rule" else "executed"))
        if fate == "no rule" and number % 2:  # older servers recorded nothing of these
            ended = due + chance.uniform(0, 30)
            runs.append(replace(run(job, due, ended, ended, "failed"), rule="", runner=""))
    runs.append(run("compacted.1", 90, 91, 92))  # the log no longer knows this job
    runs += [run("mail.twice", 200, 200, 201), run("mail.twice", 200, 300, 301)]
    records += [planned("mail.twice", 200), planned("mail.twice", 200, "executed")]
    return records, runs


def spools() -> list[tuple[Queue, list[list[kestrel.Record]]]]:
    """Fourteen queues; of some the oldest segments were removed, of one all."""
    chance = random.Random(5)
    found = []
    for number in range(14):
        first, count = 1 + 100 * (number % 3), 40 + 7 * number
        items = [
            put(
                first + at,
                number * 20 + at * 3,
                size=chance.randrange(5, 40),
                expires_s=number * 20 + at * 3 + 50 if chance.random() < 0.2 else None,
            )
            for at in range(count)
        ]
        head = first + chance.randrange(count)
        done = tuple(at for at in range(head + 2, first + count) if chance.random() < 0.2)
        readers = {"a": (head, done)} if number % 2 else {"a": (head, done), "b": (first + 9, ())}
        segments: list[list[Any]] = [items[: count // 2], items[count // 2 :]]
        found.append((Queue(f"news{number:02d}", items, readers), segments))
    found.append((Queue("read", (), {"a": (77, ())}), [[]]))
    return found


@dataclass(frozen=True)
class World:
    """Logs, what the page says about them, and the same by hand."""

    found: Report
    logs: dict[str, list[str]]
    work: by_hand.WorkQueue
    work_records: list[list[workq.Record]]
    schedule: by_hand.Schedule
    queues: list[Queue]
    segments: dict[str, list[list[kestrel.Record]]]
    schedule_records: list[ztick.Record]
    as_of_ns: int

    def section(self, title: str) -> Section:
        return next(each for each in self.found.sections if each.title == title)


@pytest.fixture(scope="module")
def world(spark, tmp_path_factory) -> World:
    directory = tmp_path_factory.mktemp("figures")
    records = work()
    halves = [records[: len(records) // 2], records[len(records) // 2 :]]
    jobs, runs = schedule()
    queues = spools()
    for queue, segments in queues:
        write_kestrel(directory / "spool", queue.name, segments, dict(queue.readers))
    logs = {
        "workq": [write_workq(directory / "wq", *halves)],
        "ztick": [write_ztick(directory / "logfile", jobs, runs)],
        "kestrel": [str(directory / "spool")],
    }
    counted = by_hand.count_workq(records)
    as_of_ns = counted.last_ns  # later than all else in these logs
    by_hand.expire(counted.tries, as_of_ns)
    return World(
        report(spark, logs, made_ns=MADE_NS),
        logs,
        counted,
        halves,
        by_hand.count_ztick(jobs, runs, as_of_ns),
        [queue for queue, _ in queues],
        {queue.name: segments for queue, segments in queues},
        jobs,
        as_of_ns,
    )


def test_every_dialect_has_its_section_then_audit_and_files(world):
    titles = [each.title for each in world.found.sections]
    assert titles == ["Work queue", "Schedule", "Fan-out queues", "Audit", "Files"]
    assert world.found.logs == [path for paths in world.logs.values() for path in paths]
    assert len(world.found.logs) == 3


def figures(section: Section) -> dict[str, Any]:
    """All that a section shows, by title: nothing may be missing from what is compared."""
    found: dict[str, Any] = {f"{tile.name}:": (tile.value, tile.note) for tile in section.tiles}
    for part in section.parts:
        if isinstance(part, Chart):
            found[part.title] = {series.name: list(series.values) for series in part.series}
        elif isinstance(part, Bars):
            found[part.title] = {
                label: sum(value for value, _ in parts) for label, parts in part.rows
            }
        else:
            found[part.title] = [list(row) for row in part.rows]
    return found


def axis_of(section: Section, title: str, moments: Sequence[int], until_ns: int) -> Axis:
    """The buckets of a chart: evenly spaced, from the first moment to the last, not too many."""
    chart = next(part for part in section.parts if part.title == title)
    assert isinstance(chart, Chart)
    axis = chart.axis
    first, bucket_ns = min(moments) // axis.bucket_ns * axis.bucket_ns, axis.bucket_ns
    assert list(axis.times_ns) == list(range(first, max(moments) + 1, bucket_ns))
    assert 60 < len(axis.times_ns) <= MOST_POINTS
    return Axis(axis.times_ns, bucket_ns, until_ns)


def all_moments(world: World, *, is_of_lake: bool = False) -> list[int]:
    """Charts of all dialects share one axis."""
    items = [each for queue in world.queues for each in queue.tries()]
    by_hand.expire(items, world.as_of_ns)
    moments = moments_of([*world.work.tries, *world.schedule.tries, *items])
    moments += [
        each.ready
        for each in world.schedule.tries
        if each.ended is None and each.outcome in ("executed", "failed") and each.ready is not None
    ]
    if not is_of_lake:  # which does not know when records were written that did nothing
        moments += [record.logged.unix_ns for half in world.work_records for record in half]
    return moments


def moments_of(tries: Sequence[Try]) -> list[int]:
    every = [moment for each in tries for moment in (each.created, each.started, each.ended)]
    return [moment for moment in every if moment is not None]


def counted(tries: Sequence[Try], *outcomes: str) -> int:
    return sum(each.outcome in outcomes for each in tries)


def count(number: int) -> str:
    return f"{number:,}"


def length_tiles(name: str, tries: Sequence[Try]) -> dict[str, tuple[str, str]]:
    ran = [each for each in tries if each.started is not None]
    waits, runs = [each.wait for each in ran], [each.run for each in ran]
    return {
        f"{title}:": (
            format_value(rounded_percentile(values, 0.5), "ns"),
            f"median; 99 %: {format_value(rounded_percentile(values, 0.99), 'ns')}",
        )
        for title, values in ((name, waits), ("Run time", runs))
    }


def busiest(tries: Sequence[Try], jobs: Any, nameless: str) -> list[list[str]]:
    groups = defaultdict(list)
    for each in tries:
        groups[each.group].append(each)
    first = sorted(groups.items(), key=lambda each: (-sum(map(jobs, each[1])), each[0]))[:TOP]
    lengths = [
        [
            rounded_percentile(values, rank)
            for values in ([each.wait for each in rows], [each.run for each in rows])
            for rank in (0.5, 0.99)
        ]
        for _, rows in first
    ]
    units = [column_unit([row[at] for row in lengths], "ns") for at in range(4)]
    return [
        [
            name or nameless,
            count(sum(map(jobs, rows))),
            count(sum(each.started is not None for each in rows)),
            count(counted(rows, *FAILED)),
            *(format_in(value, unit) for value, unit in zip(numbers, units, strict=True)),
        ]
        for (name, rows), numbers in zip(first, lengths, strict=True)
    ]


def share(failed: int, succeeded: int) -> str:
    return f"{100 * failed / (failed + succeeded):.1f} % of those that ended"


@dataclass(frozen=True)
class Page:
    """A report of the logs, or of a lake that took them in."""

    found: Report
    is_of_lake: bool = False

    def section(self, title: str) -> Section:
        return next(each for each in self.found.sections if each.title == title)


@pytest.fixture(scope="module")
def lake(spark, world, tmp_path_factory) -> Lake:
    path = str(tmp_path_factory.mktemp("lake"))
    ingest(lambda: spark, path, world.logs, host="a")
    return open_lake(path)


@pytest.fixture(scope="module", params=["logs", "lake", "chosen rows"])
def page(request, spark, world) -> Page:
    if request.param == "logs":
        return Page(world.found)
    of_lake, as_of_ns = request.getfixturevalue("lake"), world.as_of_ns
    chosen = RowFilter(condition="true" if request.param == "chosen rows" else None)
    found = report_of_lake(
        spark, of_lake, made_ns=MADE_NS, title="t", as_of_ns=as_of_ns, chosen=chosen
    )
    return Page(found, is_of_lake=True)


def test_every_figure_of_a_work_queue(world, page):
    section, tries = page.section("Work queue"), world.work.tries
    moments = all_moments(world, is_of_lake=page.is_of_lake)
    axis = axis_of(section, "Throughput", moments, max(moments))
    done, failed = counted(tries, "completed"), counted(tries, "failed", "timed-out")
    waiting, leased = counted(tries, "waiting"), counted(tries, "leased")
    first = [each for each in tries if each.is_first and each.is_known]
    known = [each for each in tries if each.is_known]

    def left(each: Try) -> int | None:
        return each.started if each.started is not None else each.ended

    def ready(each: Try) -> int | None:
        if each.ready is None:
            return None
        gone = left(each)
        return each.ready if gone is None else min(each.ready, gone)

    lengths: dict[int, int] = defaultdict(int)
    for half in world.work_records:
        for record in half:
            lengths[record.logged.unix_ns] += len(workq.CODEC.encode(record))
    bytes_ = [
        sum(size for moment, size in lengths.items() if at <= moment < at + axis.bucket_ns)
        for at in axis.times_ns
    ]
    ends = {
        word: axis.count(each.ended for each in tries if each.outcome == word)
        for word in ("completed", "failed", "timed-out", "expired")
    }
    assert figures(section) == {
        "Jobs:": (count(len(first)), "added"),
        "Attempts:": (count(sum(each.started is not None for each in tries)), "leases"),
        "Succeeded:": (count(done), ""),
        "Failed:": (count(failed), share(failed, done)),
        "Expired:": (count(counted(tries, "expired")), "not finished within their TTL"),
        "Open:": (
            count(waiting + leased),
            f"{count(waiting)} waiting, {count(leased)} running at the end",
        ),
        **length_tiles("Wait", tries),
        "Throughput": {
            "added": axis.count(each.created for each in first),
            "started": axis.count(each.started for each in tries),
            "succeeded": ends["completed"],
        },
        "Wait": axis.percentiles(tries, lambda each: each.wait),
        "Run time": axis.percentiles(tries, lambda each: each.run),
        "Depth": {
            "ready": axis.at_ends(
                lambda now: sum(is_between(ready(each), now, left(each)) for each in known)
            ),
            "running": axis.at_ends(
                lambda now: sum(is_between(each.started, now, each.ended) for each in known)
            ),
        },
        "Scheduled ahead": {
            "scheduled": axis.at_ends(
                lambda now: sum(is_between(each.created, now, ready(each)) for each in first)
            )
        },
        "Failures": {
            "failed": ends["failed"],
            "timed out": ends["timed-out"],
            "expired": ends["expired"],
        },
        **({} if page.is_of_lake else {"Growth of the log": {"bytes": list(accumulate(bytes_))}}),
        "Outcomes": Counter(each.outcome for each in tries),
        "Busiest queues": busiest(
            tries, lambda each: each.is_first and each.is_known, "(added before the log begins)"
        ),
    }


def test_the_work_queue_of_this_test_holds_what_it_should(world):
    tries = world.work.tries
    outcomes = Counter(each.outcome for each in tries)
    assert min(outcomes.values()) >= 1
    assert set(outcomes) == {
        *("waiting", "leased", "completed", "failed", "timed-out", "deleted", "expired"),
        "replaced",
    }
    # Rows without a start, and failures of jobs that were never leased, some of them retried.
    assert sum(each.started is None for each in tries) > 30
    assert any(each.started is None and each.outcome == "failed" for each in tries)
    assert any(not each.is_first and each.started is None for each in tries)


def test_every_figure_of_a_schedule(world, page):
    section, tries = page.section("Schedule"), world.schedule.tries
    untimed = [
        each for each in tries if each.ended is None and each.outcome in ("executed", "failed")
    ]
    happened = all_moments(world, is_of_lake=page.is_of_lake)
    axis = axis_of(section, "Throughput", happened, max(happened))
    plans = [
        each for each in tries if each.is_first and each.outcome not in ("replanned", "removed")
    ]
    planned_for = axis_of(section, "Plans", [each.ready for each in plans], 2**63)

    def ended(*words: str) -> list[int]:
        return axis.count(
            each.ready if each.ended is None else each.ended
            for each in tries
            if each.outcome in words
        )

    def waits(each: Try, now: int) -> bool:
        left = each.ended if each.started is None else each.started
        known = left is not None or each.outcome == "planned"
        return each.is_first and known and is_between(each.ready, now, left)

    def runs(each: Try, now: int) -> bool:
        began = each.ready if each.outcome == "triggered" else each.started
        return is_between(began, now, each.ended)

    done, failed = counted(tries, "executed"), counted(tries, "failed", "cut-off")
    due, running = counted(tries, "planned"), counted(tries, "triggered")
    assert figures(section) == {
        "Plans:": (count(len(plans)), "a job and the time it was planned for"),
        "Runs:": (
            count(sum(each.started is not None for each in tries)),
            f"{count(len(untimed))} more ended without a recorded run",
        ),
        "Succeeded:": (count(done), ""),
        "Failed:": (count(failed), share(failed, done)),
        "Open:": (
            count(due + running),
            f"{count(due)} waiting, {count(running)} running at the end",
        ),
        **length_tiles("Lateness", tries),
        "Throughput": {
            "due": axis.count(each.ready for each in plans),
            "started": axis.count(each.started for each in tries),
            "succeeded": ended("executed"),
        },
        "Lateness": axis.percentiles(tries, lambda each: each.wait),
        "Run time": axis.percentiles(tries, lambda each: each.run),
        "Depth": {
            "due, not started": axis.at_ends(lambda now: sum(waits(each, now) for each in tries)),
            "running": axis.at_ends(lambda now: sum(runs(each, now) for each in tries)),
        },
        "Failures": {"failed": ended("failed"), "cut off": ended("cut-off")},
        "Plans": {"planned for": planned_for.count(each.ready for each in plans)},
        "Outcomes": Counter(each.outcome for each in tries),
        "Busiest rules": busiest(tries, lambda each: each in plans, "(no run recorded)"),
    }


def test_every_figure_of_fan_out_queues(world):
    section = world.section("Fan-out queues")
    tries = [each for queue in world.queues for each in queue.tries()]
    by_hand.expire(tries, world.as_of_ns)
    axis = axis_of(section, "Items put", all_moments(world), world.as_of_ns)
    behind = {
        f"{queue.name} · {reader}": len(queue.waiting_for(reader))
        for queue in world.queues
        for reader in queue.readers
    }
    assert len(behind) > TOP
    furthest = sorted(behind.items(), key=lambda each: (-each[1], each[0]))[:TOP]
    busy = sorted(world.queues, key=lambda queue: (-queue.put, queue.name))[:TOP]
    of_queue = {
        queue.name: Counter(each.outcome for each in tries if each.group == queue.name)
        for queue in world.queues
    }
    sizes: dict[int, int] = defaultdict(int)
    for queue in world.queues:
        for item in queue.items:
            sizes[item.add_time_ms * 10**6] += len(kestrel.WRITER.encode(item))
    bytes_ = [
        sum(size for moment, size in sizes.items() if at <= moment < at + axis.bucket_ns)
        for at in axis.times_ns
    ]
    items = sum(queue.put for queue in world.queues)
    open_ = [each for each in tries if each.outcome != "finished"]
    last_ns = max(all_moments(world))
    assert figures(section) == {
        "Items put:": (count(items), "by the highest id of each queue"),
        "Stored:": (count(len(tries)), "in segments that still exist"),
        "Waiting:": (count(counted(tries, "waiting")), "for at least one reader"),
        "Expired:": (count(counted(tries, "expired")), "before every reader got them"),
        "Lag:": (count(sum(behind.values())), "items, summed over all readers"),
        "Items put": {"put": axis.count(each.created for each in tries)},
        "Backlog": {
            "waiting": Axis(axis.times_ns, axis.bucket_ns, last_ns).at_ends(
                lambda now: sum(is_between(each.created, now, each.ended) for each in open_)
            )
        },
        "Growth of the log": {"bytes": list(accumulate(bytes_))},
        "Reader lag": dict(furthest),
        "Outcomes": Counter(each.outcome for each in tries),
        "Busiest queues": [
            [
                queue.name,
                *(count(number) for number in (queue.put, len(queue.items))),
                count(of_queue[queue.name]["waiting"]),
            ]
            for queue in busy
        ],
    }


def test_every_figure_of_the_audit_and_the_files(world):
    expected = world.work.findings + world.schedule.findings
    tries = world.work.tries
    unrun = [
        each for each in tries if each.is_known and each.started is None and not each.was_leased
    ]
    expected["expired-unrun"] = counted(unrun, "expired")
    late_ns = world.as_of_ns - by_hand.GRACE_NS
    expected["missed-run"] += sum(
        each.outcome == "waiting" and each.created < (each.ready or 0) < late_ns
        for each in unrun
        if each.is_first
    )
    files = _files(world)
    expected["dead-bytes"] = sum(live < total for _, total, live in files)
    expected["reader-behind"] = sum(
        bool(queue.items) and head < queue.items[0].item_id - 1
        for queue in world.queues
        for head, _ in queue.readers.values()
    )
    (table,) = world.section("Audit").parts
    assert isinstance(table, Table)
    assert {row[0]: row[2] for row in table.rows} == {
        name: count(number) for name, number in expected.items() if number
    }
    serious = sum(number for name, number in expected.items() if name in SERIOUS)
    assert f"{serious} serious problems" in world.found.verdict

    section = world.section("Files")
    total, live = sum(each[1] for each in files), sum(each[2] for each in files)
    records = sum(each[0] for each in files)
    shown_files = figures(section)
    sizes = sorted((each[1] for each in files), reverse=True)
    assert sorted(shown_files.pop("Bytes").values(), reverse=True) == sizes[:40]
    assert len(files) > 40  # more than the page shows
    assert shown_files == {
        "Files:": (count(len(files)), ""),
        "Records:": (count(records), ""),
        "Bytes:": (
            format_value(total, "bytes"),
            f"{100 * (total - live) / total:.0f} % no longer needed",
        ),
        "Damaged:": ("0", ""),
    }


SERIOUS = ("duplicate-execution", "missed-run", "never-executed", "vanished")


def _files(world: World) -> list[tuple[int, int, int]]:
    """Of each file with records: how many, their bytes, and those that are needed."""
    needed = Counter(id(record) for expiry, record in world.work.needed if expiry > world.as_of_ns)
    found = []
    for half in world.work_records:
        lengths = [(len(workq.CODEC.encode(record)), needed[id(record)]) for record in half]
        found.append((len(half), sum(n for n, _ in lengths), sum(n for n, live in lengths if live)))
    jobs = world.schedule_records
    total = sum(len(ztick.CODEC.encode(record)) for record in jobs)
    live = sum(len(ztick.CODEC.encode(record)) for record in world.schedule.needed)
    found.append((len(jobs), total, live))
    for queue in world.queues:
        for segment in world.segments[queue.name]:
            sizes = [(len(kestrel.WRITER.encode(item)), item) for item in segment]
            waits = [
                size
                for size, item in sizes
                if isinstance(item, kestrel.ItemPut)
                and not all(queue.is_finished(item, reader) for reader in queue.readers)
            ]
            if segment:
                found.append((len(segment), sum(size for size, _ in sizes), sum(waits)))
        for head, done in queue.readers.values():
            records = (kestrel.ReadHead(head), kestrel.ReadDone(done))
            size = sum(len(kestrel.READER.encode(record)) for record in records)
            found.append((2, size, size))
    return found


def test_views_of_history_count_what_the_page_counts(world, spark):
    """Everything that ended, in one bucket; nothing waits that has failed for want of a rule."""
    day_ns = 10**18
    for dialect, tries in (("ztick", world.schedule.tries), ("workq", world.work.tries)):
        rows = attempts_of(spark, {dialect: world.logs[dialect]}, as_of_ns=world.as_of_ns)
        (row,) = summary(rows, "throughput", "log", day_ns).collect()
        assert row.completed == counted(tries, *SUCCEEDED)
        assert row.failed == counted(tries, "failed")
        assert (row.timed_out, row.cut_off) == (
            counted(tries, "timed-out"),
            counted(tries, "cut-off"),
        )
        (row,) = summary(rows, "depth", "log", day_ns).collect()
        known = [each for each in tries if each.is_known]
        assert row.ready == counted(known, "waiting", "planned")
        assert row.running == counted(known, "leased", "triggered")


def test_a_report_of_chosen_rows_counts_these_alone(world, spark, lake):
    """By time and by condition, of logs and of a lake."""
    since_ns, until_ns = ns(500), ns(900)
    queue = QUEUES[1]
    chosen = RowFilter(since_ns, until_ns, f"queue = '{queue}'")
    mine = [
        each
        for each in world.work.tries
        if each.group == queue
        and any(
            moment is not None and since_ns <= moment < until_ns
            for moment in (each.ready, each.started, each.ended)
        )
    ]
    assert 0 < len(mine) < len(world.work.tries) // 4
    done = counted(mine, "completed")
    failed = counted(mine, "failed", "timed-out")
    as_of_ns = world.as_of_ns
    logs = {"workq": world.logs["workq"]}
    for found in (
        report(spark, logs, made_ns=MADE_NS, as_of_ns=as_of_ns, chosen=chosen),
        report_of_lake(spark, lake, made_ns=MADE_NS, title="t", as_of_ns=as_of_ns, chosen=chosen),
    ):
        (section,) = [each for each in found.sections if each.title == "Work queue"]
        shown_figures = figures(section)
        assert shown_figures["Failed:"] == (count(failed), share(failed, done))
        assert [row[0] for row in shown_figures["Busiest queues"]] == [queue]
