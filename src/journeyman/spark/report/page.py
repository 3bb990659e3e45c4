"""A report: plain values, and one HTML file of them that needs nothing else, no network, no file.

    Report
      Section "Work queue"        one per dialect, then the audit, then the files
        Tile     a number that matters
        Chart    lines, bars or nested areas over time, at most a few hundred points
        Bars     one bar per row: shares, lag
        Table    rows of text

Texts may come from a log and cannot be trusted: they are escaped here.

uPlot draws the charts, from values that stand in the page as JSON; it is the copy that the console
has. Style and script are beside this module, as page.css and page.js. Without the script every
chart still has its table.

The content security policy allows these styles and these scripts, by their digests, and nothing
else. A hostile text from a log that got past the escaping could neither run nor connect anywhere.
"""

from __future__ import annotations

import hashlib
import json
import re
from base64 import b64encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files
from typing import Any, Final, TypeAlias

from journeyman.spark.report import units
from journeyman.spark.report.axis import Axis

_SHOWN_LOGS: Final = 20
_ASSETS: Final = "servers/http/console/assets"
_BEFORE_UNIT: Final = re.compile(r"(?<=[0-9]) (?=[^0-9\s]{1,3}(?:\s|$))")
_FOOTER: Final = (
    "All times are UTC. To see the values of a chart, point at it, focus it and use the arrow "
    "keys, or open the table below it."
)


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a chart: a value for each bucket, None where there is none."""

    name: str
    values: Sequence[float | None]
    tone: str  # accent mid soft alarm alarm-mid edge faint


@dataclass(frozen=True, slots=True)
class Chart:
    """Values over time. ``unit``: count, ns or bytes.

    ``kind`` is lines, bars (stacked), or nested: areas from the axis up, each inside the next, so
    that percentiles which coincide hide nothing.
    """

    title: str
    note: str  # one sentence: what is shown
    axis: Axis
    series: Sequence[Series]
    unit: str = "count"
    kind: str = "lines"
    by_bucket: bool = False  # sums over a bucket, which are low where one is not whole
    is_shared: bool = True  # on the axis, and under the cursor, of the other charts

    @property
    def is_empty(self) -> bool:
        return not any(value is not None for series in self.series for value in series.values)


@dataclass(frozen=True, slots=True)
class Bars:
    """Rows of a label and its parts, each a value and a tone."""

    title: str
    note: str
    rows: Sequence[tuple[str, Sequence[tuple[float, str]]]]
    unit: str = "count"
    legend: Sequence[tuple[str, str]] = ()  # name and tone of each part, if there are several


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
    wrong: bool = False


Part: TypeAlias = Chart | Bars | Table


@dataclass(frozen=True, slots=True)
class Section:
    title: str
    intro: str
    tiles: Sequence[Tile] = ()
    parts: Sequence[Part] = ()


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
    made = units.format_moment(report.made_ns // 10**9 * 10**9)
    styles = [_shared("vendor/uplot.css"), _shared("tokens.css") + _asset("page.css")]
    scripts = [_shared("vendor/uplot.js"), _asset("page.js")]
    policy = (
        "default-src 'none'; base-uri 'none'; form-action 'none'; "
        f"style-src {' '.join(map(_digest, styles))}; script-src {' '.join(map(_digest, scripts))}"
    )
    links = "".join(
        f'<a href="#s{at}">{escape(section.title)}</a>' for at, section in enumerate(sections)
    )
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(report.title)}</title>",
            *(f"<style>{style}</style>" for style in styles),
            "<header>",
            f'<p class="dim">{escape(report.title)}</p>',
            f'<h1 class="lead {escape(report.severity)}">{escape(report.verdict)}</h1>',
            f'<p class="dim">Created {made} UTC</p>',
            *_logs(report.logs),
            f"<nav>{links}</nav>",
            "</header>",
            "<main>",
            "<noscript><p>Charts need JavaScript; each has its values in a table.</p></noscript>",
            *(piece for at, section in enumerate(sections) for piece in _section(at, section)),
            "</main>",
            f"<footer><p>{_FOOTER}</p></footer>",
            *(f"<script>{script}</script>" for script in scripts),
            "</html>",
            "",
        ]
    )


def _asset(name: str) -> str:
    """A style or a script of the page; none contains the end of its element."""
    return files(__package__).joinpath(name).read_text("utf-8")


def _shared(name: str) -> str:
    """A file of the console."""
    return files("journeyman").joinpath(_ASSETS, *name.split("/")).read_text("utf-8")


def _digest(text: str) -> str:
    return f"'sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _logs(logs: Sequence[str]) -> Iterator[str]:
    listed = [f"<li>{escape(log)}</li>" for log in logs[:_SHOWN_LOGS]]
    if len(logs) > _SHOWN_LOGS:
        listed.append(f"<li>and {len(logs) - _SHOWN_LOGS} more</li>")
    if listed:
        yield f'<ul class="paths">{"".join(listed)}</ul>'


def _section(at: int, section: Section) -> Iterator[str]:
    yield f'<section aria-labelledby="s{at}"><h2 id="s{at}">{escape(section.title)}</h2>'
    yield f'<p class="dim">{escape(section.intro)}</p>'
    if section.tiles:
        yield f'<dl class="tiles">{"".join(map(_tile, section.tiles))}</dl>'
    if section.parts:
        yield f'<div class="parts">{"".join(map(_part, section.parts))}</div>'
    yield "</section>"


def _tile(tile: Tile) -> str:
    # A number and its unit stay on one line.
    note = _BEFORE_UNIT.sub("\u00a0", tile.note)
    note = f"<em>{escape(note)}</em>" if note else ""
    kind = "tile wrong" if tile.wrong else "tile"
    return (
        f'<div class="{kind}"><dt>{escape(tile.name)}</dt>'
        f"<dd><strong>{escape(tile.value)}</strong>{note}</dd></div>"
    )


def _part(part: Part) -> str:
    heading = f'<h3>{escape(part.title)}</h3><p class="note">{escape(part.note)}</p>'
    if isinstance(part, Table):
        table = _table(part.columns, part.rows, part.numeric, part.marks)
        return f'<div class="part wide">{heading}<div class="scroll">{table}</div></div>'
    if isinstance(part, Bars):
        body = _bars(part) if part.rows else '<p class="note">Nothing to show.</p>'
        return f'<div class="part">{heading}{body}</div>'
    if part.is_empty:
        return f'<div class="part">{heading}<p class="note">Nothing to show.</p></div>'
    return (
        f'<figure class="part" tabindex="0"><figcaption>{heading}</figcaption>'
        f'<div class="plot"></div>'
        f'<script type="application/json">{_chart_json(part)}</script>'
        f'<details><summary>As a table</summary><div class="scroll">{_chart_table(part)}</div>'
        "</details></figure>"
    )


def _chart_json(chart: Chart) -> str:
    """Return the data that the script draws. No text in it can end its element."""
    axis = chart.axis
    names = [axis.name(at) for at in range(len(axis.times_ns))]
    slots = list(axis.with_gaps(names))
    drawn: dict[str, Any] = {
        "title": chart.title,
        "unit": chart.unit,
        "kind": chart.kind,
        "shared": chart.is_shared,
        "times": slots,
        "ticks": axis.ticks(),
        "gaps": [at for at, name in enumerate(slots) if name is None],
        "partial": [
            at for at, name in enumerate(slots) if chart.by_bucket and name and "(" in name
        ],
        "series": [
            {"name": each.name, "tone": each.tone, "values": list(axis.with_gaps(each.values))}
            for each in chart.series
        ],
    }
    text = json.dumps(drawn, separators=(",", ":"), ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _chart_table(chart: Chart) -> str:
    unit = units.column_unit((value for each in chart.series for value in each.values), chart.unit)
    axis = chart.axis
    rows = [
        [axis.name(at), *(units.format_in(series.values[at], unit) for series in chart.series)]
        for at in range(len(axis.times_ns))
    ]
    columns = [
        f"From, each {units.format_length(axis.bucket_ns)}",
        *(_heading(series.name, unit) for series in chart.series),
    ]
    return _table(columns, rows, frozenset(range(1, len(columns))), ())


def _heading(name: str, unit: units.Unit) -> str:
    return f"{name}, {unit[1]}" if unit[1] else name


def _bars(bars: Bars) -> str:
    most = max((sum(value for value, _ in parts) for _, parts in bars.rows), default=0) or 1
    legend = "".join(
        f'<li><svg class="key"><rect class="{tone}" width="100%" height="100%"/></svg>'
        f"{escape(name)}</li>"
        for name, tone in bars.legend
    )
    rows = []
    for label, parts in bars.rows:
        drawn, total = [], 0.0
        for value, tone in parts:
            place = f'x="{100 * total / most:.2f}%" width="{100 * value / most:.2f}%"'
            drawn.append(f'<rect class="{tone}" {place} height="100%"/>')
            total += value
        text = units.format_value(total, bars.unit)
        rows.append(
            f'<tr><th scope="row">{escape(label)}</th><td class="n">{text}</td>'
            f'<td class="bar"><svg aria-hidden="true">{"".join(drawn)}</svg></td></tr>'
        )
    shown_legend = f'<ul class="legend">{legend}</ul>' if legend else ""
    return f'{shown_legend}<table class="bars"><tbody>{"".join(rows)}</tbody></table>'


def _table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    numeric: frozenset[int],
    marks: Sequence[str],
) -> str:
    kinds = ["n" if at in numeric else "t" for at in range(len(columns))]
    head = "".join(
        f'<th scope="col" class="{kind}">{escape(name).replace(" %", "&nbsp;%")}</th>'
        for name, kind in zip(columns, kinds, strict=True)
    )
    body = []
    for number, row in enumerate(rows):
        cells = "".join(
            f'<td class="{kind}">{escape(text)}</td>' for text, kind in zip(row, kinds, strict=True)
        )
        mark = f' class="{escape(marks[number])}"' if marks and marks[number] else ""
        body.append(f"<tr{mark}>{cells}</tr>")
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"
