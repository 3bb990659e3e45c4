"""What a server keeps for streams and lakes (logs/holders.py), as messages and figures."""

from __future__ import annotations

import posixpath
from collections import Counter

from journeyman.clock import Clock
from journeyman.config.settings import LakeSettings
from journeyman.disk import Disk
from journeyman.logs.holders import Holders, LetGo
from journeyman.servers.core.server_log import ServerLog
from journeyman.servers.telemetry.metrics import Family, Point, counter, gauge
from journeyman.units import DAY_MS, NS_PER_MS


class LogHolders:
    """``of_logs`` goes to every log of the process."""

    def __init__(
        self, settings: LakeSettings, disk: Disk, clock: Clock, messages: ServerLog
    ) -> None:
        self._messages = messages
        self._let_go: Counter[str] = Counter()  # files, by log
        self.of_logs = Holders(
            disk,
            clock,
            max_bytes=settings.hold_bytes,
            max_idle_ns=settings.hold_days * DAY_MS * NS_PER_MS,
            tell=self._tell,
        )

    def families(self) -> list[Family]:
        held: Counter[str] = Counter()
        for (directory, _), size in self.of_logs.held_bytes.copy().items():
            held[posixpath.basename(directory)] += size
        return [
            gauge(
                "lake.held_bytes",
                "Bytes of logs kept for streams and lakes that have not read them, by directory.",
                [Point({"log": log}, size) for log, size in sorted(held.items())],
            ),
            counter(
                "lake.let_go",
                "Files of logs that changed or went before a stream or a lake had read them.",
                [Point({"log": log}, n) for log, n in sorted(self._let_go.copy().items())],
            ),
        ]

    def _tell(self, let_go: LetGo) -> None:
        """In the thread that compacts or cleans; messages may come from any."""
        self._let_go[posixpath.basename(let_go.directory)] += len(let_go.files)
        self._messages.warn(
            f"{let_go.who} had not read all that was dropped: {let_go.reason}; "
            "ingest more often, or raise lake.hold_bytes",
            directory=let_go.directory,
            files=", ".join(posixpath.basename(path) for path in let_go.files),
        )
