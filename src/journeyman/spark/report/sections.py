"""Numbers -> what is said about them: tiles, charts, tables, each with its one sentence."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from journeyman.spark.report.facts import Bars, Chart, Section, Series, Table, Tile
from journeyman.spark.report.measuring import Measured
from journeyman.spark.report.wording import length, moment, shown

__all__ = ["section_of"]

_TITLES = {"workq": "Work queue", "ztick": "Schedule", "kestrel": "Fan-out queues"}
_INTROS = {
    "workq": "Jobs that workers lease, from the command log.",
    "ztick": "Jobs that run at a time planned for, from the log and the runs noted beside it.",
    "kestrel": "Items put once and given to every reader, from the journals and checkpoints.",
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
_NAMELESS = {"queue": "(added before the log begins)", "rule": "(no run noted)", "prefix": "-"}
_WAITS = {
    "workq": "from being ready to being leased",
    "ztick": "from the time planned for to the start",
}


def section_of(measured: Measured) -> Section:
    """The section of one dialect."""
    title, intro = _TITLES[measured.dialect], _INTROS[measured.dialect]
    if not measured.rows:
        return Section(title, f"{intro} Nothing is recorded.")
    parts: list[Chart | Bars | Table] = [
        *_charts_over_time(measured),
        *_due(measured),
        *_lag(measured),
        _outcomes(measured),
        _groups(measured),
    ]
    return Section(title, f"{intro} {_span(measured)}".strip(), _tiles(measured), parts)


def _span(measured: Measured) -> str:
    if not measured.times_ns or measured.last_ns is None:
        return ""
    return f"From {moment(measured.times_ns[0])} to {moment(measured.last_ns)}."


# -- tiles ---------------------------------------------------------------------------------------


def _tiles(measured: Measured) -> list[Tile]:
    outcomes = measured.outcomes
    if measured.dialect == "kestrel":
        behind = sum(each.items for each in measured.lag)
        return [
            Tile("Items", shown(measured.rows, "count")),
            Tile("Finished", shown(outcomes.get("finished", 0), "count"), "by every reader"),
            Tile("Waiting", shown(outcomes.get("waiting", 0), "count"), "for some reader"),
            Tile("Lag", shown(behind, "count"), "items, over all readers"),
        ]
    ended = sum(outcomes.get(name, 0) for name in ("completed", "executed"))
    failed = sum(outcomes.get(name, 0) for name in ("failed", "timed-out", "cut-off"))
    open_ = sum(outcomes.get(name, 0) for name in ("waiting", "leased", "planned", "triggered"))
    share = f"{100 * failed / (ended + failed):.1f} % of what ended" if ended + failed else ""
    tiles = [
        Tile("Attempts" if measured.dialect == "workq" else "Plans and runs", _count(measured)),
        Tile("Succeeded", shown(ended, "count")),
        Tile("Failed", shown(failed, "count"), share),
        Tile("Open", shown(open_, "count"), "waiting or running at the end"),
    ]
    overall = measured.overall
    if overall.get("wait_p50_ns") is not None:
        late = "Lateness" if measured.dialect == "ztick" else "Wait"
        tiles.append(_percentile_tile(late, overall, "wait"))
        tiles.append(_percentile_tile("Run time", overall, "run"))
    return tiles


def _count(measured: Measured) -> str:
    return shown(measured.rows, "count")


def _percentile_tile(name: str, overall: dict[str, int | None], what: str) -> Tile:
    note = f"median; 99 %: {shown(overall.get(f'{what}_p99_ns'), 'ns')}"
    return Tile(name, shown(overall.get(f"{what}_p50_ns"), "ns"), note)


# -- charts --------------------------------------------------------------------------------------


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
) -> Chart:
    times, bucket_ns = measured.times_ns, measured.bucket_ns
    return Chart(title, note, times, bucket_ns, series, unit, kind, logarithmic)


def _throughput(measured: Measured) -> Chart:
    names = {
        "workq": (("added", "blue"), ("started", "violet"), ("completed", "teal")),
        "ztick": (("started", "violet"), ("completed", "teal")),
        "kestrel": (("added", "blue"),),
    }[measured.dialect]
    each = length(measured.bucket_ns)
    series = [Series(_WORDS.get(name, name), measured.counts[name], tone) for name, tone in names]
    return _chart(measured, "Throughput", f"How many each {each}.", series)


_WORDS = {"added": "added", "started": "started", "completed": "succeeded"}


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
        title, note = "Run time", "So many of the runs that started then took no longer."
    else:
        title = "Lateness" if measured.dialect == "ztick" else "Wait"
        note = f"So many waited no longer, {_WAITS[measured.dialect]}."
    return _chart(measured, title, note, series, "ns", logarithmic=logarithmic)


def _depth(measured: Measured) -> list[Chart]:
    depth = measured.depth
    if measured.dialect == "kestrel":
        series = [Series("waiting", depth["ready"], "blue")]
        note = "What waits now, by when it was put. When items were finished is not recorded."
        return [_chart(measured, "Backlog", note, series)]
    waiting = "due, not started" if measured.dialect == "ztick" else "ready"
    series = [
        Series(waiting, depth["ready"], "blue"),
        Series("running", depth["running"], "violet"),
    ]
    note = f"How many wait and run, at the end of each {length(measured.bucket_ns)}."
    charts = [_chart(measured, "Depth", note, series)]
    if any(depth["scheduled"]):
        ahead = [Series("scheduled", depth["scheduled"], "grey")]
        note = "How many were added for a later time that had not come yet."
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
    each = length(measured.bucket_ns)
    return _chart(measured, "Failures", f"What did not succeed, each {each}.", series, kind="bars")


def _growth(measured: Measured) -> Chart:
    note = "Bytes of all records written up to then, whether or not they are still needed."
    total = list(accumulate(measured.growth))
    series = [Series("bytes", total, "teal")]
    return _chart(measured, "Growth of the log", note, series, "bytes")


def _due(measured: Measured) -> list[Chart]:
    if not measured.due:
        return []
    each = length(measured.due_bucket_ns)
    note = f"Jobs by the time they are planned for, past and to come, each {each}."
    series = [Series("planned for", measured.due, "blue")]
    times, bucket_ns = measured.due_times_ns, measured.due_bucket_ns
    return [Chart("Plans", note, times, bucket_ns, series, kind="bars")]


# -- bars and tables -----------------------------------------------------------------------------


def _lag(measured: Measured) -> list[Bars]:
    if not measured.lag:
        return []
    rows = [(_reader(each.queue, each.reader), [float(each.items)]) for each in measured.lag]
    note = "Items that each reader has yet to finish, as of its last checkpoint."
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
    return Bars("Outcomes", "What became of every attempt, or what it waits for.", parts, values)


def _part_name(rows: Sequence[tuple[str, int]], tones: Sequence[str], tone: str) -> str:
    return ", ".join(name for (name, _), own in zip(rows, tones, strict=True) if own == tone)


def _groups(measured: Measured) -> Table:
    what = {"queue": "Queue", "rule": "Rule", "prefix": "Identifier begins"}[measured.grouping]
    columns = [what, "Jobs", "Started", "Failed", "Wait 50 %", "99 %", "Run 50 %", "99 %"]
    if measured.dialect == "kestrel":
        rows = [[each.name, shown(each.jobs, "count")] for each in measured.groups]
        return Table("Busiest queues", "By items.", columns[:2], rows, frozenset({1}))
    rows = [
        [
            each.name or _NAMELESS[measured.grouping],
            *(shown(number, "count") for number in (each.jobs, each.started, each.failed)),
            *(
                shown(number, "ns")
                for number in (
                    each.wait_p50_ns,
                    each.wait_p99_ns,
                    each.run_p50_ns,
                    each.run_p99_ns,
                )
            ),
        ]
        for each in measured.groups
    ]
    title = {"queue": "Busiest queues", "rule": "Busiest rules", "prefix": "Busiest names"}
    note = "By jobs; the first twelve."
    return Table(title[measured.grouping], note, columns, rows, frozenset(range(1, 8)))
