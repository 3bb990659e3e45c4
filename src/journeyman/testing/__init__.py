"""For tests of applications.

    InMemory        an app without a server: run_all(), advance(hours=2), assert_sent()
    ManualClock     time that moves only when the test moves it

The pytest plugin of the package, journeyman.pytest_plugin, has the fixture
``journeyman_in_memory``.
"""

from journeyman.testing.in_memory import InMemory
from journeyman.testing.manual_clock import ManualClock

__all__ = ["InMemory", "ManualClock"]
