"""A client of the fan-out writer that keeps what it is told."""

from __future__ import annotations

from journeyman.protocols.kestrel.replies import Reply, reply_bytes
from journeyman.servers.kestrel.writer import Unfinished


class Caller:
    """A client that keeps what it is told."""

    sends_more = True

    def __init__(self) -> None:
        self.told: list[bytes] = []
        self.is_leaving = False
        self.is_lost = False
        self.is_slow = False
        self.is_held_back = False
        self.dropped = False

    def answered(self, answers: list[Reply | Unfinished]) -> None:
        self.told += [
            reply_bytes(each.reply if isinstance(each, Unfinished) else each) for each in answers
        ]

    def room(self) -> None:
        raise AssertionError("nobody asked for room")

    def drop(self) -> None:
        self.dropped = True
