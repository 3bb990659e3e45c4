"""A clock and a disk for tests of Journeyman and of programs that use it.

    ManualClock     time that moves only when the test moves it
    SimulatedDisk   a disk in memory that can lose power, fill up, and fail to sync
    PowerCut        what a SimulatedDisk raises when its power is cut

``Survival`` says what a power cut leaves of unsynced data. The contract of every Disk is
journeyman.testing.disk_contract, which needs pytest.
"""

from journeyman.testing.simulated_disk import ManualClock, PowerCut, SimulatedDisk
from journeyman.testing.simulated_files import Survival

__all__ = ["ManualClock", "PowerCut", "SimulatedDisk", "Survival"]
