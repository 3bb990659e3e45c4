"""Reports on demand, with a small program in the place of Spark."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from journeyman.disk import RealDisk
from journeyman.logs.holders import register
from journeyman.servers.http.console.reports import MOST_KEPT, ReportRuns, lakes_of
from journeyman.servers.http.problems import ApiError

POLICY = "default-src 'none'; style-src 'sha256-a+/b='"
PAGE = f'<meta http-equiv="Content-Security-Policy" content="{POLICY}"><title>made</title>'
WRITES = f"import sys; open(sys.argv[-1], 'w').write({PAGE!r} + sys.argv[1])"
FAILS = "import sys; sys.exit('no such log')"


@pytest.fixture(autouse=True)
def spark_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReportRuns, "can_make", True)


def made(reports: ReportRuns, log: str, moment: str = "2026-11-17T07:00:00.5Z") -> str:
    async def make() -> str:
        name = reports.begin({"work": log, "gone": "/nowhere"}, moment)
        with pytest.raises(ApiError, match="being made"):
            reports.begin({}, moment)
        async with asyncio.timeout(60):
            while reports.is_making:
                await asyncio.sleep(0.01)
        return name

    return asyncio.run(make())


def test_a_report_is_made_kept_and_served_in_a_sandbox(tmp_path: Path):
    reports = ReportRuns(str(tmp_path / "cache"), (sys.executable, "-c", WRITES))
    name = made(reports, str(tmp_path))
    assert (name, reports.error) == ("report-20261117T070000Z.html", "")
    assert [each.name for each in reports.kept()] == [name]
    text, policy = reports.read(name)
    assert text == PAGE + str(tmp_path)
    assert policy == f"{POLICY}; frame-ancestors 'none'; sandbox allow-scripts"


def test_without_spark_the_answer_is_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(ReportRuns, "can_make", False)
    with pytest.raises(ApiError, match=r"pip install 'journeyman\[spark\]'"):
        ReportRuns(str(tmp_path)).begin({}, "2026-11-17T07:00:00Z")


def test_the_oldest_reports_go(tmp_path: Path):
    for minute in range(10, 10 + MOST_KEPT + 2):
        (tmp_path / f"report-20261116T00{minute}00Z.html").write_text("old")
    reports = ReportRuns(str(tmp_path), (sys.executable, "-c", WRITES))
    name = made(reports, str(tmp_path))
    kept = [each.name for each in reports.kept()]
    assert (len(kept), kept[0]) == (MOST_KEPT, name)
    assert "report-20261116T001000Z.html" not in kept
    assert reports.read(kept[1])[1].startswith("default-src 'none'; frame")


def test_a_report_that_fails_says_why(tmp_path: Path):
    reports = ReportRuns(str(tmp_path / "cache"), (sys.executable, "-c", FAILS))
    made(reports, str(tmp_path))
    assert (reports.error, reports.kept()) == ("no such log", [])


def test_a_lake_that_reads_the_logs_is_found_by_what_it_left_beside_them(tmp_path: Path):
    lake, log = tmp_path / "lake", tmp_path / "log"
    lake.mkdir()
    log.mkdir()
    for number, who in enumerate((f"lake {lake}", "lake /nowhere", "stream x")):
        register(RealDisk(), str(log), str(number), who, 1, {})
    places = {"work": str(log)}
    assert lakes_of(places) == [str(lake)]
    reports = ReportRuns(str(tmp_path / "cache"), (sys.executable, "-c", WRITES))

    async def make() -> None:
        with pytest.raises(ApiError, match="no lake"):
            reports.begin(places, "2026-11-17T07:00:00Z", "/etc")
        reports.begin(places, "2026-11-17T07:00:00Z", str(lake))
        async with asyncio.timeout(60):
            while reports.is_making:
                await asyncio.sleep(0.01)

    asyncio.run(make())
    assert reports.read("report-20261117T070000Z.html")[0] == PAGE + "--lake"


@pytest.mark.parametrize("name", ["../ledger", "report-20261117T070000Z.html", "x.html"])
def test_only_reports_are_read(tmp_path: Path, name: str):
    with pytest.raises(ApiError, match="no such report"):
        ReportRuns(str(tmp_path)).read(name)
