"""Leases, touches, retries, uniqueness, limits and children against a plain model, with crashes.

The jobs are in a log and a ledger; a crash loads both.
"""

from __future__ import annotations

from hypothesis import settings

from tests.support.effort import cases
from tests.support.workq_extension_machine import ExtensionsInLog

TestExtensionsInLog = ExtensionsInLog.TestCase
TestExtensionsInLog.settings = settings(
    max_examples=cases(60), stateful_step_count=50, deadline=None
)
