"""The server's figures: what is counted, and the text that Prometheus reads."""

from __future__ import annotations

import asyncio
import re
import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from prometheus_client.parser import text_string_to_metric_families

from journeyman.config.settings import LakeSettings, LimitSettings
from journeyman.disk import RealDisk
from journeyman.engines.kestrel.messages import Counts, KestrelStats
from journeyman.engines.workq.messages import QueueFigures, WorkqStats
from journeyman.engines.ztick.engine import ZtickEngine
from journeyman.engines.ztick.messages import (
    DONE,
    OUT_OF_SCOPE,
    JobNotFound,
    Reply,
    RuleNotFound,
    RunEnded,
    RunFinished,
    TriggerDue,
)
from journeyman.errors import LogFull
from journeyman.formats.ztick import (
    Amqp,
    Awf,
    Direct,
    FanOutRunner,
    Http,
    Record,
    Redis,
    Runner,
    Shell,
    WorkQueueRunner,
)
from journeyman.formats.ztick.codec import runner_word
from journeyman.logs.holders import LetGo
from journeyman.protocols.kestrel.commands import Confirm, Key
from journeyman.protocols.kestrel.replies import ERROR
from journeyman.protocols.workq.commands import Delete
from journeyman.protocols.workq.replies import NOT_FOUND
from journeyman.protocols.ztick.commands import (
    ErrorCode,
    Get,
    RefusedCommand,
    Remove,
    RemoveRule,
    Set,
    SetMany,
    Stat,
)
from journeyman.protocols.ztick.replies import Metrics
from journeyman.servers.core.contract import Recorder
from journeyman.servers.core.group_commit import GroupCommit
from journeyman.servers.core.metrics import (
    BOUNDS_MS,
    Family,
    Histogram,
    Point,
    measured,
)
from journeyman.servers.core.writes import WriteWatch
from journeyman.servers.http.server import exposition_of
from journeyman.servers.kestrel.metrics import KestrelMetrics
from journeyman.servers.process import LogHolders
from journeyman.servers.workq.metrics import WorkqMetrics
from journeyman.servers.ztick.metrics import ServerMetrics
from journeyman.servers.ztick.otlp import otlp_name, otlp_unit
from journeyman.servers.ztick.writer import Request, ZtickDialect
from journeyman.testing import ManualClock
from tests.support.stat_lines import STAT

PAGE = Path(__file__).parents[2] / "docs" / "telemetry.md"
HEADS = Path(__file__).parent / "data" / "metrics.txt"
MS = 1_000_000
SHELL = Shell("true")


def read(metrics: ServerMetrics, stat: Metrics = STAT) -> dict[tuple[str, str], float]:
    """(name, labels) -> value, as Prometheus itself reads the text."""
    families = text_string_to_metric_families(exposition_of(metrics.families(stat)).decode())
    samples = [sample for family in families for sample in family.samples]
    rows = {
        (s.name, ",".join(f"{k}={v}" for k, v in sorted(s.labels.items()))): s.value
        for s in samples
    }
    assert len(rows) == len(samples), "the same sample twice"
    return rows


def told(metrics: ServerMetrics, *pairs: tuple[object, object]) -> None:
    metrics.count([(None, request) for request, _ in pairs], [outcome for _, outcome in pairs])


def test_the_figures_of_stat_are_there():
    rows = read(ServerMetrics())
    assert rows["journeyman_uptime_seconds", ""] == 1.5
    assert rows["journeyman_connections_active", ""] == 3
    assert rows["journeyman_rules_active", ""] == 7
    assert rows["journeyman_runs_waiting", ""] == 5
    assert rows["journeyman_runs_running", ""] == 25
    statuses = ("planned", "triggered", "executed", "failed")
    assert [rows["journeyman_jobs", f"status={s}"] for s in statuses] == [40, 30, 20, 10]
    states = ("idle", "running", "success", "failure")
    assert [rows["journeyman_compression", f"state={s}"] for s in states] == [0, 1, 0, 0]


def test_every_figure_says_what_it_is():
    metrics = ServerMetrics()
    metrics.run_ended(SHELL, True, MS, MS)
    text = exposition_of(metrics.families(STAT)).decode()
    for family in text_string_to_metric_families(text):
        assert family.type in ("counter", "gauge", "histogram")
        assert family.documentation.endswith("."), family.name
        assert family.name.startswith("journeyman_")
    assert text.endswith("\n")
    assert (
        Counter(line for line in text.splitlines() if line.startswith("# TYPE")).most_common(1)[0][
            1
        ]
        == 1
    )


