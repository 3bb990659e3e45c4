"""Doubles for tests of Journeyman and of programs that use it.

    ManualClock     time that moves when told
    SimulatedDisk   a disk in memory whose power can be cut, that fills up, and whose syncs fail
    PowerCut        what a SimulatedDisk raises when its power is cut

The contract that every Disk must keep is journeyman.testing.disk_contract (it needs pytest).
"""

from journeyman.testing.manual_clock import ManualClock
from journeyman.testing.simulated_disk import PowerCut, SimulatedDisk
from journeyman.testing.simulated_files import Survival

__all__ = ["ManualClock", "PowerCut", "SimulatedDisk", "Survival"]
