"""Leases, touches, retries, uniqueness, limits, children, steps, parks and events against a plain
model, with crashes.

The jobs are in a log and a ledger; a crash loads both.
"""

from __future__ import annotations

import pytest
from hypothesis import settings

from tests.support.effort import cases
from tests.support.workq_extension_machine import ExtensionsInLog, walk

TestExtensionsInLog = ExtensionsInLog.TestCase
TestExtensionsInLog.settings = settings(
    max_examples=cases(100), stateful_step_count=50, deadline=None
)

STORIES = 25  # at a time


@pytest.mark.parametrize("first", range(0, cases(6) * STORIES, STORIES))
def test_jobs_that_wait_follow_the_model_through_longer_stories(first: int):
    for seed in range(first, first + STORIES):
        walk(seed, 200)
