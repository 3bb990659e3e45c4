"""Reports made by hand, nice and nasty ones: shared by several lanes."""

from __future__ import annotations

import math

from journeyman.spark.report.axis import Axis
from journeyman.spark.report.page import Bars, Chart, Part, Report, Section, Series, Table, Tile

MADE_NS = 1_794_700_000_000_000_000
MINUTE_NS = 60 * 10**9
HOSTILE = """</script></title><img src=x onerror=alert(1)>"'&<b>{{x}}\u202e"""


def chart(points: int, *, kind: str = "lines", unit: str = "count") -> Chart:
    times = tuple(MADE_NS // MINUTE_NS * MINUTE_NS + at * MINUTE_NS for at in range(points))
    waves = [[100 + 90 * math.sin(at / 9 + shift) for at in range(points)] for shift in (0, 1)]
    series = [Series("one", waves[0], "accent"), Series("two", waves[1], "mid")]
    return Chart("Waves", "They go up and down.", Axis(times, MINUTE_NS), series, unit, kind)


def full_report(points: int = 120, text: str = "orders.outgoing") -> Report:
    """A report with every kind of part in it, ``text`` wherever a log may have its say."""
    tiles = [Tile("Jobs", "12,345", text), Tile("Wait", "12 ms"), Tile("Failed", "3")]
    rows = [(f"{text} {n}", [(float(n), "accent"), (5.0, "faint")]) for n in range(4)]
    table = Table(
        "Busiest", text, ["Queue", "Jobs"], [[text, "17"], [text * 3, "4"]], frozenset({1})
    )
    findings = Table("Findings", "", ["Finding", "x"], [["vanished", text]], marks=["serious"])
    parts: list[Part] = [
        chart(points),
        chart(points, kind="bars"),
        chart(points, unit="ns", kind="nested"),
        Bars(text, text, rows, "bytes", [("here", "accent"), ("there", "faint")]),
        table,
    ]
    sections = [Section("Work queue", text, tiles, parts), Section("Audit", text, (), [findings])]
    return Report(text, MADE_NS, [text] * 3, "1 serious finding", "serious", sections)


def small_reports() -> dict[str, Report]:
    """Reports of logs with little or nothing in them."""
    nothing = Chart("None", "", Axis(), [])
    gaps = Chart(
        "Gaps",
        "",
        Axis((0, MINUTE_NS, 90 * MINUTE_NS, 91 * MINUTE_NS), MINUTE_NS, frozenset({2})),
        [Series("a", [None, 5, None, 7], "accent")],
        "ns",
    )
    two = Axis((0, MINUTE_NS), MINUTE_NS, partial=frozenset({1}))
    zeros = Chart("Zeros", "", two, [Series("a", [0, 0], "alarm")], kind="bars", by_bucket=True)
    no_rows = Bars("No rows", "", [])
    far_axis = Axis((2**62, 2**62 + 10**15), 10**15)
    far = Chart("Far", "", far_axis, [Series("a", [1, 10**12], "edge")], "ns", "nested")
    return {
        "empty": Report("Empty", MADE_NS, [], "The audit found no problems.", "good"),
        "one point": Report(
            "One", MADE_NS, ["log"], "", "good", [Section("S", "", (), [chart(1)])]
        ),
        "odd": Report(
            "Odd",
            MADE_NS,
            [],
            "",
            "warning",
            [Section("S", "", (), [nothing, gaps, zeros, no_rows, far])],
        ),
    }
