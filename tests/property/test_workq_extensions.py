"""Leases, touches, retries, uniqueness, limits and children against a plain model, with crashes."""

from __future__ import annotations

from hypothesis import settings

from tests.support.effort import cases
from tests.support.workq_extension_machine import ExtensionMachine

TestExtensions = ExtensionMachine.TestCase
TestExtensions.settings = settings(max_examples=cases(60), stateful_step_count=50, deadline=None)
