"""Records as lines: quoting, escaping, bytes that are no text, long payloads."""

from __future__ import annotations

import json

import pytest

from journeyman.cli import reading
from journeyman.cli.output import counted, json_line
from journeyman.cli.reading import snippet
from journeyman.formats.framing import Entry
from journeyman.formats.kestrel import ItemPut, UnknownCommand
from journeyman.formats.ztick import (
    Amqp,
    Awf,
    Direct,
    Http,
    JobRemoved,
    JobSet,
    Redis,
    RuleRemoved,
    RuleSet,
    Shell,
    Status,
)
from tests.support.cli_commands import added

RULES = [
    (Shell("echo hi"), "shell echo hi"),
    (Amqp("dsn", "ex", "key"), "amqp dsn ex key"),
    (Direct("/bin/x", ("a b", "c")), "direct /bin/x a b c"),
    (Awf("flow", ("k=v", "l=w")), "awf flow --input k=v --input l=w"),
    (Http("GET", "http://x/"), "http GET http://x/"),
    (Redis("redis://x", "SET", "k"), "redis redis://x SET k"),
]


@pytest.mark.parametrize(("runner", "words"), RULES)
def test_ztick_rules_are_words_in_text(runner, words):
    assert reading.ztick_text(RuleSet("r", "p.", runner)) == f"RULE SET r p. {words}"


@pytest.mark.parametrize(("runner", "words"), RULES)
def test_ztick_rules_are_objects_in_json(runner, words):
    row = json.loads(reading.ztick_json(RuleSet("r", "p.", runner)))

    assert list(row) == ["type", "identifier", "pattern", "runner"]
    assert row["runner"].pop("type") == words.split()[0]
    assert list(row["runner"].values()) == [
        list(value) if isinstance(value, tuple) else value
        for value in (getattr(runner, name) for name in row["runner"])
    ]


@pytest.mark.parametrize("status", list(Status))
def test_ztick_jobs_show_their_status(status):
    record = JobSet("j", -5, status)

    assert reading.ztick_text(record) == f"SET j -5 {status.name.lower()}"
    assert json.loads(reading.ztick_json(record))["status"] == status.name.lower()


def test_ztick_removals_say_of_what():
    assert reading.ztick_text(JobRemoved("x")) == "REMOVE x"
    assert reading.ztick_text(RuleRemoved("x")) == "REMOVERULE x"
    assert reading.ztick_json(JobRemoved("x")) == '{"type":"remove","identifier":"x"}'
    assert reading.ztick_json(RuleRemoved("x")) == '{"type":"remove_rule","identifier":"x"}'


def test_ztick_json_escapes_as_the_original_does():
    line = reading.ztick_json(JobRemoved('"\\/\n\r\t\b\f\x00\x1f\x7fé€😀'))

    assert line == (
        '{"type":"remove","identifier":"\\"\\\\/\\n\\r\\t\\u0008\\u000c\\u0000\\u001f\x7fé€😀"}'
    )


def test_json_lines_stay_valid_when_a_name_is_no_text():
    name = b"caf\xe9 \xff".decode("utf-8", "surrogateescape")

    line = json_line({"name": name, "other": "é"})

    assert json.loads(line.encode("utf-8")) == {"name": name, "other": "é"}
    assert "é" in line


def test_workq_text_says_when_a_job_is_due_only_if_it_is_scheduled():
    entry = Entry(8, 80, added(1))

    line = reading.workq_text("000000001.log", entry)

    assert line.startswith("000000001.log:8 2027-01-15T08:00:00Z add 00000000-0001-4000-8000-")
    assert line.endswith(' created=2027-01-15T08:00:00Z "payload"')
    assert " time=" not in line


def test_kestrel_text_says_expiry_and_errors_only_if_there_are_any():
    plain = reading.kestrel_text(ItemPut(1, 0, None, 0, b"x"))
    rich = reading.kestrel_text(ItemPut(2, 1000, 61_000, 3, b"x"))

    assert plain == 'PUT 1 @ 1970-01-01T00:00:00Z "x"'
    assert rich == 'PUT 2 @ 1970-01-01T00:00:01Z expires=1970-01-01T00:01:01Z errors=3 "x"'


def test_unknown_kestrel_commands_show_their_code():
    record = UnknownCommand(0xF3, b"\4\0\0\0" + bytes(8), b"\xff" * 4)

    assert reading.kestrel_text(record) == "UNKNOWN command 15, 4 bytes of data"
    assert reading.kestrel_fields(record) == {
        "command": "UNKNOWN",
        "code": 15,
        "data_size": 4,
    }


def test_a_snippet_is_short_and_printable():
    assert snippet(b"") == '""'
    assert snippet(b'say "hi"\n\x00') == '"say \\"hi\\"\\n\\x00"'
    assert snippet(b"'single'") == "\"'single'\""
    assert snippet(b"a" * 60) == f'"{"a" * 60}"'
    assert snippet(b"a" * 61) == f'"{"a" * 60}"... (61 bytes)'


def test_counts_have_the_right_number():
    assert [counted(n, "record") for n in (0, 1, 2)] == ["0 records", "1 record", "2 records"]
