"""A report as one HTML file that needs nothing else: no network, no file beside it.

Style and script are beside this module, as page.css and page.js. The script only makes reading
nicer: without it the browser shows its own tooltips, and every chart has its table.

The content security policy allows this one style and this one script, by their digests, and
nothing else. A hostile text from a log that got past the escaping could neither run nor connect
anywhere.
"""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from importlib.resources import files

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from journeyman.spark.audit.audits import Audit, audit
from journeyman.spark.audit.findings import SERIOUS, SEVERITIES, WARNING
from journeyman.spark.report.charts import (
    Unit,
    bars_svg,
    bucket_name,
    chart_svg,
    column_unit,
    moment,
    shown,
    shown_in,
)
from journeyman.spark.report.queries import (
    Bars,
    Chart,
    Measured,
    Report,
    Section,
    Table,
    Tile,
    measure,
    open_logs,
)
from journeyman.spark.report.sections import TITLES, section_of

_SHOWN_LOGS = 20
_FOOTER = (
    "All times are UTC. To see the values of a chart, point at it, focus it and use the arrow "
    "keys, or open the table below it."
)


def page(report: Report) -> str:
    """The whole file."""
    sections = list(report.sections)
    mark = f'<span class="mark {escape(report.severity)}"></span>'
    body = [
        '<header class="top">',
        f"<h1>{escape(report.title)}</h1>",
        f'<p class="soft">Created {moment(report.made_ns // 10**9 * 10**9)} UTC</p>',
        *_logs(report.logs),
        f'<p class="verdict">{mark}<b>{escape(report.verdict)}</b></p>',
        f"<nav>{''.join(_link(at, section) for at, section in enumerate(sections))}</nav>",
        "</header>",
        "<main>",
        *(piece for at, section in enumerate(sections) for piece in _section(at, section)),
        "</main>",
        f"<footer><p>{_FOOTER}</p></footer>",
    ]
    script = f"<script>{_asset('page.js')}</script>"
    return "\n".join([*_head(report.title), *body, script, "</html>", ""])


def _head(title: str) -> Iterator[str]:
    style, script = _asset("page.css"), _asset("page.js")
    policy = (
        "default-src 'none'; base-uri 'none'; form-action 'none'; "
        f"style-src {_digest(style)}; script-src {_digest(script)}"
    )
    yield "<!doctype html>"
    yield '<html lang="en">'
    yield '<meta charset="utf-8">'
    yield f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>{escape(title)}</title>"
    yield f"<style>{style}</style>"


def _asset(name: str) -> str:
    """The style or the script; neither contains the end of its element."""
    return files(__package__).joinpath(name).read_text("utf-8")


def _digest(text: str) -> str:
    return f"'sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _logs(logs: Sequence[str]) -> Iterator[str]:
    listed = [f"<li>{escape(log)}</li>" for log in logs[:_SHOWN_LOGS]]
    if len(logs) > _SHOWN_LOGS:
        listed.append(f"<li>and {len(logs) - _SHOWN_LOGS} more</li>")
    if listed:
        yield f'<ul class="paths">{"".join(listed)}</ul>'


def _link(at: int, section: Section) -> str:
    return f'<a href="#s{at}">{escape(section.title)}</a>'


def _section(at: int, section: Section) -> Iterator[str]:
    yield f'<section aria-labelledby="s{at}"><h2 id="s{at}">{escape(section.title)}</h2>'
    yield f'<p class="soft">{escape(section.intro)}</p>'
    if section.tiles:
        yield f'<dl class="tiles">{"".join(map(_tile, section.tiles))}</dl>'
    if section.parts:
        yield f'<div class="parts">{"".join(map(_part, section.parts))}</div>'
    yield "</section>"


def _tile(tile: Tile) -> str:
    hint = f'<span class="hint">{escape(tile.note)}</span>' if tile.note else ""
    return (
        f'<div class="tile"><dt>{escape(tile.name)}</dt>'
        f'<dd><span class="value">{escape(tile.value)}</span>{hint}</dd></div>'
    )


def _part(part: Chart | Bars | Table) -> str:
    heading = f'<h3>{escape(part.title)}</h3><p class="note">{escape(part.note)}</p>'
    if isinstance(part, Table):
        table = _table(part.columns, part.rows, part.numeric, part.marks)
        return f'<div class="part wide">{heading}<div class="scroll">{table}</div></div>'
    if isinstance(part, Chart):
        if part.is_empty:
            return f'<div class="part">{heading}<p class="note">Nothing to show.</p></div>'
        legend = [(series.name, series.tone) for series in part.series]
        return _figure(heading, legend, chart_svg(part), _chart_table(part))
    if not part.rows:
        return f'<div class="part">{heading}<p class="note">Nothing to show.</p></div>'
    return _figure(heading, part.parts, bars_svg(part), _bars_table(part))


