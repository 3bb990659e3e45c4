"""The same story told to the engine gives the bytes that the original wrote, but for its clock.

Every record of a golden log is made here by the command that made it there, at the time that was
logged. Only `add` and `schedule` have a second time, of their creation; it is taken from the log.
No extension is in use, so nothing of it may be in a byte.
"""

from __future__ import annotations

from dataclasses import replace

from journeyman.engines.workq.engine import Decidable, WorkqEngine
from journeyman.engines.workq.messages import WorkqDue
from journeyman.formats.framing import scan
from journeyman.formats.workq import CODEC, Command, JobAdded, JobFinished, Record
from journeyman.protocols.workq.commands import Add, Complete, Delete, Fail, Lease, ScheduleJob
from tests.support.golden_logs import DATA

FAILED_WITH_FAILS_LEFT = bytes.fromhex("0000000a000040008000000000000005")  # a retry here: docs


def golden_records() -> list[Record]:
    data = (DATA / "workq/a-all-types/cmdlog/000000001.log").read_bytes()
    return [entry.record for entry in scan(CODEC, data)[0]]


def command_of(record: Record, names: dict[bytes, str]) -> Decidable:
    """What a client, or the time, said to make this record."""
    job_id = record.job_id
    if isinstance(record, JobAdded):
        names[job_id] = record.name
        numbers = (record.priority, record.max_attempts, record.max_fails)
        first = (job_id, record.name, record.ttr_ms, record.ttl_ms)
        if record.time is None:
            return Add(*first, record.payload, *numbers)
        return ScheduleJob(*first, record.time.unix_ns, record.payload, *numbers)
    if isinstance(record, JobFinished):
        kind = Complete if record.command is Command.COMPLETE else Fail
        return kind(job_id, record.result)
    if record.command is Command.START_ATTEMPT:
        return Lease((names[job_id],), 0)
    return Delete(job_id) if record.command is Command.DELETE else WorkqDue()


def test_the_engine_writes_what_the_original_wrote():
    queue, told = WorkqEngine(seed=1), 0
    names: dict[bytes, str] = {}
    for golden in golden_records():
        if not isinstance(golden, JobAdded) and golden.job_id not in names:
            continue  # of a run, whose add is not recorded
        command = command_of(golden, names)
        if golden.job_id == FAILED_WITH_FAILS_LEFT and isinstance(command, Fail):
            continue
        if isinstance(command, Lease):  # a scheduled job may have become ready
            assert not queue.decide(WorkqDue(), golden.logged.unix_ns).records
        written = queue.decide(command, golden.logged.unix_ns).records
        assert len(written) == 1, (command, written)
        ours = replace(written[0], logged=golden.logged)
        if isinstance(ours, JobAdded) and isinstance(golden, JobAdded):
            ours = replace(ours, created=golden.created)
        assert CODEC.encode(ours) == CODEC.encode(golden), command
        told += 1
    assert told > 20
    assert not queue.take_ledger()
