"""The limit on open files: how many connections it leaves room for, and when that is said."""

from __future__ import annotations

import resource
from collections.abc import Callable

import pytest

from journeyman.config import Configuration, LogLevel, load
from journeyman.servers.core.server_log import ServerLog
from journeyman.servers.preflight import fit_to_open_files, look_at_connections
from journeyman.testing import ManualClock

Fit = Callable[..., Configuration]


@pytest.fixture
def lines() -> list[str]:
    return []


@pytest.fixture
def messages(lines: list[str]) -> ServerLog:
    return ServerLog(ManualClock(), lines.append, level=LogLevel.DEBUG)


@pytest.fixture
def fit(monkeypatch: pytest.MonkeyPatch, messages: ServerLog) -> Fit:
    def fit_to(hard: int, **options: str) -> Configuration:
        monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, hard))
        monkeypatch.setattr(resource, "setrlimit", lambda *_: None)
        given = {name.replace("__", "."): value for name, value in options.items()}
        return fit_to_open_files(load(environ={}, options=given), messages)

    return fit_to


def test_plenty_of_files_change_nothing(fit: Fit, lines: list[str]):
    assert fit(1_000_000).settings.limits.connections == 16_000
    assert lines == []


def test_on_a_default_machine_it_is_no_news(fit: Fit, lines: list[str]):
    settings = fit(20_000).settings
    assert 1_000 < settings.limits.connections < 16_000
    files_of_queues = 2 * settings.kestrel.max_queues
    assert 3 * settings.limits.connections + files_of_queues < 20_000
    [line] = lines
    assert " DEBUG " in line
    assert "only 20000 files may be open" in line


def test_number_that_was_set_and_does_not_fit_is_a_warning(fit: Fit, lines: list[str]):
    assert fit(2_000, limits__connections="5000").settings.limits.connections < 5000
    [line] = lines
    assert " WARN " in line
    assert fit(2_000, limits__connections="100", kestrel__enabled="false") is not None
    assert len(lines) == 1


def test_very_few_files_leave_some_connections(fit: Fit):
    assert fit(256).settings.limits.connections >= 16


def test_port_near_its_limit_is_warned_of_once_until_it_was_well_below(
    messages: ServerLog, lines: list[str]
):
    near: set[str] = set()
    for count in (10, 89, 90, 99, 85, 95, 79, 91):
        look_at_connections({"the schedule": count, "the work queue": 1}, 100, near, messages)
    assert [line.partition("WARN ")[2].partition(";")[0] for line in lines] == [
        "the schedule has 90 of 100 connections open",
        "the schedule has 91 of 100 connections open",
    ]