def _figure(heading: str, legend: Sequence[tuple[str, str]], picture: str, table: str) -> str:
    items = "".join(f'<li><i class="{tone}"></i>{escape(name)}</li>' for name, tone in legend)
    return (
        f'<figure class="part" tabindex="0"><figcaption>{heading}</figcaption>'
        f'<ul class="legend">{items}</ul>{picture}'
        f'<details><summary>As a table</summary><div class="scroll">{table}</div></details>'
        "</figure>"
    )


def _chart_table(chart: Chart) -> str:
    unit = column_unit((value for each in chart.series for value in each.values), chart.unit)
    rows = [
        [bucket_name(chart, at), *(shown_in(series.values[at], unit) for series in chart.series)]
        for at in range(len(chart.times_ns))
    ]
    columns = ["From", *(_heading(series.name, unit) for series in chart.series)]
    return _table(columns, rows, frozenset(range(1, len(columns))), ())


def _bars_table(bars: Bars) -> str:
    unit = column_unit((value for _, values in bars.rows for value in values), bars.unit)
    rows = [[label, *(shown_in(value, unit) for value in values)] for label, values in bars.rows]
    columns = ["", *(_heading(name, unit) for name, _ in bars.parts)]
    return _table(columns, rows, frozenset(range(1, len(columns))), ())


def _heading(name: str, unit: Unit) -> str:
    return f"{name}, {unit[1]}" if unit[1] else name


def _table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    numeric: frozenset[int],
    marks: Sequence[str],
) -> str:
    head = "".join(
        f'<th scope="col"{_class(at, numeric)}>{escape(name)}</th>'
        for at, name in enumerate(columns)
    )
    body = []
    for number, row in enumerate(rows):
        mark = f'<span class="mark {escape(marks[number])}"></span>' if marks else ""
        cells = "".join(
            f"<td{_class(at, numeric)}>{mark if at == 0 else ''}{escape(text)}</td>"
            for at, text in enumerate(row)
        )
        body.append(f"<tr>{cells}</tr>")
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"


def _class(at: int, numeric: frozenset[int]) -> str:
    return ' class="n"' if at in numeric else ' class="t"'


# ----------------------------------------
# ``report``: logs of any mix of dialects -> one page.
#
# measure each dialect, audit all of them  -->  Report  -->  HTML

SERIOUS_SHARE = 0.1  # of attempts that failed
WARNING_SHARE = 0.01
_SHOWN_FILES = 40
_Found = tuple[str, str, int, int, str | None, str | None]


def report_page(
    spark: SparkSession,
    logs: Mapping[str, Sequence[str]],
    *,
    made_ns: int,
    title: str = "Journeyman report",
    as_of_ns: int | None = None,
    run_directories: Sequence[str] = (),
) -> str:
    """The whole page; see ``report``."""
    gathered = report(
        spark,
        logs,
        made_ns=made_ns,
        title=title,
        as_of_ns=as_of_ns,
        run_directories=run_directories,
    )
    return page(gathered)


def report(
    spark: SparkSession,
    logs: Mapping[str, Sequence[str]],
    *,
    made_ns: int,
    title: str = "Journeyman report",
    as_of_ns: int | None = None,
    run_directories: Sequence[str] = (),
) -> Report:
    """What the page says. Jobs are late or expired as of ``as_of_ns``.

    The default is the last moment recorded in the logs, so that an old log is judged by its own
    time.
    """
    opened = [open_logs(spark, dialect, paths, run_directories) for dialect, paths in logs.items()]
    try:
        if as_of_ns is None:
            known = [each.last_ns for each in opened if each.last_ns is not None]
            as_of_ns = max(known, default=made_ns)
        measured = [measure(each, as_of_ns) for each in opened]
    finally:
        for each in opened:
            each.close()
    audited = audit(spark, logs, as_of_ns=as_of_ns, run_directories=run_directories)
    found = _findings(audited)
    sections = [section_of(each) for each in measured]
    sections += [_audit_section(found), _files_section(audited)]
    return Report(
        title,
        made_ns,
        [path for paths in logs.values() for path in paths],
        *verdict(found, measured),
        sections,
    )


