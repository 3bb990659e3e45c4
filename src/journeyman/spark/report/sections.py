"""Figures -> tiles, charts and tables, each with one sentence that says what it shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from journeyman.spark.report.figures import TOP, Figures, Group, Week
from journeyman.spark.report.page import Bars, Chart, Part, Section, Series, Table, Tile
from journeyman.spark.report.units import (
    column_unit,
    format_count,
    format_in,
    format_length,
    format_moment,
    format_share,
    format_value,
)
from journeyman.spark.source.options import KESTREL, WORKQ, ZTICK

TITLES: Final = {WORKQ: "Work queue", ZTICK: "Schedule", KESTREL: "Fan-out queues"}
_INTROS: Final = {
    WORKQ: "Jobs that workers lease, from the command log.",
    ZTICK: "Jobs that run at a planned time, from the log and the runs recorded beside it.",
    KESTREL: "Items put once and delivered to every reader, from journals and checkpoints.",
}
_TONES: Final = {
    **dict.fromkeys(("completed", "executed", "finished"), "accent"),
    **dict.fromkeys(("failed", "timed-out", "cut-off"), "alarm"),
    **dict.fromkeys(("waiting", "planned", "leased", "triggered"), "mid"),
}
_NAMELESS: Final = {
    "queue": "(added before the log begins)",
    "rule": "(no run recorded)",
    "prefix": "-",
    "task": "(not sent by a task)",
    "worker": "(not recorded)",
}
_HEADINGS: Final = {
    "queue": ("Busiest queues", "Queue"),
    "rule": ("Busiest rules", "Rule"),
    "prefix": ("Busiest names", "Identifier begins"),
    "task": ("Busiest tasks", "Task"),
    "worker": ("Busiest workers", "Worker"),
}
WORSE: Final = 1.25  # times the week before
ENOUGH: Final = 20  # starts in both weeks


def section_of(of: Figures) -> Section:
    """The section of one dialect."""
    title, intro = TITLES[of.dialect], _INTROS[of.dialect]
    if of.is_empty:
        return Section(title, f"{intro} The logs are empty.")
    parts: list[Part] = [*_charts_over_time(of), *_due(of), _outcomes(of), *_reasons(of)]
    parts += [*_lag(of), _stored(of)] if of.dialect == KESTREL else _groups(of)
    if of.first_ns is not None and of.last_ns is not None:
        intro += f" From {format_moment(of.first_ns)} to {format_moment(of.last_ns)}."
    return Section(title, intro, _tiles(of), parts)


# ----------------------------------------
# Tiles.


def _tiles(of: Figures) -> list[Tile]:
    if of.dialect == KESTREL:
        return _item_tiles(of)
    waiting = sum(of.outcomes.get(name, 0) for name in ("waiting", "planned"))
    running = sum(of.outcomes.get(name, 0) for name in ("leased", "triggered"))
    ended = of.failed + of.succeeded
    share = f"{format_share(of.failed, ended)} of those that ended" if ended else ""
    tiles = [
        *_attempt_tiles(of),
        Tile("Succeeded", format_count(of.succeeded)),
        Tile("Failed", format_count(of.failed), share, wrong=of.failed > 0),
    ]
    if of.outcomes.get("expired"):
        note = "not finished within their TTL"
        tiles.append(Tile("Expired", format_count(of.outcomes["expired"]), note))
    open_ = f"{format_count(waiting)} waiting, {format_count(running)} running at the end"
    tiles.append(Tile("Open", format_count(waiting + running), open_))
    if of.overall.get("wait_p50_ns") is not None:
        tiles.append(_percentile_tile("Lateness" if of.dialect == ZTICK else "Wait", of, "wait"))
        tiles.append(_percentile_tile("Run time", of, "run"))
    return tiles


def _attempt_tiles(of: Figures) -> list[Tile]:
    if of.dialect == WORKQ:
        return [
            Tile("Jobs", format_count(of.jobs), "added"),
            Tile("Attempts", format_count(of.started), "leases"),
        ]
    note = ""
    if of.unrecorded:
        note = f"{format_count(of.unrecorded)} more ended without a recorded run"
    return [
        Tile("Plans", format_count(of.jobs), "a job and the time it was planned for"),
        Tile("Runs", format_count(of.started), note),
    ]


def _item_tiles(of: Figures) -> list[Tile]:
    tiles = [
        Tile("Items put", format_count(of.items_put), "by the highest id of each queue"),
        Tile("Stored", format_count(of.attempts), "in segments that still exist"),
        Tile("Waiting", format_count(of.outcomes.get("waiting", 0)), "for at least one reader"),
    ]
    if of.outcomes.get("expired"):
        note = "before every reader got them"
        tiles.append(Tile("Expired", format_count(of.outcomes["expired"]), note))
    tiles.append(Tile("Lag", format_count(of.items_behind), "items, summed over all readers"))
    return tiles


def _percentile_tile(name: str, of: Figures, what: str) -> Tile:
    note = f"median; 99 %: {format_value(of.overall.get(f'{what}_p99_ns'), 'ns')}"
    return Tile(name, format_value(of.overall.get(f"{what}_p50_ns"), "ns"), note)


# ----------------------------------------
# Charts over time.


def _charts_over_time(of: Figures) -> list[Chart]:
    if not of.axis.times_ns:
        return []
    if of.dialect == KESTREL:
        charts = [_items_put(of), _backlog(of)]
    else:
        charts = [_throughput(of), _failures(of), _percentiles(of, "wait"), _percentiles(of, "run")]
        charts += _depth(of)
    if of.growth:
        note = "Total bytes of the records written so far, needed or not."
        series = [Series("bytes", of.growth, "accent")]
        charts.append(Chart("Growth of the log", note, of.axis, series, "bytes"))
    return charts


def _sums(of: Figures, title: str, note: str, series: Sequence[Series], kind: str) -> Chart:
    """A chart of sums over a bucket: they are low where one is not whole."""
    if of.axis.partial:
        note += f" Shaded: less than {_article(format_length(of.axis.bucket_ns))} of data."
    if of.unrecorded:
        note += " A run without recorded times counts at its planned time."
    return Chart(title, note, of.axis, series, kind=kind, by_bucket=True)


def _article(duration: str) -> str:
    if duration[0].isdigit():
        return duration
    return f"{'an' if duration.startswith('h') else 'a'} {duration}"


def _throughput(of: Figures) -> Chart:
    first, what = {
        WORKQ: ("added", "Jobs added, leases started and jobs completed"),
        ZTICK: ("due", "Plans due, runs started and runs that succeeded"),
    }[of.dialect]
    series = [
        Series("succeeded", of.counts["completed"], "accent"),
        Series("started", of.counts["started"], "mid"),
        Series(first, of.counts[first], "edge"),
    ]
    note = f"{what}, per {format_length(of.axis.bucket_ns)}."
    return _sums(of, "Throughput", note, series, "lines")


def _items_put(of: Figures) -> Chart:
    note = f"Items put per {format_length(of.axis.bucket_ns)}."
    if of.items_put > of.attempts:
        removed = format_count(of.items_put - of.attempts)
        note += f" Without the {removed} items of segments that were removed."
    return _sums(of, "Items put", note, [Series("put", of.counts["added"], "accent")], "lines")


def _failures(of: Figures) -> Chart:
    words = {"failed": "failed", "timed_out": "timed out", "cut_off": "cut off"}
    tones = {"failed": "alarm", "timed_out": "alarm-mid", "cut_off": "edge", "expired": "faint"}
    series = [
        Series(words.get(name, name), of.counts[name], tone)
        for name, tone in tones.items()
        if any(of.counts[name]) or name == "failed"
    ]
    note = f"Attempts that did not succeed, per {format_length(of.axis.bucket_ns)}."
    return _sums(of, "Failures", note, series, "bars")


def _percentiles(of: Figures, what: str) -> Chart:
    names = {"p50": ("50 %", "accent"), "p90": ("90 %", "mid"), "p99": ("99 %", "soft")}
    series = [
        Series(name, of.latency[f"{what}_{rank}_ns"], tone) for rank, (name, tone) in names.items()
    ]
    if what == "run":
        title, time = "Run time", "Time from start to end"
    elif of.dialect == ZTICK:
        title, time = "Lateness", "Time from the planned time to the start"
    else:
        title, time = "Wait", "Time from ready to leased"
    note = f"{time}, by percentile, of what started in each {format_length(of.axis.bucket_ns)}."
    return Chart(title, note, of.axis, series, "ns", kind="nested")


def _backlog(of: Figures) -> Chart:
    note = "Waiting items, by the time they were put. Journals do not record deliveries."
    return Chart("Backlog", note, of.axis, [Series("waiting", of.depth["ready"], "accent")])


def _depth(of: Figures) -> list[Chart]:
    waiting = "due, not started" if of.dialect == ZTICK else "ready"
    series = [
        Series("running", of.depth["running"], "mid"),
        Series(waiting, of.depth["ready"], "accent"),
    ]
    note = f"Jobs waiting and jobs running at the end of each {format_length(of.axis.bucket_ns)}."
    charts = [Chart("Depth", note, of.axis, series)]
    if any(of.depth["scheduled"]):
        ahead = [Series("scheduled", of.depth["scheduled"], "edge")]
        note = "Jobs that are scheduled for later."
        charts.append(Chart("Scheduled ahead", note, of.axis, ahead))
    return charts


def _due(of: Figures) -> list[Chart]:
    if not of.due:
        return []
    length = format_length(of.due_axis.bucket_ns)
    note = f"Plans by planned time, past and future, per {length}."
    series = [Series("planned for", of.due, "mid")]
    return [Chart("Plans", note, of.due_axis, series, kind="bars", is_shared=False)]


# ----------------------------------------
# Bars and tables.


def _outcomes(of: Figures) -> Bars:
    notes = {
        WORKQ: "How each attempt ended; waiting jobs have not started theirs.",
        ZTICK: "How each run ended, and the plans that have not run.",
        KESTREL: "Items in segments that still exist.",
    }
    rows = sorted(of.outcomes.items(), key=lambda each: (-each[1], each[0]))
    return Bars(
        "Outcomes",
        notes[of.dialect],
        [(name, [(float(count), _TONES.get(name, "edge"))]) for name, count in rows],
    )


def _reasons(of: Figures) -> list[Bars]:
    """Failures by class of error: of use only where the log knows more than the outcome."""
    if all(outcome == reason for outcome, reason, _ in of.reasons):
        return []
    note = f"Failures by class of error, or by what the runner said{_first(of.reasons)}."
    rows = [(reason, [(float(count), "alarm")]) for _, reason, count in of.reasons]
    return [Bars("Errors", note, rows)]


def _lag(of: Figures) -> list[Bars]:
    if not of.lag:
        return []
    rows = [
        (f"{each.queue} · {each.reader or 'default reader'}", [(float(each.items), "mid")])
        for each in of.lag
    ]
    note = "Items each reader has not finished, as of its last checkpoint."
    if len(of.lag) == TOP:
        note += f" The {TOP} furthest behind."
    return [Bars("Reader lag", note, rows)]


def _groups(of: Figures) -> list[Table]:
    return [_group_table(of.dialect, by, groups) for by, groups in of.groups.items()]


def _group_table(dialect: str, by: str, groups: Sequence[Group]) -> Table:
    title, heading = _HEADINGS[by]
    names = {
        "Wait 50 %": "wait_p50_ns",
        "Wait 99 %": "wait_p99_ns",
        "Run 50 %": "run_p50_ns",
        "Run 99 %": "run_p99_ns",
    }
    lengths = {text: [each.latency.get(name) for each in groups] for text, name in names.items()}
    units = {text: column_unit(values, "ns") for text, values in lengths.items()}
    counts = ("Jobs", "Attempts", "Failed") if dialect == WORKQ else ("Plans", "Runs", "Failed")
    columns = [heading, *counts, *(f"{text}, {unit[1]}" for text, unit in units.items())]
    rows = [
        [
            each.name or _NAMELESS[by],
            *(format_count(number) for number in (each.jobs, each.started, each.failed)),
            *(format_in(lengths[text][at], unit) for text, unit in units.items()),
        ]
        for at, each in enumerate(groups)
    ]
    note = f"By {counts[0].lower()}{_first(groups)}."
    return Table(title, note, columns, rows, frozenset(range(1, len(columns))))


def _stored(of: Figures) -> Table:
    rows = [
        [each.queue, *(format_count(number) for number in (each.put, each.stored, each.waiting))]
        for each in of.stored
    ]
    columns = ["Queue", "Items put", "Stored", "Waiting"]
    note = f"By items put{_first(of.stored)}."
    return Table("Busiest queues", note, columns, rows, frozenset({1, 2, 3}))


def _first(rows: Sequence[object]) -> str:
    return f"; the first {TOP}" if len(rows) == TOP else ""


# ----------------------------------------
# The last week and the one before. Queues that got worse come first: those whose failures, waits or
# runs have grown by more than a quarter, with enough starts in both weeks for that to mean
# something.


def compare_weeks(weeks: Mapping[str, tuple[Week, Week]]) -> tuple[list[str], list[Section]]:
    """What got worse, in words, and a section with every queue that ran in both weeks, if any."""
    reasons = {name: _worse(*pair) for name, pair in weeks.items()}
    order = sorted(weeks, key=lambda name: (not reasons[name], -weeks[name][1].started, name))
    listed = order[: 2 * TOP]
    if not listed:
        return [], []
    rows = [
        [
            name,
            *(text for week in weeks[name] for text in _week_cells(week)),
            ", ".join(reasons[name]),
        ]
        for name in listed
    ]
    names = ("Started", "Failed", "Wait 95 %", "Run 95 %")
    columns = ["Queue", *(f"{name}, before" for name in names), *names, "Worse"]
    marks = ["warning" if reasons[name] else "" for name in listed]
    note = "The seven days up to the last event, and the seven days before."
    table = Table("By queue", note, columns, rows, frozenset(range(1, 9)), marks)
    worse = [f"{name} ({', '.join(reasons[name])})" for name in order if reasons[name]]
    return worse, [Section("Week on week", "Changes since the previous week.", parts=[table])]


def _worse(before: Week, after: Week) -> list[str]:
    if min(before.started, after.started) < ENOUGH:
        return []
    reasons = []
    if after.failed_share > max(before.failed_share * WORSE, before.failed_share + 0.01):
        reasons.append("failures")
    for what, old, new in (
        ("waits", before.wait_p95_ns, after.wait_p95_ns),
        ("runs", before.run_p95_ns, after.run_p95_ns),
    ):
        if old is not None and new is not None and new > max(old * WORSE, old + 10**7):
            reasons.append(what)
    return reasons


def _week_cells(week: Week) -> list[str]:
    return [
        format_count(week.started),
        format_share(week.failed, week.started),
        format_value(week.wait_p95_ns, "ns"),
        format_value(week.run_p95_ns, "ns"),
    ]
