"""Numbers -> tiles, charts and tables, each with one sentence that says what it shows."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from journeyman.spark.report.charts import column_unit, length, moment, shown, shown_in
from journeyman.spark.report.page import Bars, Chart, Section, Series, Table, Tile
from journeyman.spark.report.queries import TOP, Measured

TITLES = {"workq": "Work queue", "ztick": "Schedule", "kestrel": "Fan-out queues"}
_INTROS = {
    "workq": "Jobs that workers lease, from the command log.",
    "ztick": "Jobs that run at a planned time, from the log and the runs recorded beside it.",
    "kestrel": "Items put once and delivered to every reader, from journals and checkpoints.",
}
_OUTCOME_TONES = {
    "completed": "teal",
    "executed": "teal",
    "finished": "teal",
    "failed": "red",
    "timed-out": "amber",
    "cut-off": "amber",
    "waiting": "blue",
    "planned": "blue",
    "leased": "violet",
    "triggered": "violet",
}
_NAMELESS = {"queue": "(added before the log begins)", "rule": "(no run recorded)", "prefix": "-"}
_WAITS = {
    "workq": "Time from ready to leased",
    "ztick": "Time from the planned time to the start",
}


def section_of(measured: Measured) -> Section:
    """The section of one dialect."""
    title, intro = TITLES[measured.dialect], _INTROS[measured.dialect]
    if measured.is_empty:
        return Section(title, f"{intro} The logs are empty.")
    parts: list[Chart | Bars | Table] = [
        *_charts_over_time(measured),
        *_due(measured),
        *_lag(measured),
        _outcomes(measured),
        _stored(measured) if measured.dialect == "kestrel" else _groups(measured),
    ]
    return Section(title, f"{intro} {_span(measured)}".strip(), _tiles(measured), parts)


def _span(measured: Measured) -> str:
    if measured.first_ns is None or measured.last_ns is None:
        return ""
    return f"From {moment(measured.first_ns)} to {moment(measured.last_ns)}."


def _tiles(measured: Measured) -> list[Tile]:
    if measured.dialect == "kestrel":
        return _item_tiles(measured)
    outcomes = measured.outcomes
    waiting = sum(outcomes.get(name, 0) for name in ("waiting", "planned"))
    running = sum(outcomes.get(name, 0) for name in ("leased", "triggered"))
    share = ""
    if measured.failed + measured.succeeded:
        share = f"{100 * measured.failed_share:.1f} % of those that ended"
    tiles = [
        *_attempt_tiles(measured),
        Tile("Succeeded", _count(measured.succeeded)),
        Tile("Failed", _count(measured.failed), share),
    ]
    if outcomes.get("expired"):
        note = "not finished within their TTL"
        tiles.append(Tile("Expired", _count(outcomes["expired"]), note))
    open_ = f"{_count(waiting)} waiting, {_count(running)} running at the end"
    tiles.append(Tile("Open", _count(waiting + running), open_))
    overall = measured.overall
    if overall.get("wait_p50_ns") is not None:
        late = "Lateness" if measured.dialect == "ztick" else "Wait"
        tiles.append(_percentile_tile(late, overall, "wait"))
        tiles.append(_percentile_tile("Run time", overall, "run"))
    return tiles


def _attempt_tiles(measured: Measured) -> list[Tile]:
    if measured.dialect == "workq":
        return [
            Tile("Jobs", _count(measured.jobs), "added"),
            Tile("Attempts", _count(measured.started), "leases"),
        ]
    note = ""
    if measured.unrecorded:
        note = f"{_count(measured.unrecorded)} more ended without a recorded run"
    return [
        Tile("Plans", _count(measured.jobs), "a job and the time it was planned for"),
        Tile("Runs", _count(measured.started), note),
    ]


def _item_tiles(measured: Measured) -> list[Tile]:
    outcomes = measured.outcomes
    tiles = [
        Tile("Items put", _count(measured.items_put), "by the highest id of each queue"),
        Tile("Stored", _count(measured.rows), "in segments that still exist"),
        Tile("Waiting", _count(outcomes.get("waiting", 0)), "for at least one reader"),
    ]
    if outcomes.get("expired"):
        tiles.append(Tile("Expired", _count(outcomes["expired"]), "before every reader got them"))
    tiles.append(Tile("Lag", _count(measured.items_behind), "items, summed over all readers"))
    return tiles


def _count(number: int) -> str:
    return shown(number, "count")


def _percentile_tile(name: str, overall: dict[str, int | None], what: str) -> Tile:
    note = f"median; 99 %: {shown(overall.get(f'{what}_p99_ns'), 'ns')}"
    return Tile(name, shown(overall.get(f"{what}_p50_ns"), "ns"), note)


def _charts_over_time(measured: Measured) -> list[Chart]:
    if not measured.times_ns:
        return []
    charts = [_throughput(measured)]
    if measured.dialect != "kestrel":
        charts.append(_percentiles(measured, "wait"))
        charts.append(_percentiles(measured, "run"))
    charts += _depth(measured)
    if measured.dialect != "kestrel":
        charts.append(_failures(measured))
    if measured.growth:
        charts.append(_growth(measured))
    return charts


def _chart(
    measured: Measured,
    title: str,
    note: str,
    series: Sequence[Series],
    unit: str = "count",
    kind: str = "lines",
    *,
    logarithmic: bool = False,
    by_bucket: bool = False,
) -> Chart:
    """``by_bucket``: its values are sums over a bucket, so they are low where one is not whole."""
    times, bucket_ns = measured.times_ns, measured.bucket_ns
    partial = _partial(measured) if by_bucket else frozenset()
    if partial:
        note += f" Shaded: less than {_a(length(bucket_ns))} of data."
    return Chart(title, note, times, bucket_ns, series, unit, kind, logarithmic, partial)


def _a(duration: str) -> str:
    if duration[0].isdigit():
        return duration
    return f"{'an' if duration.startswith('h') else 'a'} {duration}"


def _partial(measured: Measured) -> frozenset[int]:
    """The first and the last bucket, unless the logs begin and end where they do."""
    first, last = measured.times_ns[0], measured.times_ns[-1]
    found = set()
    if measured.first_ns is not None and measured.first_ns > first:
        found.add(0)
    if measured.last_ns is not None and measured.last_ns < last + measured.bucket_ns - 1:
        found.add(len(measured.times_ns) - 1)
    return frozenset(found)


def _throughput(measured: Measured) -> Chart:
    each = length(measured.bucket_ns)
    counts = measured.counts
    if measured.dialect == "kestrel":
        note = f"Items put per {each}."
        if measured.items_put > measured.rows:
            gone = _count(measured.items_put - measured.rows)
            note += f" Without the {gone} items of segments that were removed."
        series = [Series("put", counts["added"], "blue")]
        return _chart(measured, "Items put", note, series, by_bucket=True)
    first = "added" if measured.dialect == "workq" else "due"
    series = [
        Series(first, counts[first], "blue"),
        Series("started", counts["started"], "violet"),
        Series("succeeded", counts["completed"], "teal"),
    ]
    what = {
        "workq": "Jobs added, leases started and jobs completed",
        "ztick": "Plans due, runs started and runs that succeeded",
    }
    note = f"{what[measured.dialect]}, per {each}."
    return _chart(measured, "Throughput", note + _untimed(measured), series, by_bucket=True)


def _untimed(measured: Measured) -> str:
    if not measured.unrecorded:
        return ""
    return " A run without recorded times counts at its planned time."


def _percentiles(measured: Measured, what: str) -> Chart:
    tones = {"p50": "teal", "p90": "blue", "p99": "violet", "p999": "red"}
    names = {"p50": "50 %", "p90": "90 %", "p99": "99 %", "p999": "99.9 %"}
    series = [
        Series(names[rank], measured.latency[f"{what}_{rank}_ns"], tone)
        for rank, tone in tones.items()
    ]
    values = [value for each in series for value in each.values if value]
    logarithmic = bool(values) and max(values) > 50 * min(values)
    if what == "run":
        title, time = "Run time", "Time from start to end"
    else:
        title = "Lateness" if measured.dialect == "ztick" else "Wait"
        time = _WAITS[measured.dialect]
    note = f"{time}, by percentile, of what started in each {length(measured.bucket_ns)}."
    return _chart(measured, title, note, series, "ns", logarithmic=logarithmic)


def _depth(measured: Measured) -> list[Chart]:
    depth = measured.depth
    if measured.dialect == "kestrel":
        series = [Series("waiting", depth["ready"], "blue")]
        note = "Waiting items, by the time they were put. Journals do not record deliveries."
        return [_chart(measured, "Backlog", note, series)]
    waiting = "due, not started" if measured.dialect == "ztick" else "ready"
    series = [
        Series(waiting, depth["ready"], "blue"),
        Series("running", depth["running"], "violet"),
    ]
    note = f"Jobs waiting and jobs running at the end of each {length(measured.bucket_ns)}."
    charts = [_chart(measured, "Depth", note, series)]
    if any(depth["scheduled"]):
        ahead = [Series("scheduled", depth["scheduled"], "grey")]
        note = "Jobs that are scheduled for later."
        charts.append(_chart(measured, "Scheduled ahead", note, ahead))
    return charts


def _failures(measured: Measured) -> Chart:
    tones = {"failed": "red", "timed_out": "amber", "cut_off": "violet", "expired": "grey"}
    words = {"timed_out": "timed out", "cut_off": "cut off"}
    series = [
        Series(words.get(name, name), measured.counts[name], tone)
        for name, tone in tones.items()
        if any(measured.counts[name]) or name == "failed"
    ]
    note = f"Attempts that did not succeed, per {length(measured.bucket_ns)}.{_untimed(measured)}"
    return _chart(measured, "Failures", note, series, kind="bars", by_bucket=True)


def _growth(measured: Measured) -> Chart:
    note = "Total bytes of the records written so far, needed or not."
    total = list(accumulate(measured.growth))
    series = [Series("bytes", total, "teal")]
    return _chart(measured, "Growth of the log", note, series, "bytes")


def _due(measured: Measured) -> list[Chart]:
    if not measured.due:
        return []
    note = f"Plans by planned time, past and future, per {length(measured.due_bucket_ns)}."
    series = [Series("planned for", measured.due, "blue")]
    times, bucket_ns = measured.due_times_ns, measured.due_bucket_ns
    return [Chart("Plans", note, times, bucket_ns, series, kind="bars")]


def _lag(measured: Measured) -> list[Bars]:
    if not measured.lag:
        return []
    rows = [(_reader(each.queue, each.reader), [float(each.items)]) for each in measured.lag]
    note = "Items each reader has not finished, as of its last checkpoint."
    if len(measured.lag) == TOP:
        note += f" The {TOP} furthest behind."
    return [Bars("Reader lag", note, [("items", "blue")], rows)]


def _reader(queue: str, reader: str) -> str:
    return f"{queue} · {reader or 'default reader'}"


def _outcomes(measured: Measured) -> Bars:
    rows = sorted(measured.outcomes.items(), key=lambda each: -each[1])
    tones = [_OUTCOME_TONES.get(name, "grey") for name, _ in rows]
    used = list(dict.fromkeys(tones))
    parts = [(_part_name(rows, tones, tone), tone) for tone in used]
    values = [
        (name, [float(count) if tone == own else 0.0 for tone in used])
        for (name, count), own in zip(rows, tones, strict=True)
    ]
    return Bars("Outcomes", _OUTCOME_NOTES[measured.dialect], parts, values)


_OUTCOME_NOTES = {
    "workq": "How each attempt ended; waiting jobs have not started theirs.",
    "ztick": "How each run ended, and the plans that have not run.",
    "kestrel": "Items in segments that still exist.",
}


def _part_name(rows: Sequence[tuple[str, int]], tones: Sequence[str], tone: str) -> str:
    return ", ".join(name for (name, _), own in zip(rows, tones, strict=True) if own == tone)


def _groups(measured: Measured) -> Table:
    what = {"queue": "Queue", "rule": "Rule", "prefix": "Identifier begins"}[measured.grouping]
    lengths = [
        ("Wait 50 %", [each.wait_p50_ns for each in measured.groups]),
        ("Wait 99 %", [each.wait_p99_ns for each in measured.groups]),
        ("Run 50 %", [each.run_p50_ns for each in measured.groups]),
        ("Run 99 %", [each.run_p99_ns for each in measured.groups]),
    ]
    units = [column_unit(values, "ns") for _, values in lengths]
    is_workq = measured.dialect == "workq"
    columns = [
        what,
        *(("Jobs", "Attempts", "Failed") if is_workq else ("Plans", "Runs", "Failed")),
        *(f"{name}, {unit[1]}" for (name, _), unit in zip(lengths, units, strict=True)),
    ]
    rows = [
        [
            each.name or _NAMELESS[measured.grouping],
            *(_count(number) for number in (each.jobs, each.started, each.failed)),
            *(shown_in(values[at], unit) for (_, values), unit in zip(lengths, units, strict=True)),
        ]
        for at, each in enumerate(measured.groups)
    ]
    title = {"queue": "Busiest queues", "rule": "Busiest rules", "prefix": "Busiest names"}
    note = f"By {'jobs' if is_workq else 'plans'}{_first(measured.groups)}."
    return Table(title[measured.grouping], note, columns, rows, frozenset(range(1, 8)))


def _stored(measured: Measured) -> Table:
    rows = [
        [each.queue, *(_count(number) for number in (each.put, each.stored, each.waiting))]
        for each in measured.queues
    ]
    columns = ["Queue", "Items put", "Stored", "Waiting"]
    note = f"By items put{_first(measured.queues)}."
    return Table("Busiest queues", note, columns, rows, frozenset({1, 2, 3}))


def _first(rows: Sequence[object]) -> str:
    return f"; the first {TOP}" if len(rows) == TOP else ""
