"""A report: plain values, and one HTML file of them that needs nothing else, no network, no file.


    Report
      Section "Work queue"        one per dialect, then the audit, then the files
        Tile     a number that matters
        Chart    lines or bars over time, at most a few hundred points
        Bars     one bar per row: shares, lag
        Table    rows of text

Texts may come from a log and cannot be trusted: they are escaped here.

Style and script are beside this module, as page.css and page.js. The script only makes reading
nicer: without it the browser shows its own tooltips, and every chart has its table.

The content security policy allows this one style and this one script, by their digests, and
nothing else. A hostile text from a log that got past the escaping could neither run nor connect
anywhere.
"""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files

from journeyman.spark.report.charts import (
    Unit,
    bars_svg,
    bucket_name,
    chart_svg,
    column_unit,
    moment,
    shown_in,
)

_SHOWN_LOGS = 20
_FOOTER = (
    "All times are UTC. To see the values of a chart, point at it, focus it and use the arrow "
    "keys, or open the table below it."
)


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a chart: a value for each bucket, None where there is none."""

    name: str
    values: Sequence[float | None]
    tone: str  # blue teal amber red violet grey


@dataclass(frozen=True, slots=True)
class Chart:
    """Values over time. ``unit``: count, ns or bytes."""

    title: str
    note: str  # one sentence: what is shown
    times_ns: Sequence[int]  # where each bucket begins, evenly spaced
    bucket_ns: int
    series: Sequence[Series]
    unit: str = "count"
    kind: str = "lines"  # or "bars": stacked
    logarithmic: bool = False
    partial: frozenset[int] = frozenset()  # buckets that the logs cover only in part

    @property
    def is_empty(self) -> bool:
        return not any(value is not None for series in self.series for value in series.values)


@dataclass(frozen=True, slots=True)
class Bars:
    """Rows of (label, value of each part)."""

    title: str
    note: str
    parts: Sequence[tuple[str, str]]  # name and tone
    rows: Sequence[tuple[str, Sequence[float]]]
    unit: str = "count"


@dataclass(frozen=True, slots=True)
class Table:
    title: str
    note: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    numeric: frozenset[int] = frozenset()  # columns to set flush right
    marks: Sequence[str] = ()  # a word for each row: serious, warning, info


@dataclass(frozen=True, slots=True)
class Tile:
    name: str
    value: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    title: str
    intro: str
    tiles: Sequence[Tile] = ()
    parts: Sequence[Chart | Bars | Table] = ()


@dataclass(frozen=True, slots=True)
class Report:
    title: str
    made_ns: int
    logs: Sequence[str]
    verdict: str  # one or two sentences
    severity: str  # good, warning or serious
    sections: Sequence[Section] = field(default_factory=tuple)


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
