"""Logs that hold logs: records quoted in the data of others."""

from __future__ import annotations

from journeyman.formats import kestrel, workq, ztick
from tests.support.columnar_twins import JOURNAL, WORKQ, ZTICK, Twins
from tests.support.specimens import CREATED, kestrel_record, workq_record, ztick_record


def quoted_logs() -> list[tuple[Twins, bytes]]:
    """Logs whose payloads quote whole stretches of the same log, entry by entry."""
    inner = [ztick.CODEC.encode(ztick_record(number)) for number in range(6)]
    text = b"".join(inner).decode("latin-1")
    shell = ztick.RuleSet("rule", "job.", ztick.Shell("".join(c for c in text if ord(c) < 128)))
    jobs = b"".join(ztick.CODEC.encode(ztick_record(number)) for number in (0, 1, 2))
    ztick_log = jobs + ztick.CODEC.encode(shell) + jobs
    records = b"".join(workq.CODEC.encode(workq_record(number)) for number in range(6))
    finished = workq.JobFinished(CREATED, bytes(16), workq.Command.FAIL, 2 * records)
    workq_log = workq.HEADER + records + 2 * workq.CODEC.encode(finished) + records
    puts = b"".join(kestrel.WRITER.encode(kestrel_record(number)) for number in range(6))
    quoting = kestrel.WRITER.encode(kestrel.ItemPut(99, 1, None, 0, 3 * puts))
    journal = kestrel.WRITER_MAGIC + puts + 4 * quoting + puts
    return [(ZTICK, ztick_log), (WORKQ, workq_log), (JOURNAL, journal)]
