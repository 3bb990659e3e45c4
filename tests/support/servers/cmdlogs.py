"""The command log of a server that has stopped, read."""

from __future__ import annotations

from journeyman.formats.framing import scan
from journeyman.formats.workq import CODEC, Record
from tests.support.servers.workq_process import WorkqProcess


def records(server: WorkqProcess) -> list[Record]:
    found: list[Record] = []
    for path in sorted(server.cmdlog.glob("*.log")):
        entries, ending = scan(CODEC, path.read_bytes())
        assert ending.error is None
        found += [entry.record for entry in entries]
    return found
