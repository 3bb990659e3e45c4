"""Figures -> tiles, charts and tables, each with one sentence that says what it shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from journeyman.spark.report import page, units
from journeyman.spark.report.figures import TOP, Answer, DialectFigures, Week
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
    "parked": "soft",
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


def section_of(figures: DialectFigures) -> page.Section:
    """The section of one dialect."""
    title, intro = TITLES[figures.dialect], _INTROS[figures.dialect]
    if figures.is_empty:
        return page.Section(title, f"{intro} The logs are empty.")
    parts: list[page.Part] = [
        *_charts_over_time(figures),
        *_due(figures),
        _outcomes(figures),
        *_reasons(figures),
    ]
    parts += [*_lag(figures), _stored(figures)] if figures.dialect == KESTREL else _groups(figures)
    if figures.first_ns is not None and figures.last_ns is not None:
        first, last = map(units.format_moment, (figures.first_ns, figures.last_ns))
        intro += f" From {first} to {last}."
    return page.Section(title, intro, _tiles(figures), parts)


# ----------------------------------------
# Tiles.


def _tiles(figures: DialectFigures) -> list[page.Tile]:
    if figures.dialect == KESTREL:
        return _item_tiles(figures)
    waiting = sum(figures.outcomes.get(name, 0) for name in ("waiting", "planned"))
    running = sum(figures.outcomes.get(name, 0) for name in ("leased", "triggered"))
    ended = figures.failed + figures.succeeded
    share = f"{units.format_share(figures.failed, ended)} of those that ended" if ended else ""
    tiles = [
        *_attempt_tiles(figures),
        page.Tile("Succeeded", units.format_count(figures.succeeded)),
        page.Tile("Failed", units.format_count(figures.failed), share, wrong=figures.failed > 0),
    ]
    if figures.outcomes.get("expired"):
        note = "not finished within their TTL"
        tiles.append(page.Tile("Expired", units.format_count(figures.outcomes["expired"]), note))
    counts = map(units.format_count, (waiting, running))
    open_ = "{} waiting, {} running at the end".format(*counts)
    tiles.append(page.Tile("Open", units.format_count(waiting + running), open_))
    if figures.overall.get("wait_p50_ns") is not None:
        tiles.append(
            _percentile_tile("Lateness" if figures.dialect == ZTICK else "Wait", figures, "wait")
        )
        tiles.append(_percentile_tile("Run time", figures, "run"))
    return tiles


def _attempt_tiles(figures: DialectFigures) -> list[page.Tile]:
    if figures.dialect == WORKQ:
        return [
            page.Tile("Jobs", units.format_count(figures.jobs), "added"),
            page.Tile("Attempts", units.format_count(figures.started), "leases"),
        ]
    note = ""
    if figures.unrecorded:
        note = f"{units.format_count(figures.unrecorded)} more ended without a recorded run"
    return [
        page.Tile(
            "Plans", units.format_count(figures.jobs), "a job and the time it was planned for"
        ),
        page.Tile("Runs", units.format_count(figures.started), note),
    ]


def _item_tiles(figures: DialectFigures) -> list[page.Tile]:
    tiles = [
        page.Tile(
            "Items put", units.format_count(figures.items_put), "by the highest id of each queue"
        ),
        page.Tile("Stored", units.format_count(figures.attempts), "in segments that still exist"),
        page.Tile(
            "Waiting",
            units.format_count(figures.outcomes.get("waiting", 0)),
            "for at least one reader",
        ),
    ]
    if figures.outcomes.get("expired"):
        note = "before every reader got them"
        tiles.append(page.Tile("Expired", units.format_count(figures.outcomes["expired"]), note))
    tiles.append(
        page.Tile("Lag", units.format_count(figures.items_behind), "items, summed over all readers")
    )
    return tiles


def _percentile_tile(name: str, figures: DialectFigures, what: str) -> page.Tile:
    note = f"median; 99 %: {units.format_value(figures.overall.get(f'{what}_p99_ns'), 'ns')}"
    return page.Tile(name, units.format_value(figures.overall.get(f"{what}_p50_ns"), "ns"), note)


# ----------------------------------------
# Charts over time.


def _charts_over_time(figures: DialectFigures) -> list[page.Chart]:
    if not figures.axis.times_ns:
        return []
    if figures.dialect == KESTREL:
        charts = [_items_put(figures), _backlog(figures)]
    else:
        charts = [
            _throughput(figures),
            _failures(figures),
            _percentiles(figures, "wait"),
            _percentiles(figures, "run"),
        ]
        charts += _depth(figures)
    if figures.growth:
        note = "Total bytes of the records written so far, needed or not."
        series = [page.Series("bytes", figures.growth, "accent")]
        charts.append(page.Chart("Growth of the log", note, figures.axis, series, "bytes"))
    return charts


def _sums(
    figures: DialectFigures, title: str, note: str, series: Sequence[page.Series], kind: str
) -> page.Chart:
    """A chart of sums over a bucket: they are low where one is not whole."""
    if figures.axis.partial:
        note += (
            f" Shaded: less than {_article(units.format_length(figures.axis.bucket_ns))} of data."
        )
    if figures.unrecorded:
        note += " A run without recorded times counts at its planned time."
    return page.Chart(title, note, figures.axis, series, kind=kind, by_bucket=True)


def _article(duration: str) -> str:
    if duration[0].isdigit():
        return duration
    return f"{'an' if duration.startswith('h') else 'a'} {duration}"


def _throughput(figures: DialectFigures) -> page.Chart:
    first, what = {
        WORKQ: ("added", "Jobs added, leases started and jobs completed"),
        ZTICK: ("due", "Plans due, runs started and runs that succeeded"),
    }[figures.dialect]
    series = [
        page.Series("succeeded", figures.counts["completed"], "accent"),
        page.Series("started", figures.counts["started"], "mid"),
        page.Series(first, figures.counts[first], "edge"),
    ]
    note = f"{what}, per {units.format_length(figures.axis.bucket_ns)}."
    return _sums(figures, "Throughput", note, series, "lines")


def _items_put(figures: DialectFigures) -> page.Chart:
    note = f"Items put per {units.format_length(figures.axis.bucket_ns)}."
    if figures.items_put > figures.attempts:
        removed = units.format_count(figures.items_put - figures.attempts)
        note += f" Without the {removed} items of segments that were removed."
    return _sums(
        figures, "Items put", note, [page.Series("put", figures.counts["added"], "accent")], "lines"
    )


def _failures(figures: DialectFigures) -> page.Chart:
    words = {"failed": "failed", "timed_out": "timed out", "cut_off": "cut off"}
    tones = {"failed": "alarm", "timed_out": "alarm-mid", "cut_off": "edge", "expired": "faint"}
    series = [
        page.Series(words.get(name, name), figures.counts[name], tone)
        for name, tone in tones.items()
        if any(figures.counts[name]) or name == "failed"
    ]
    note = f"Attempts that did not succeed, per {units.format_length(figures.axis.bucket_ns)}."
    return _sums(figures, "Failures", note, series, "bars")


def _percentiles(figures: DialectFigures, what: str) -> page.Chart:
    names = {"p50": ("50 %", "accent"), "p90": ("90 %", "mid"), "p99": ("99 %", "soft")}
    series = [
        page.Series(name, figures.latency[f"{what}_{rank}_ns"], tone)
        for rank, (name, tone) in names.items()
    ]
    if what == "run":
        title, time = "Run time", "Time from start to end"
    elif figures.dialect == ZTICK:
        title, time = "Lateness", "Time from the planned time to the start"
    else:
        title, time = "Wait", "Time from ready to leased"
    length = units.format_length(figures.axis.bucket_ns)
    note = f"{time}, by percentile, of what started in each {length}."
    return page.Chart(title, note, figures.axis, series, "ns", kind="nested")


def _backlog(figures: DialectFigures) -> page.Chart:
    note = "Waiting items, by the time they were put. Journals do not record deliveries."
    return page.Chart(
        "Backlog", note, figures.axis, [page.Series("waiting", figures.depth["ready"], "accent")]
    )


def _depth(figures: DialectFigures) -> list[page.Chart]:
    waiting = "due, not started" if figures.dialect == ZTICK else "ready"
    series = [
        page.Series("running", figures.depth["running"], "mid"),
        page.Series(waiting, figures.depth["ready"], "accent"),
    ]
    length = units.format_length(figures.axis.bucket_ns)
    note = f"Jobs waiting and jobs running at the end of each {length}."
    charts = [page.Chart("Depth", note, figures.axis, series)]
    if any(figures.depth["scheduled"]):
        ahead = [page.Series("scheduled", figures.depth["scheduled"], "edge")]
        note = "Jobs that are scheduled for later."
        charts.append(page.Chart("Scheduled ahead", note, figures.axis, ahead))
    return charts


def _due(figures: DialectFigures) -> list[page.Chart]:
    if not figures.due:
        return []
    length = units.format_length(figures.due_axis.bucket_ns)
    note = f"Plans by planned time, past and future, per {length}."
    series = [page.Series("planned for", figures.due, "mid")]
    return [page.Chart("Plans", note, figures.due_axis, series, kind="bars", is_shared=False)]


# ----------------------------------------
# Bars and tables.


def _outcomes(figures: DialectFigures) -> page.Bars:
    notes = {
        WORKQ: "How each attempt ended; waiting jobs have not started theirs.",
        ZTICK: "How each run ended, and the plans that have not run.",
        KESTREL: "Items in segments that still exist.",
    }
    rows = sorted(figures.outcomes.items(), key=lambda each: (-each[1], each[0]))
    return page.Bars(
        "Outcomes",
        notes[figures.dialect],
        [(name, [(float(count), _TONES.get(name, "edge"))]) for name, count in rows],
    )


def _reasons(figures: DialectFigures) -> list[page.Bars]:
    """Failures by class of error: of use only where the log knows more than the outcome."""
    if all(outcome == reason for outcome, reason, _ in figures.reasons):
        return []
    note = f"Failures by class of error, or by what the runner said{_first(figures.reasons)}."
    rows = [(reason, [(float(count), "alarm")]) for _, reason, count in figures.reasons]
    return [page.Bars("Errors", note, rows)]


def _lag(figures: DialectFigures) -> list[page.Bars]:
    if not figures.lag:
        return []
    rows = [
        (
            f"{each['queue']} · {each['reader'] or 'default reader'}",
            [(float(each["items_behind"]), "mid")],
        )
        for each in figures.lag
    ]
    note = "Items each reader has not finished, as of its last checkpoint."
    if len(figures.lag) == TOP:
        note += f" The {TOP} furthest behind."
    return [page.Bars("Reader lag", note, rows)]


def _groups(figures: DialectFigures) -> list[page.Table]:
    return [_group_table(figures.dialect, by, groups) for by, groups in figures.groups.items()]


def _group_table(dialect: str, by: str, groups: Sequence[Answer]) -> page.Table:
    title, heading = _HEADINGS[by]
    names = {
        "Wait 50 %": "wait_p50_ns",
        "Wait 99 %": "wait_p99_ns",
        "Run 50 %": "run_p50_ns",
        "Run 99 %": "run_p99_ns",
    }
    lengths = {text: [each.get(name) for each in groups] for text, name in names.items()}
    shown_in = {text: units.column_unit(values, "ns") for text, values in lengths.items()}
    counts = ("Jobs", "Attempts", "Failed") if dialect == WORKQ else ("Plans", "Runs", "Failed")
    columns = [heading, *counts, *(f"{text}, {unit[1]}" for text, unit in shown_in.items())]
    rows = [
        [
            each["name"] or _NAMELESS[by],
            *(units.format_count(each[number]) for number in ("jobs", "started", "failed")),
            *(units.format_in(lengths[text][at], unit) for text, unit in shown_in.items()),
        ]
        for at, each in enumerate(groups)
    ]
    note = f"By {counts[0].lower()}{_first(groups)}."
    return page.Table(title, note, columns, rows, frozenset(range(1, len(columns))))


def _stored(figures: DialectFigures) -> page.Table:
    rows = [
        [
            each["queue"],
            *(units.format_count(each[number]) for number in ("put", "stored", "waiting")),
        ]
        for each in figures.stored
    ]
    columns = ["Queue", "Items put", "Stored", "Waiting"]
    note = f"By items put{_first(figures.stored)}."
    return page.Table("Busiest queues", note, columns, rows, frozenset({1, 2, 3}))


def _first(rows: Sequence[object]) -> str:
    return f"; the first {TOP}" if len(rows) == TOP else ""


# ----------------------------------------
# The last week and the one before. Queues that got worse come first: those whose failures, waits or
# runs have grown by more than a quarter, with enough starts in both weeks for that to mean
# something.


def compare_weeks(weeks: Mapping[str, tuple[Week, Week]]) -> tuple[list[str], list[page.Section]]:
    """Return what got worse, in words, and a section with every queue that ran in both weeks."""
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
    table = page.Table("By queue", note, columns, rows, frozenset(range(1, 9)), marks)
    worse = [f"{name} ({', '.join(reasons[name])})" for name in order if reasons[name]]
    return worse, [page.Section("Week on week", "Changes since the previous week.", parts=[table])]


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
        units.format_count(week.started),
        units.format_share(week.failed, week.started),
        units.format_value(week.wait_p95_ns, "ns"),
        units.format_value(week.run_p95_ns, "ns"),
    ]