def verdict(found: Sequence[_Found] | None, measured: Sequence[Measured]) -> tuple[str, str]:
    """What a reader needs to know first, and how bad it is: good, warning or serious.

    ``found`` is None without an audit.

    Attempts that failed count as well as what the audit found: many failures are bad news although
    the log is in perfect order.
    """
    counts = Counter[str]()
    for _, severity, count, *_ in found or ():
        counts[severity] += count
    sentences = []
    if found is not None:
        sentences.append(_audit_sentence(counts[SERIOUS], counts[WARNING]))
    sentences += [_failure_sentence(each) for each in measured if each.failed]
    worst = max((each.failed_share for each in measured), default=0.0)
    if counts[SERIOUS] or worst >= SERIOUS_SHARE:
        return " ".join(sentences), SERIOUS
    if counts[WARNING] or worst >= WARNING_SHARE:
        return " ".join(sentences), WARNING
    return " ".join(sentences), "good"


def _audit_sentence(serious: int, warnings: int) -> str:
    if not serious and not warnings:
        return "The audit found no problems."
    found = [
        f"{shown(number, 'count')} {word}{'' if number == 1 else 's'}"
        for number, word in ((serious, "serious problem"), (warnings, "warning"))
        if number
    ]
    return f"The audit found {' and '.join(found)}."


def _failure_sentence(measured: Measured) -> str:
    ended = measured.failed + measured.succeeded
    what = "attempts" if measured.dialect == "workq" else "runs"
    return (
        f"{TITLES[measured.dialect]}: {100 * measured.failed_share:.1f} % of {what} failed "
        f"({shown(measured.failed, 'count')} of {shown(ended, 'count')})."
    )


def _findings(audited: Audit) -> list[_Found]:
    """finding, severity, count, logs, and one of them as an example."""
    rows = (
        audited.findings.groupBy("finding", "severity")
        .agg(
            F.count("*").alias("count"),
            F.count_distinct("log").alias("logs"),
            F.min_by("key", "detail").alias("key"),
            F.min("detail").alias("detail"),
        )
        .collect()
    )
    found = [
        (row.finding, row.severity, row["count"], row.logs, row.key, row.detail) for row in rows
    ]
    return sorted(found, key=lambda each: (SEVERITIES.index(each[1]), -each[2], each[0]))


def _audit_section(found: Sequence[_Found]) -> Section:
    intro = "Problems found in the logs. Run journeyman pipeline audit to list each of them."
    if not found:
        return Section("Audit", "No problems were found in the logs.")
    rows = [
        [
            finding,
            severity,
            shown(count, "count"),
            shown(logs, "count"),
            f"{key}: {detail}" if key else detail or "",
        ]
        for finding, severity, count, logs, key, detail in found
    ]
    columns = ["Finding", "Severity", "Count", "Logs", "Example"]
    marks = [severity for _, severity, *_ in found]
    table = Table("Findings", "Most serious first.", columns, rows, frozenset({2, 3}), marks)
    return Section("Audit", intro, parts=[table])


def _files_section(audited: Audit) -> Section:
    intro = "Bytes the current state needs; compaction and cleaning free the rest."
    rows = audited.segments.orderBy(F.desc("record_bytes"), "_file").limit(_SHOWN_FILES).collect()
    if not rows:
        return Section("Files", "No file holds a record.")
    names = ("records", "record_bytes", "dead_bytes", "damaged_bytes")
    sums = (F.sum(name).alias(name) for name in names)
    total = audited.segments.agg(F.count("*").alias("files"), *sums).collect()[0]
    unneeded = f"{100 * total.dead_bytes / max(total.record_bytes, 1):.0f} % no longer needed"
    tiles = [
        Tile("Files", shown(total.files, "count")),
        Tile("Records", shown(total.records, "count")),
        Tile("Bytes", shown(total.record_bytes, "bytes"), unneeded),
        Tile("Damaged", shown(total.damaged_bytes, "bytes")),
    ]
    parts = [("needed", "teal"), ("no longer needed", "grey"), ("damaged", "red")]
    bars = [
        (row._file, [float(row.live_bytes), float(row.dead_bytes), float(row.damaged_bytes)])
        for row in rows
    ]
    note = "Bytes of the records in each file, largest first."
    if total.files > _SHOWN_FILES:
        note += f" The first {_SHOWN_FILES} of {shown(total.files, 'count')} files."
    return Section("Files", intro, tiles, [Bars("Bytes", note, parts, bars, "bytes")])
