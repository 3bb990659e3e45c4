"""For tests of applications, and of Journeyman itself.

    InMemory        an app without a server: run_all(), advance(hours=2), assert_sent()
    ManualClock     time that moves only when the test moves it
    SimulatedDisk   a disk in memory that can lose power, fill up, and fail to sync
    PowerCut        what a SimulatedDisk raises when its power is cut

``Survival`` says what a power cut leaves of unsynced data. The contract of every Disk is
journeyman.testing.disk_contract, which needs pytest. The pytest plugin of the
package, journeyman.pytest_plugin, has the fixture ``journeyman_in_memory``.
"""

from journeyman.testing.in_memory import InMemory
from journeyman.testing.simulated_disk import ManualClock, PowerCut, SimulatedDisk
from journeyman.testing.simulated_files import Survival

__all__ = ["InMemory", "ManualClock", "PowerCut", "SimulatedDisk", "Survival"]
