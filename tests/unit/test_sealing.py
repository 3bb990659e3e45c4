"""Seals as logs write them: when, where, and what a start makes of what follows the last one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from journeyman.cli import journeyman
from journeyman.clock import SystemClock
from journeyman.disk import RealDisk
from journeyman.engines.ztick.engine import ZtickEngine
from journeyman.engines.ztick.messages import Accepted, JobNotFound, Reserved
from journeyman.folds.kestrel import Reader
from journeyman.formats import kestrel, ztick
from journeyman.formats.kestrel import READER, WRITER, ItemPut, ReadDone, ReadHead
from journeyman.formats.seals import BLOCK_BYTES, CUT_BYTES, SealKind, make_seal, seal_at
from journeyman.formats.ztick import CODEC, JobRemoved, JobSet, Status
from journeyman.formats.ztick.codec import SEALS
from journeyman.logs.appender import SyncPolicy
from journeyman.logs.damage import Damage
from journeyman.logs.kestrel.log import KestrelLog
from journeyman.logs.sealing import is_in_flight, read_file
from journeyman.logs.ztick.log import ZtickLog
from journeyman.protocols.ztick.commands import Get, Remove, Set
from journeyman.servers.core.server_log import ServerLog, tell_recovery
from journeyman.spark.source.options import SourceOptions
from journeyman.spark.streams.admission import Allowance, advanced
from journeyman.spark.streams.offsets import FilePlace, LogPlace, StreamOffset, fingerprint
from journeyman.testing import ManualClock
from tests.support.simulated_disk import SimulatedDisk
from tests.support.unsealed import without_seals

PATH = "/data/log"
GOLDEN = Path(__file__).parent.parent / "golden" / "data" / "sealed"


def job(name: str, at_ns: int = 1) -> JobSet:
    return JobSet(name, at_ns, Status.PLANNED)


def write(log: ZtickLog, *records: Any) -> None:
    log.append(records)


def kinds(data: bytes, format_: Any = SEALS) -> str:
    """The seals of a file, in order."""
    seals = (seal_at(format_, data, place) for place in format_.places(data, 0))
    return "".join("?" if seal is None else seal.kind.value for seal in seals)


def loaded(disk: SimulatedDisk) -> list[Any]:
    with ZtickLog.open(disk, ManualClock(), PATH) as log:
        return [entry.record for entry in log.entries()]


# -- what is written -----------------------------------------------------------------------------


@pytest.mark.parametrize("sync", [SyncPolicy.ALWAYS, SyncPolicy.OS])
def test_every_batch_begins_with_a_seal_and_a_clean_stop_ends_with_one(sync):
    disk = SimulatedDisk()
    with ZtickLog.open(disk, ManualClock(), PATH, sync=sync) as log:
        write(log, job("a"))
        assert kinds(disk.read_bytes(PATH)) == "ob"
        write(log, job("b"), job("c"))
        assert kinds(disk.read_bytes(PATH)) == "obb"
    assert kinds(disk.read_bytes(PATH)) == "obbc"
    with ZtickLog.open(disk, ManualClock(), PATH, sync=sync):
        pass
    assert kinds(disk.read_bytes(PATH)) == "obbc", "nothing was appended, so nothing was sealed"
    with ZtickLog.open(disk, ManualClock(), PATH, sync=sync) as log:
        write(log, JobRemoved("a"))
    assert kinds(disk.read_bytes(PATH)) == "obbcobc"


def test_the_opening_seal_is_durable_before_a_record_follows():
    disk = SimulatedDisk()
    log = ZtickLog.open(disk, ManualClock(), PATH, sync=SyncPolicy.OS)
    write(log, job("a"))
    assert kinds(disk.after_crash("lose_all_unsynced").read_bytes(PATH)) == "o"


def test_a_large_batch_is_sealed_in_blocks():
    disk = SimulatedDisk()
    with ZtickLog.open(disk, ManualClock(), PATH) as log:
        write(log, *(job(f"job.{n}") for n in range(10_000)))
    data = disk.read_bytes(PATH)
    # A block also ends where a write may be cut between two records: one place in 512.
    fewest = len(data) // BLOCK_BYTES + 1
    assert re.fullmatch(f"ob{{{fewest},{fewest + 10}}}c", kinds(data))


def test_without_seals_the_bytes_are_those_of_the_original():
    disk = SimulatedDisk()
    with ZtickLog.open(disk, ManualClock(), PATH, seal=False) as log:
        write(log, job("a"), job("b"))
        log.compact()
        write(log, job("c"))
    assert disk.read_bytes(PATH) == CODEC.encode(job("c"))
    assert disk.read_bytes(f"{PATH}.compressed") == CODEC.encode(job("a")) + CODEC.encode(job("b"))
    with KestrelLog.open(disk, ManualClock(), "/q", "jobs", seal=False) as journal:
        item = journal.put(b"x")
        journal.checkpoint("", Reader(1))
        (segment,) = journal.segments
    assert disk.read_bytes(segment.path) == WRITER.header + WRITER.encode(item)
    plain = READER.header + READER.encode(ReadHead(1)) + READER.encode(ReadDone(()))
    assert disk.read_bytes("/q/jobs.read.") == plain


def test_an_open_stretch_is_closed_before_anything_is_written_without_seals():
    disk = SimulatedDisk()
    log = ZtickLog.open(disk, ManualClock(), PATH)
    write(log, job("a"))
    after = disk.after_crash("lose_all_unsynced")
    unsealed = ZtickLog.open(after, ManualClock(), PATH, seal=False)
    write(unsealed, job("b"))
    again = after.after_crash("lose_all_unsynced")
    assert kinds(again.read_bytes(PATH)) == "obc"
    assert loaded(again) == [job("a"), job("b")]


def test_compaction_writes_one_seal_for_each_block_and_closes():
    disk = SimulatedDisk()
    with ZtickLog.open(disk, ManualClock(), PATH) as log:
        for n in range(30):
            write(log, *(job(f"job.{n}.{i}") for i in range(200)))
        log.compact()
    data = disk.read_bytes(f"{PATH}.compressed")
    assert kinds(data) == "o" + "b" * -(-len(data) // BLOCK_BYTES) + "c"
    assert len(loaded(disk)) == 6000


def test_a_segment_is_closed_when_it_is_left_and_is_never_too_large():
    disk = SimulatedDisk()
    with KestrelLog.open(disk, ManualClock(), "/q", "jobs", segment_bytes=1024) as journal:
        for _ in range(20):
            journal.put(bytes(100))
        paths = [segment.path for segment in journal.segments]
    assert len(paths) > 2
    for path in paths:
        assert disk.size(path) <= 1024
        assert kinds(disk.read_bytes(path), kestrel.WRITER.seals)[-1] == "c"


# -- what a start makes of it --------------------------------------------------------------------


def test_what_another_program_wrote_after_a_clean_stop_is_read():
    disk = SimulatedDisk()
    with ZtickLog.open(disk, ManualClock(), PATH) as log:
        write(log, job("a"))
    disk.plant(PATH, disk.read_bytes(PATH) + CODEC.encode(job("theirs")))
    assert loaded(disk) == [job("a"), job("theirs")]
    with ZtickLog.open(disk, ManualClock(), PATH) as log:
        assert log.recovery.clean
        write(log, job("b"))
    assert loaded(disk) == [job("a"), job("theirs"), job("b")]


def crashed(*batches: list[Any]) -> SimulatedDisk:
    """A log whose server was killed after these batches."""
    disk = SimulatedDisk()
    log = ZtickLog.open(disk, ManualClock(), PATH)
    for batch in batches:
        write(log, *batch)
    return disk.after_crash("lose_all_unsynced")


def announced(data: bytes, *records: Any) -> bytes:
    """A batch as it is appended to ``data``."""
    block = b"".join(map(CODEC.encode, records))
    return make_seal(SEALS, SealKind.BLOCK, 7, len(data), block) + block


def test_a_batch_that_is_not_whole_is_set_aside():
    after = crashed([job("a")])
    whole = after.read_bytes(PATH)
    batch = announced(whole, job("b"), job("c"))
    for cut in (3, SEALS.size, SEALS.size + 30, len(batch) - 1):
        after.plant(PATH, whole + batch[:cut])
        with ZtickLog.open(after, ManualClock(), PATH) as again:
            (damage,) = again.recovery.damages
            assert is_in_flight(damage) or cut == 3
            assert (damage.offset, damage.length) == (len(whole), cut)
            assert again.recovery.lost_at_least == 0
            assert [entry.record for entry in again.entries()] == [job("a")]
        aside = again.recovery.files[0].quarantined
        assert [after.read_bytes(path) for path in aside] == [batch[:cut]] * (cut > 3)


@pytest.mark.parametrize("lost", range(30))
def test_a_write_of_several_blocks_that_power_has_cut_is_set_aside(lost: int):
    """Of its end only zeros are there: they may be the end of a record, too."""
    after = crashed([job("a")])
    whole = after.read_bytes(PATH)
    first = announced(whole, job("b", 2**62 - 1), job("c", 2**62 - 1), job("d"))
    second = announced(whole + first, job("e"))
    written = first[: SEALS.size + 2 * len(CODEC.encode(job("b"))) - lost]
    after.plant(PATH, (whole + written).ljust(len(whole + first + second), b"\0"))
    with ZtickLog.open(after, ManualClock(), PATH) as log:
        assert [entry.record for entry in log.entries()] == [job("a")]
        assert not log.recovery.clean


def test_what_another_program_wrote_after_a_crash_is_kept_and_sealed():
    after = crashed([job("a")])
    whole = after.read_bytes(PATH)
    after.plant(PATH, whole + CODEC.encode(job("theirs")) + CODEC.encode(JobRemoved("a")))
    with ZtickLog.open(after, ManualClock(), PATH) as log:
        assert log.recovery.clean
        assert log.recovery.files[0].sealed_again == 2
        assert [e.record for e in log.entries()] == [job("a"), job("theirs"), JobRemoved("a")]
        assert kinds(after.read_bytes(PATH)) == "obobc"
        write(log, job("b"))
    assert loaded(after)[-2:] == [JobRemoved("a"), job("b")]
    assert kinds(after.read_bytes(PATH)) == "obobcobc"


LONG = job("long." + 600 * "x", 1_763_431_200_123_456_789)


@pytest.mark.parametrize("count", [1, 3, 40], ids=["shorter", "longer", "much longer"])
@pytest.mark.parametrize("cut", [0, 1, 30, 60, 200, 640])
def test_what_another_program_wrote_after_a_torn_batch_is_kept(count: int, cut: int):
    """The original reads whole entries, ignores the torn one, and appends after it."""
    after = crashed([job("a")])
    whole = after.read_bytes(PATH)
    batch = announced(whole, job("first"), LONG)
    entries = [job(f"theirs.{n}") for n in range(count)]
    glued = whole + batch[: SEALS.size + cut] + b"".join(map(CODEC.encode, entries))
    after.plant(PATH, glued)
    first = [job("first")] if cut >= len(CODEC.encode(job("first"))) else []
    expected = [job("a"), *first, *entries]
    found = [item for item in read_file(CODEC, glued) if not isinstance(item, Damage)]
    assert [item.record for item in found] == expected
    with ZtickLog.open(after, ManualClock(), PATH) as log:
        assert [entry.record for entry in log.entries()] == expected
        assert not log.recovery.clean
    assert loaded(after) == expected
    with ZtickLog.open(after, ManualClock(), PATH) as log:
        assert log.recovery.clean


@pytest.mark.parametrize("theirs", [1, 2, 3, 40])
@pytest.mark.parametrize("cut", range(1, SEALS.size))
def test_what_another_program_wrote_after_a_torn_seal_is_kept(theirs: int, cut: int):
    """Also after one of which only zeros are there, the beginning of its size."""
    after = crashed([job("a")])
    whole = after.read_bytes(PATH)
    entries = [job(f"theirs.{n}") for n in range(theirs)]
    torn = announced(whole, job("ours"))[:cut]
    after.plant(PATH, whole + torn + b"".join(map(CODEC.encode, entries)))
    assert loaded(after) == [job("a"), *entries]


def test_a_tail_that_begins_with_zeros_or_a_torn_record_is_set_aside_as_an_error():
    after = crashed([job("a")])
    whole = after.read_bytes(PATH)
    for tail in (
        bytes(600) + CODEC.encode(job("b")),
        CODEC.encode(job("b"))[:-3],
        announced(whole, job("b"))[:20] + bytes(500) + CODEC.encode(job("c")),
    ):
        after.plant(PATH, whole + tail)
        with ZtickLog.open(after, ManualClock(), PATH) as log:
            (damage,) = log.recovery.damages
            assert (damage.kind, damage.offset) == ("unannounced", len(whole))
            assert [entry.record for entry in log.entries()] == [job("a")]
            lines: list[str] = []
            tell_recovery(ServerLog(ManualClock(), lines.append), log.recovery, path=PATH)
        assert any("unannounced" in line and "ERROR" in line for line in lines), lines
        assert after.read_bytes(log.recovery.files[0].quarantined[0]) == tail


def test_no_record_but_the_first_of_a_block_begins_where_a_write_may_be_cut():
    disk = SimulatedDisk()
    with ZtickLog.open(disk, ManualClock(), PATH) as log:
        for size in range(60, 130):
            blocks = log.appender.in_blocks([CODEC.encode(job("x" * size)) for _ in range(40)])
            log.appender.append([b"".join(block) for block in blocks])
            write(log, *(job("y" * size) for _ in range(40)))
    data = disk.read_bytes(PATH)
    seals = {place + SEALS.size for place in SEALS.places(data, 0)}
    begins = [item.offset for item in read_file(CODEC, data) if not isinstance(item, Damage)]
    assert len(begins) == 70 * 80
    assert not [at for at in begins if at % CUT_BYTES == 0 and at not in seals]
    assert [at for at in begins if (at - SEALS.size) % CUT_BYTES == 0], "there were such places"


def test_a_bad_block_in_the_middle_is_damage_with_its_range():
    disk = SimulatedDisk()
    with ZtickLog.open(disk, ManualClock(), PATH) as log:
        for name in "abc":
            write(log, job(name, 2**60))
    data = bytearray(disk.read_bytes(PATH))
    at = data.index(CODEC.encode(job("b", 2**60)))
    data[at + 10] ^= 1  # its time
    disk.plant(PATH, bytes(data))
    with ZtickLog.open(disk, ManualClock(), PATH) as log:
        (damage,) = log.recovery.damages
        length = len(CODEC.encode(job("b"))) + SEALS.size
        begin = at - SEALS.size
        assert (damage.kind, damage.offset, damage.length) == ("corrupt", begin, length)
        assert [e.record for e in log.entries()] == [job("a", 2**60), job("c", 2**60)]
    with ZtickLog.open(disk, ManualClock(), PATH) as log:
        assert log.recovery.clean


def test_a_batch_in_another_place_does_not_count():
    disk = SimulatedDisk()
    with ZtickLog.open(disk, ManualClock(), PATH) as log:
        for name in "abc":
            write(log, job(name, 2**60))
    data = disk.read_bytes(PATH)
    _, a, b, c, _ = SEALS.places(data, 0)
    disk.plant(PATH, data[:a] + data[b:c] + data[a:b] + data[c:])
    with ZtickLog.open(disk, ManualClock(), PATH) as log:
        assert not log.recovery.clean
        assert [e.record for e in log.entries()] == [job("c", 2**60)]


def test_a_flipped_bit_in_a_segment_that_has_an_index_is_met_when_it_is_read():
    disk = SimulatedDisk()
    with KestrelLog.open(disk, ManualClock(), "/q", "jobs", segment_bytes=16384) as journal:
        for n in range(1, 40):
            journal.put(b"%08d" % n * 100)
        journal.save_indexes()
        first = journal.segments[0]
    data = bytearray(disk.read_bytes(first.path))
    at = 7000  # neither in the first nor in the last 4 KiB that prove the index
    data[at] ^= 4
    disk.plant(first.path, bytes(data))
    with KestrelLog.open(disk, ManualClock(), "/q", "jobs", segment_bytes=16384) as journal:
        assert journal.recovery.clean
        found = journal.read_after(0, max_items=100, max_bytes=10**9)
        ((path, begin, _),) = journal.damages
    assert path == first.path
    assert begin <= at
    ids = [item.item_id for item in found]
    assert len(ids) == 38
    assert all(item.data == b"%08d" % item.item_id * 100 for item in found)


def test_a_reader_whose_head_is_beyond_the_newest_item_starts_at_the_oldest():
    disk = SimulatedDisk()
    with KestrelLog.open(disk, ManualClock(), "/q", "jobs") as journal:
        for _ in range(3):
            journal.put(b"x")
    ahead = READER.header + READER.encode(ReadHead(700)) + READER.encode(ReadDone(()))
    disk.plant("/q/jobs.read.", ahead)
    for _ in range(2):  # it stays so, whatever the file says by then
        with KestrelLog.open(disk, ManualClock(), "/q", "jobs") as journal:
            assert journal.readers == {"": Reader(0)} or journal.readers[""].head == 0
            assert [a.kind for a in journal.anomalies] == ["checkpoint-ahead"]
            assert journal.next_id == 701
    (aside,) = disk.list_dir("/q/quarantine")
    assert disk.read_bytes(f"/q/quarantine/{aside}") == ahead


# -- taking back ---------------------------------------------------------------------------------


def run(*args: object) -> str:
    result = CliRunner().invoke(journeyman, [str(arg) for arg in args])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_records_that_were_set_aside_can_be_taken_back(tmp_path: Path):
    path = tmp_path / "log"
    with ZtickLog.open(RealDisk(), SystemClock(), str(path)) as log:
        write(log, job("a"))
    # As a crash leaves it: without the closing seal, and with a batch that is not whole.
    whole = path.read_bytes()[: -SEALS.size]
    path.write_bytes(whole + announced(whole, job("b"), job("c"))[:-5])
    assert "b" not in run("dump", path)
    verified = run("verify", path)
    assert "of a batch that is not whole" in verified
    assert verified.endswith("clean\n")
    run("repair", path)
    (aside,) = (tmp_path / "quarantine").iterdir()
    assert "1 record taken back" in run("repair", path, "--take-back", aside)
    assert not aside.exists()
    assert run("dump", path).count("\n") == 2
    with ZtickLog.open(RealDisk(), SystemClock(), str(path)) as log:
        assert [entry.record for entry in log.entries()] == [job("a"), job("b")]


def test_items_that_were_set_aside_can_be_taken_back(tmp_path: Path):
    with KestrelLog.open(RealDisk(), SystemClock(), str(tmp_path), "q") as journal:
        journal.put(b"one")
        path = Path(journal.segments[0].path)
    item = ItemPut(2, 77, None, 1, b"two")
    assert WRITER.seals is not None
    whole = path.read_bytes()[: -WRITER.seals.size]
    block = WRITER.encode(item) + WRITER.encode(ItemPut(3, 78, None, 0, b"three"))
    seal = make_seal(WRITER.seals, SealKind.BLOCK, 7, len(whole), block)
    path.write_bytes(whole + seal + block[:-1])
    run("repair", tmp_path)
    (aside,) = (tmp_path / "quarantine").iterdir()
    run("repair", tmp_path, "--queue", "q", "--take-back", aside)
    with KestrelLog.open(RealDisk(), SystemClock(), str(tmp_path), "q") as journal:
        assert list(journal.items(after=1)) == [item]


# -- clients and readers -------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["journeyman.seal.x", "j" + 48 * "\0", "journey" + 42 * "\0"])
def test_identifiers_that_the_log_uses_itself_are_refused(name):
    schedule = ZtickEngine()
    assert schedule.decide(Set(b"1", name, 1), 0).reply == Reserved(name)
    assert schedule.decide(Remove(b"1", name), 0).reply == Reserved(name)
    assert schedule.decide(Get(b"1", name), 0).reply == JobNotFound(name)


@pytest.mark.parametrize("name", ["journeyman.sealed", "j", "journey\0", "journeyman.seal"])
def test_others_are_not(name):
    assert ZtickEngine().decide(Set(b"1", name, 1), 0).reply == Accepted()


def reach(path: Path, data: bytes, begin: int = 0) -> int:
    """Where a batch of a stream ends that begins at a place in an open file with these bytes."""
    path.write_bytes(data)
    with path.open("rb") as opened:
        mark = fingerprint(opened, begin) if begin else ""
    file = FilePlace(0, str(path), begin, inode=path.stat().st_ino, mark=mark)
    offset = StreamOffset("a stream", logs={str(path): LogPlace((file,))})
    options = SourceOptions("ztick", (str(path),))
    (place,) = advanced(options, offset, Allowance()).logs.values()
    return place.files[0].end


def test_a_stream_reads_up_to_the_last_seal_of_a_log_that_is_written(tmp_path):
    disk, path = SimulatedDisk(), tmp_path / "logfile"
    log = ZtickLog.open(disk, ManualClock(), PATH)
    write(log, job("a"), job("b"))
    sealed = disk.read_bytes(PATH)
    batch = announced(sealed, job("c"))
    for cut in range(len(batch)):
        data = sealed + batch[:cut]
        assert reach(path, data) == len(sealed)
        assert reach(path, data, len(sealed)) == len(sealed)
    data = sealed + CODEC.encode(job("theirs"))
    assert reach(path, data) == len(data)
    write(log, job("c"))
    data = disk.read_bytes(PATH)
    assert reach(path, data, len(sealed)) == len(data)


# -- golden --------------------------------------------------------------------------------------


def golden_files() -> dict[str, bytes]:
    """A ztick log, a kestrel segment and a checkpoint, as they are written with these clocks."""
    disk = SimulatedDisk()
    with ZtickLog.open(disk, ManualClock(), PATH) as log:
        write(log, job("mail.1", 1_700_000_000_000_000_000))
        rule = ztick.RuleSet("r", "mail.", ztick.Shell("echo"))
        write(log, rule, job("mail.2", -5), JobRemoved("mail.1"))
    with KestrelLog.open(disk, ManualClock(), "/q", "jobs") as journal:
        journal.put(b"first", add_time_ms=5)
        journal.append([ItemPut(2, 6, 7, 0, b"second"), ItemPut(3, 8, None, 0, b"")])
        journal.checkpoint("", Reader(1, {3}))
        (segment,) = journal.segments
    return {
        "ztick.log": disk.read_bytes(PATH),
        "jobs.1": disk.read_bytes(segment.path),
        "jobs.read.": disk.read_bytes("/q/jobs.read."),
    }


@pytest.mark.parametrize("name", ["ztick.log", "jobs.1", "jobs.read."])
def test_sealed_files_are_written_as_ever_and_read_again(name):
    golden = (GOLDEN / name).read_bytes()
    assert golden_files()[name] == golden
    codec: Any = CODEC if name == "ztick.log" else READER if "read" in name else WRITER
    records = [found.record for found in read_file(codec, golden) if not isinstance(found, Damage)]
    bare = without_seals(codec, golden).removeprefix(codec.header)
    assert b"".join(map(codec.encode, records)) == bare
