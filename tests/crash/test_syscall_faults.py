"""System calls of a real server fail: no answer is lost, and a refused command changed nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.crash.acknowledged import COMMANDS
from tests.support.crash.syscall_faults import Fault, run
from tests.support.crash.traces import skip_if_refused


@pytest.fixture(autouse=True)
def _tracing(tmp_path: Path) -> None:
    skip_if_refused(tmp_path)


def test_a_failed_sync_ends_the_server(tmp_path: Path):
    outcome = run(tmp_path, Fault("fdatasync", "EIO", "14"))
    assert outcome.injected == 1
    assert outcome.has_ended
    assert 0 < outcome.answered < len(COMMANDS)


def test_a_full_disk_refuses_commands(tmp_path: Path):
    outcome = run(tmp_path, Fault("write", "ENOSPC", "14+"))
    assert outcome.injected > 0
    assert outcome.was_refused


def test_interrupted_calls_are_made_again(tmp_path: Path):
    outcome = run(tmp_path, Fault("write", "EINTR", "2+2"))
    assert outcome.injected > 10
    assert outcome.answered == len(COMMANDS)
