"""The list of planted bugs fits the tree, and the tests notice four; `make proof` plants all."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.mutations.lane import ROOT, Bug, BugListError, plant_and_test, read_bugs

BUGS = read_bugs()
GATE = [bug for bug in BUGS if bug.gate]


def test_every_bug_can_be_planted():
    for bug in BUGS:
        assert bug.planted() != bug.source.read_text(encoding="utf-8"), bug.name
        if bug.file.endswith(".py"):
            compile(bug.planted(), bug.file, "exec")


def test_every_bug_names_tests_that_exist():
    missing = [
        f"{bug.name}: {argument}"
        for bug in BUGS
        for argument in bug.tests
        if argument.startswith("tests/") and not (ROOT / argument.split("::")[0]).exists()
    ]
    assert missing == []


def test_there_are_a_hundred_bugs_and_four_in_the_gate():
    assert [name for name, count in Counter(bug.name for bug in BUGS).items() if count > 1] == []
    assert len(BUGS) >= 100
    assert len(GATE) == 4


def test_a_bug_that_no_test_can_notice_survives():
    """The lane itself can fail: a change that breaks nothing is not called noticed."""
    line = "NS_PER_US: Final = 1_000"
    harmless = Bug(
        "harmless",
        "nothing",
        "units.py",
        line,
        f"{line}  # the same",
        ("tests/unit/test_values.py",),
    )
    assert not plant_and_test(harmless).noticed


def test_a_run_without_tests_is_an_error():
    bug = GATE[0]
    empty = Bug(bug.name, bug.breaks, bug.file, bug.find, bug.replace, ("tests/support",))
    with pytest.raises(BugListError):
        plant_and_test(empty)


@pytest.mark.parametrize("bug", GATE, ids=lambda bug: bug.name)
def test_a_planted_bug_is_noticed(bug):
    outcome = plant_and_test(bug)
    assert outcome.noticed, f"{bug.breaks}\n{outcome.output[-3_000:]}"
