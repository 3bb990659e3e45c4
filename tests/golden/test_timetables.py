"""Both nights of 2027 when the clock jumps, in five zones: which moments, under which names.

The file was written by a reading of every minute (tests/support/brute_cron.py), with the rules of
the zones of 2026.
"""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import pytest

from journeyman.timetables import Timetable, occurrences_of

CASES = json.loads((Path(__file__).parent / "data/timetables/nights-2027.json").read_text())


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['tz']} {case['after'][:10]}")
def test_a_night(case):
    occurrences = occurrences_of(Timetable.read({"cron": case["cron"], "tz": case["tz"]}))
    after_s, until_s = (
        int(datetime.fromisoformat(case[end]).timestamp()) for end in ("after", "until")
    )
    found = occurrences.between(after_s + 1, until_s + 1, 1000)
    assert [occurrences.zone.label(at_s) for at_s in found] == case["occurrences"]


def test_there_are_two_nights_in_each_of_five_zones():
    assert len({(case["tz"], case["after"]) for case in CASES}) == 10
