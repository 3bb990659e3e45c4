"""Progress bars: on a terminal, on long work, and nowhere else."""

from __future__ import annotations

import io
import sys

import pytest

from journeyman.cli.output import progress, working


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def use_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Inside the test, not in a fixture: pytest puts its own stderr in place in between."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    return terminal


def test_long_work_on_a_terminal_has_a_bar(monkeypatch):
    terminal = use_terminal(monkeypatch)

    with progress("reading the log", 100, worth=10) as advance:
        advance(50)
        advance(100)

    assert "reading the log" in terminal.getvalue()


def test_short_work_has_none(monkeypatch):
    terminal = use_terminal(monkeypatch)

    with progress("reading the log", 9, worth=10) as advance:
        advance(9)

    assert terminal.getvalue() == ""


def test_quiet_has_none(monkeypatch):
    terminal = use_terminal(monkeypatch)

    with progress("reading the log", 100, worth=10, quiet=True) as advance:
        advance(100)
    with working("cleaning", quiet=True):
        pass

    assert terminal.getvalue() == ""


def test_without_a_terminal_there_is_none(monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)

    with progress("reading the log", 100, worth=10) as advance:
        advance(100)
    with working("cleaning"):
        pass

    assert stream.getvalue() == ""


def test_work_without_a_known_end_shows_that_it_goes_on(monkeypatch):
    terminal = use_terminal(monkeypatch)

    with working("cleaning the log"):
        pass

    assert "cleaning the log" in terminal.getvalue()
