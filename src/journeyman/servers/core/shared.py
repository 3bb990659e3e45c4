"""What all connections of all ports share: one budget, turns for long work, file descriptors."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from typing import Any

from journeyman.servers.core.server_log import ServerLog
from journeyman.servers.core.slices import Slices
from journeyman.servers.core.unsent import UnsentBudget


@dataclass(frozen=True, slots=True)
class Shared:
    """What all connections of all ports share."""

    budget: UnsentBudget
    slices: Slices
    most_files: int  # file descriptors from this number on are not for connections

    @classmethod
    def of(
        cls,
        loop: asyncio.AbstractEventLoop,
        messages: ServerLog,
        total_unsent_bytes: int,
        most_files: int = 2**31,
    ) -> Shared:
        budget = UnsentBudget(loop, total_unsent_bytes, messages)
        return cls(budget, Slices(loop), most_files)

    def is_short_of_files(self, connection: Any = None) -> bool:
        """Whether this connection takes a descriptor that logs and programs may need.

        The system gives out the lowest number that is free, so that one tells how many are taken.
        ``connection`` is its socket, if there is one already.
        """
        if connection is not None and connection.fileno() >= self.most_files:
            return True
        if len(self.budget) >= self.most_files:
            return True
        try:
            descriptor = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return True
        os.close(descriptor)
        return descriptor >= self.most_files
