"""Power is cut at every operation of compacting a ztick log; its state stays what it was."""

from __future__ import annotations

import pytest

from journeyman.folds.ztick import replay
from journeyman.formats.framing import scan
from journeyman.formats.ztick import CODEC, JobRemoved, JobSet, Record, RuleSet, Shell, Status
from journeyman.logs.appender import SyncPolicy
from journeyman.logs.segments import ZtickNames
from journeyman.logs.ztick.log import ZtickLog, compact_offline
from journeyman.testing import ManualClock
from tests.support.crash.cuts import EXTREMES, crashes
from tests.support.simulated_disk import SimulatedDisk

BOTH_DISKS = pytest.mark.usefixtures("kind_of_disk")

PATH = "/data/log"
FILES = {PATH, f"{PATH}.compressed", f"{PATH}.lock"}


def job(name: str, at_ns: int) -> JobSet:
    return JobSet(name, at_ns, Status.PLANNED)


def batch(number: int) -> list[Record]:
    """Sets, changes, removes and brings back keys that other batches touch as well."""
    return [
        job("always", number),
        job(f"new.{number}", number),
        JobRemoved(f"new.{number - 1}"),
        RuleSet("always", f"prefix.{number}", Shell("true")),
        job("flips", number) if number % 2 else JobRemoved("flips"),
    ]


class Server:
    """A program that appends and compacts by turns, and remembers what it was told."""

    def __init__(self, disk: SimulatedDisk, sync: SyncPolicy) -> None:
        self.disk = disk
        self.sync = sync
        self.sent: list[Record] = []
        self.acknowledged = 0

    def open(self) -> ZtickLog:
        return ZtickLog.open(self.disk, ManualClock(), PATH, sync=self.sync)

    def append(self, log: ZtickLog, records: list[Record]) -> None:
        self.sent += records
        log.append(records)
        self.acknowledged = len(self.sent)

    def run(self) -> None:
        log = self.open()
        for number in range(1, 4):
            self.append(log, batch(number))
            assert log.compact() is not None
        self.append(log, batch(4))
        log.close()

    def possible_states(self) -> list[object]:
        """After everything acknowledged, and maybe some of what was on its way."""
        return [replay(self.sent[:count]) for count in range(self.acknowledged, len(self.sent) + 1)]


def state_of(disk: SimulatedDisk) -> object:
    log = ZtickLog.open(disk, ManualClock(), PATH)
    state = replay(entry.record for entry in log.entries())
    log.close()
    return state


def test_file_that_is_set_aside_has_its_new_name_for_good_before_another_takes_the_old_one():
    """Else a crash could leave the new, empty file under the old name, and the records nowhere."""
    aside, seen = ZtickNames(PATH).to_compress, 0
    for crash in crashes(
        lambda: Server(SimulatedDisk(), SyncPolicy.ALWAYS), lambda s: s.disk, Server.run, seeds=0
    ):
        if crash.survival == "lose_all_unsynced" and {PATH, aside} <= crash.run.disk.files().keys():
            assert aside in crash.disk.files(), crash
            seen += 1
    assert seen > 0


@BOTH_DISKS
@pytest.mark.parametrize("sync", [SyncPolicy.ALWAYS, SyncPolicy.OS], ids=str)
def test_no_crash_while_appending_and_compacting_changes_the_state(sync):
    cuts = crashes(lambda: Server(SimulatedDisk(), sync), lambda s: s.disk, Server.run)
    for crash in cuts:
        state = state_of(crash.disk)
        if sync == SyncPolicy.ALWAYS:
            assert state in crash.run.possible_states(), crash
        elif crash.survival in EXTREMES:
            prefixes = range(len(crash.run.sent) + 1)
            assert any(state == replay(crash.run.sent[:n]) for n in prefixes), crash
        files = {path for path in crash.disk.files() if "/quarantine/" not in path}
        assert files <= FILES, crash
        assert state_of(crash.disk) == state, crash


OLDEST: list[Record] = [job("a", 1), job("b", 1), job("c", 1), job("kept", 1)]
MIDDLE: list[Record] = [JobRemoved("a"), job("b", 2), job("d", 2)]
NEWEST: list[Record] = [JobRemoved("b"), job("c", 3), JobRemoved("d"), job("e", 3)]
STATE = replay([*OLDEST, *MIDDLE, *NEWEST])
LAYOUTS: dict[str, tuple[list[Record] | None, ...]] = {
    "all three files": (OLDEST, MIDDLE, NEWEST),
    "no result yet": (None, OLDEST + MIDDLE, NEWEST),
    "at rest": (OLDEST + MIDDLE, None, NEWEST),
    "one file": (None, None, OLDEST + MIDDLE + NEWEST),
    "no active file": (OLDEST, MIDDLE + NEWEST, None),
    "an empty active file": (OLDEST + MIDDLE + NEWEST, None, []),
}


def planted(layout: str) -> SimulatedDisk:
    disk = SimulatedDisk()
    for suffix, records in zip((".compressed", ".to_compress", ""), LAYOUTS[layout], strict=True):
        if records is not None:
            disk.plant(PATH + suffix, b"".join(map(CODEC.encode, records)))
    return disk


@BOTH_DISKS
@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_crash_while_opening_changes_the_state(layout):
    for crash in crashes(lambda: planted(layout), lambda disk: disk, state_of):
        assert state_of(crash.disk) == STATE, crash


@BOTH_DISKS
@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_crash_while_compacting_offline_changes_the_state(layout):
    """Above all, no removed key comes back from an older file that was not yet removed."""
    cuts = crashes(
        lambda: planted(layout), lambda disk: disk, lambda disk: compact_offline(disk, PATH)
    )
    for crash in cuts:
        again = crash.disk.after_crash("keep_all_unsynced")
        assert state_of(crash.disk) == STATE, crash
        compact_offline(again, PATH)
        entries, ending = scan(CODEC, again.read_bytes(PATH))
        assert ending.clean
        assert replay(entry.record for entry in entries) == STATE, crash
        assert set(again.files()) == {PATH, f"{PATH}.lock"}, crash


@BOTH_DISKS
def test_no_second_crash_while_recovering_from_the_first_changes_the_state():
    first = crashes(
        lambda: planted("all three files"),
        lambda disk: disk,
        lambda disk: compact_offline(disk, PATH),
        seeds=0,
    )
    for crash in first:

        def left(after: SimulatedDisk = crash.disk) -> SimulatedDisk:
            return after.after_crash("keep_all_unsynced")

        for second in crashes(left, lambda disk: disk, state_of, seeds=2):
            assert state_of(second.disk) == STATE, (crash, second)
