"""The work queue against a plain model: any commands, in any batches, with undo, restart and crash.

Both are given the same commands at the same times. They must answer the same clients with the same
words and show the same jobs; and the records that the engine wrote must fold to what it holds.
"""

from __future__ import annotations

from hypothesis import settings

from tests.support.effort import cases
from tests.support.workq_machine import (
    WorkQueueMachine,
)

TestWorkQueue = WorkQueueMachine.TestCase
TestWorkQueue.settings = settings(max_examples=cases(60), stateful_step_count=60, deadline=None)