def test_commands_are_counted_by_kind_and_outcome():
    metrics = ServerMetrics()
    told(
        metrics,
        (Set(b"r", "a", 1), DONE),
        (Set(b"r", "b", 1), DONE),
        (SetMany([(b"r", b"e", b"1"), (b"r", b"f", b"1")]), DONE),
        (Set(b"r", "c", 1), OUT_OF_SCOPE),
        (Set(b"r", "d", 1), LogFull("log", "no room")),
        (Get(b"r", "x"), JobNotFound("x")),
        (RemoveRule(b"r", "x"), RuleNotFound("x")),
        (RefusedCommand(b"r", ErrorCode.INVALID_ARGS, "no"), None),
    )
    told(metrics, (Remove(b"r", "a"), DONE), (Stat(b"r"), ZtickEngine().stats()))
    rows = read(metrics)
    counts = {k[1]: v for k, v in rows.items() if k[0] == "journeyman_commands_total"}
    assert counts == {
        "command=set,outcome=ok": 4,
        "command=set,outcome=auth_denied": 1,
        "command=set,outcome=internal": 1,
        "command=get,outcome=not_found": 1,
        "command=remove_rule,outcome=not_found": 1,
        "command=refused,outcome=invalid_args": 1,
        "command=remove,outcome=ok": 1,
        "command=stat,outcome=ok": 1,
    }
    assert rows["journeyman_jobs_scheduled_total", ""] == 4
    assert rows["journeyman_jobs_removed_total", ""] == 1
    assert rows["journeyman_batches_total", ""] == 2


def test_what_the_server_itself_submits_is_no_command():
    metrics = ServerMetrics()
    told(
        metrics,
        (TriggerDue(), DONE),
        (RunFinished(1, True), RunEnded("a", None)),
        (RunFinished(2, True), None),
    )
    assert not [name for name, _ in read(metrics) if name == "journeyman_commands_total"]


def test_runs_are_counted_by_runner_and_success():
    metrics = ServerMetrics()
    metrics.run_ended(SHELL, True, MS, 0)
    metrics.run_ended(SHELL, True, MS, 0)
    metrics.run_ended(SHELL, False, MS, 0)
    metrics.run_ended(Http("GET", "http://x"), True, MS, 0)
    rows = read(metrics)
    assert rows["journeyman_jobs_executed_total", "runner=shell,success=true"] == 2
    assert rows["journeyman_jobs_executed_total", "runner=shell,success=false"] == 1
    assert rows["journeyman_jobs_executed_total", "runner=http,success=true"] == 1


def test_durations_are_told_in_seconds_with_growing_buckets():
    metrics = ServerMetrics()
    for duration_ms in (1, 2, 40, 7_200_000):
        metrics.run_ended(SHELL, True, duration_ms * MS, 0)
    rows = read(metrics)
    name, labels = "journeyman_execution_duration_seconds", "runner=shell,success=true"
    assert rows[f"{name}_bucket", f"le=0.001,{labels}"] == 1
    assert rows[f"{name}_bucket", f"le=0.0025,{labels}"] == 2
    assert rows[f"{name}_bucket", f"le=0.025,{labels}"] == 2
    assert rows[f"{name}_bucket", f"le=0.05,{labels}"] == 3
    assert rows[f"{name}_bucket", f"le=3600,{labels}"] == 3
    assert rows[f"{name}_bucket", f"le=+Inf,{labels}"] == 4
    assert rows[f"{name}_count", labels] == 4
    assert rows[f"{name}_sum", labels] == pytest.approx(7200.043)


def test_a_run_that_began_early_by_a_clock_set_back_is_not_late():
    metrics = ServerMetrics()
    metrics.run_ended(SHELL, True, MS, -5_000 * MS)
    metrics.run_ended(SHELL, True, MS, 30 * MS)
    rows = read(metrics)
    assert rows["journeyman_execution_lateness_seconds_bucket", "le=0.001"] == 1
    assert rows["journeyman_execution_lateness_seconds_count", ""] == 2
    assert rows["journeyman_execution_lateness_seconds_sum", ""] == pytest.approx(0.03)


@pytest.mark.parametrize("bound", range(len(BOUNDS_MS)))
def test_a_bound_belongs_to_its_own_bucket(bound):
    histogram = Histogram()
    histogram.add(BOUNDS_MS[bound])
    histogram.add(BOUNDS_MS[bound] * 1.001)
    assert histogram.counts[bound : bound + 2] == [1, 1]


def test_compactions_start_at_zero_and_are_counted_by_success():
    metrics = ServerMetrics()
    assert read(metrics)["journeyman_persistence_compactions_total", "success=false"] == 0
    metrics.compaction_ended(True)
    metrics.compaction_ended(True)
    metrics.compaction_ended(False)
    rows = read(metrics)
    assert rows["journeyman_persistence_compactions_total", "success=true"] == 2
    assert rows["journeyman_persistence_compactions_total", "success=false"] == 1


def test_every_runner_has_the_word_of_its_rule():
    runners: list[Runner] = [
        SHELL,
        Direct("x", ()),
        Http("GET", "u"),
        Awf("w", ()),
        Amqp("d", "e", "k"),
        Redis("u", "c", "k"),
        WorkQueueRunner("q", ()),
        FanOutRunner("q"),
    ]
    words = ["shell", "direct", "http", "awf", "amqp", "redis", "queue", "journal"]
    assert [runner_word(runner) for runner in runners] == words


