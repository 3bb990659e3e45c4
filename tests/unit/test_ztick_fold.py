"""The fold of the ztick logfile, rule by rule."""

from __future__ import annotations

from journeyman.folds import Anomaly, AnomalyKind, ztick
from journeyman.formats.ztick import JobRemoved, JobSet, RuleRemoved, RuleSet, Shell, Status

JOB = JobSet("backup", 1, Status.PLANNED)
LATER_JOB = JobSet("backup", 2, Status.EXECUTED)
RULE = RuleSet("backup", "backup.", Shell("true"))


def test_the_last_record_of_a_job_is_its_state():
    assert ztick.fold([JOB, LATER_JOB]) == LATER_JOB
    assert ztick.fold([LATER_JOB, JOB]) == JOB


def test_a_removal_leaves_nothing():
    assert ztick.fold([JOB, JobRemoved("backup")]) is None
    assert ztick.replay([RULE, RuleRemoved("backup")]) == {}


def test_what_was_removed_can_be_set_again():
    assert ztick.fold([JOB, JobRemoved("backup"), LATER_JOB]) == LATER_JOB


def test_a_job_and_a_rule_of_one_name_are_two_keys():
    assert ztick.key_of(JOB) == ztick.key_of(JobRemoved("backup")) == ("job", "backup")
    assert ztick.key_of(RULE) == ztick.key_of(RuleRemoved("backup")) == ("rule", "backup")
    states = ztick.replay([JOB, RULE, JobRemoved("backup")])
    assert states == {("rule", "backup"): RULE}


def test_a_removal_of_what_does_not_exist_is_reported():
    notes: list[Anomaly] = []
    assert ztick.fold([RuleRemoved("r")], notes.append) is None
    assert [(note.kind, note.key, note.records) for note in notes] == [
        (AnomalyKind.ORPHAN_REMOVAL, ("rule", "r"), (RuleRemoved("r"),))
    ]


def test_a_removal_of_what_exists_is_not_reported():
    notes: list[Anomaly] = []
    ztick.replay([JOB, JobRemoved("backup")], notes.append)
    assert notes == []


def test_states_stand_in_the_order_of_their_last_records():
    other = JobSet("other", 1, Status.PLANNED)
    assert list(ztick.replay([JOB, other, RULE, LATER_JOB]).values()) == [other, RULE, LATER_JOB]


def test_schedule_keeps_jobs_and_rules_apart():
    jobs, rules = ztick.schedule(ztick.replay([JOB, RULE]))
    assert jobs == {"backup": JOB}
    assert rules == {"backup": RULE}


def test_snapshot_is_the_state_itself():
    assert ztick.snapshot(JOB) == (JOB,)
    assert ztick.snapshot(None) == ()
