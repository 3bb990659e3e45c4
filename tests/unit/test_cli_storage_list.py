"""``journeyman storage list``: numbers, pages by cursor and by number, unreadable records."""

from __future__ import annotations

import json
from pathlib import Path
from uuid import UUID

import pytest

from journeyman.formats.keyspace.text import format_time
from journeyman.formats.keyspace.values import JobRecord
from journeyman.storage import Storage, Upsert
from tests.support.cli_commands import NOW_NS, assert_one_line_error, rows, run


def record(number: int, status: str = "waiting", queue: str = "mail") -> JobRecord:
    uuid = UUID(int=number)
    return JobRecord(uuid, f"{queue}:{uuid}", queue, status, NOW_NS + number, NOW_NS)


@pytest.fixture
def place(tmp_path: Path) -> list[str]:
    with Storage.open("sqlite", str(tmp_path / "store")) as storage:
        records = [record(number) for number in range(7)]
        records += [record(10, "failed"), record(11, "waiting", "other")]
        storage.apply([Upsert(each) for each in records])
    return ["storage", "--engine", "sqlite", "--path", str(tmp_path / "store"), "list"]


def test_numbers_of_all_queues_and_of_one(place: list[str]):
    assert run(*place).stdout.split("\n")[:-1] == [
        "           1  mail failed",
        "           7  mail waiting",
        "           1  other waiting",
    ]
    assert rows(run(*place, "--queue", "other", "--json")) == [
        {"queue": "other", "status": "waiting", "count": 1}
    ]


def pages(place: list[str], *options: str) -> list[list[str]]:
    """The ids of each page, by cursor to the end."""
    found: list[list[str]] = []
    after: list[str] = []
    while True:
        lines = rows(run(*place, *options, *after, "--json"))
        is_last = "next" not in lines[-1]
        found.append([line["uuid"] for line in (lines if is_last else lines[:-1])])
        if is_last:
            return found
        after = ["--after", lines[-1]["next"]]


def test_pages_by_cursor(place: list[str]):
    found = pages(place, "--status", "waiting", "--queue", "mail", "--limit", "3")
    ids = [str(UUID(int=number)) for number in range(7)]
    assert found == [ids[:3], ids[3:6], ids[6:]]
    everywhere = pages(place, "--status", "waiting", "--limit", "5")
    assert [len(page) for page in everywhere] == [5, 3]


def test_pages_by_number_and_as_text(place: list[str]):
    options = ("--status", "waiting", "--queue", "mail", "--limit", "3")
    third = run(*place, *options, "--page", "3").stdout
    assert third == f"{UUID(int=6)} mail waiting {format_time(NOW_NS + 6)} 0\n"
    assert run(*place, *options).stdout.split("\n")[-2].startswith("more: --after ")


def test_records_that_cannot_be_read_are_told_and_stepped_over(place: list[str], tmp_path: Path):
    with Storage.open("sqlite", str(tmp_path / "store")) as storage:
        storage.backend.put(f"v1:j:{UUID(int=3)}".encode(), b"{")
    result = run(*place, "--status", "waiting", "--queue", "mail", "--json")
    assert [json.loads(line)["uuid"] for line in result.stdout.splitlines()] == [
        str(UUID(int=number)) for number in (0, 1, 2, 4, 5, 6)
    ]
    assert result.stderr.startswith(f"warning: v1:j:{UUID(int=3)}: ")


@pytest.mark.parametrize(
    "options",
    [
        ["--after", "00"],
        ["--page", "2"],
        ["--status", "no status"],
        ["--status", "waiting", "--queue", ""],
        ["--status", "waiting", "--page", "2"],
        ["--status", "waiting", "--after", "zz"],
        ["--status", "waiting", "--queue", "mail", "--page", "1", "--after", "00"],
        ["--status", "waiting", "--limit", "0"],
    ],
)
def test_wrong_questions(place: list[str], options: list[str]):
    assert_one_line_error(run(*place, *options), 2)