def test_the_page_on_telemetry_lists_every_figure():
    shown, others = [QueueFigures("mail", 1, 2, 3, 5)], QueueFigures("", 0, 0, 0, None)
    work = WorkqMetrics(
        lambda: WorkqStats(1, 2, 3, 4, 5, 6, 7, 8), (), lambda most: (shown, others), ManualClock(),
        list,
    )  # fmt: skip
    work.count([(None, Delete(b"1" * 16))], [NOT_FOUND])
    fan_out = KestrelMetrics(lambda: KestrelStats(1, 2, 3, 4, 5, 6), Counts, (), lambda: ())
    fan_out.count([(None, Confirm(Key("q"), 1))], [ERROR])
    disk = measured(RealDisk(), ManualClock(), {"schedule": str(PAGE)})
    disk.samples = disk.sample()
    holders = LogHolders(LakeSettings(), disk, ManualClock(), Mock())
    holders.of_logs.held_bytes["logs", "schedule"] = 1
    holders.of_logs.tell(LetGo("logs", "a lake", ("schedule",), "it was not seen"))
    writes = WriteWatch(ManualClock(), Mock(), LimitSettings())
    writes.begin("schedule")
    metrics = ServerMetrics(
        *(work.families, fan_out.families, disk.families, holders.families, writes.families)
    )
    rows = re.findall(
        r"^\| `(ztick\.\S+)` \| `(\w+)` \| (\w+) \| (.*?) ?\|", PAGE.read_text(), re.MULTILINE
    )
    listed = {name: (prometheus, kind, labels) for name, prometheus, kind, labels in rows}
    metrics.run_ended(SHELL, True, MS, MS)
    metrics.timetable_ran("nightly", False)
    metrics.exports["traces", True] += 1
    told(metrics, (Set(b"r", "a", 1), DONE))
    text = exposition_of(metrics.families(STAT)).decode()
    assert set(listed) == {otlp_name(family) for family in metrics.families(STAT)}
    for family in metrics.families(STAT):
        prometheus, kind, labels = listed[otlp_name(family)]
        unit = {"seconds": "s", "bytes": "By"}.get(prometheus.rpartition("_")[2], "")
        assert otlp_unit(family) == unit
        assert kind == family.kind
        assert f"# TYPE {prometheus} {kind}\n" in text
        assert labels == ", ".join(f"`{label}`" for label in family.points[0].labels)
    heads = [line for line in text.splitlines() if line.startswith("#")]
    assert heads == HEADS.read_text().splitlines(), "dashboards rest on these"
    # The linter of Prometheus knows its conventions for names, units and kinds.
    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False
    )
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")


def test_names_of_queues_cannot_break_out_of_their_label():
    family = Family("x", "gauge", "X.", [Point({"queue": 'a"} 1\n\\'}, 5)])
    assert exposition_of([family]).decode().endswith('journeyman_x{queue="a\\"} 1\\n\\\\"} 5.0\n')


# -- together with the writer --


class Caller:
    namespace = "mine."

    def render(self, request: Request, reply: Reply | None) -> Any:
        return reply

    def render_failure(self, request: Request) -> Any:
        return None

    def answered(self, answers: list[Any]) -> None: ...

    def room(self) -> None: ...

    def drop(self) -> None: ...


class FullOnce(Recorder):
    """No room for the first batch."""

    def __init__(self) -> None:
        self.full = True

    def write(self, records: Sequence[Record]) -> None:
        if self.full:
            self.full = False
            raise LogFull("log", "no room")


def test_the_writer_tells_what_every_command_came_to_also_when_it_was_taken_back():
    async def serve() -> ServerMetrics:
        metrics = ServerMetrics()
        owner = Mock()
        owner.on_failure = lambda error: pytest.fail(repr(error))
        owner.on_answered = lambda requests, outcomes, _: metrics.count(requests, outcomes)
        loop = asyncio.get_running_loop()
        dialect = ZtickDialect(ZtickEngine(), ManualClock(), owner)
        writer = GroupCommit(owner, loop, ManualClock(), dialect, FullOnce())
        commands: list[Request] = [
            Set(b"r", "mine.a", 1),
            Set(b"r", "yours.a", 1),
            Get(b"r", "mine.none"),
            RefusedCommand(b"r", ErrorCode.INVALID_ARGS, "no"),
        ]
        for _ in range(2):
            writer.submit(Caller(), commands)
            await writer.idle()
        writer.close()
        return metrics

    rows = read(asyncio.run(serve()))
    counts = {k[1]: v for k, v in rows.items() if k[0] == "journeyman_commands_total"}
    assert counts == {
        "command=set,outcome=internal": 2,  # of the batch that was taken back
        "command=set,outcome=ok": 1,
        "command=set,outcome=auth_denied": 1,
        "command=get,outcome=not_found": 2,
        "command=refused,outcome=invalid_args": 2,
    }
    assert rows["journeyman_jobs_scheduled_total", ""] == 1
