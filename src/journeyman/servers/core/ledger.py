"""The ledger of a server process: one for all its services.

    start      opened and folded before any service loads; each takes the families that are its own
    batch      engine --take_ledger--> Batch.ledger --write, sync--> ledger, then the service's log
    HTTP       await note([ActionAudited(...)])    a record that belongs to no batch
    compaction in a thread of its own, when more of it may be dead than live
    stop       closed after all services

It is in ``settings.ledger.path``, which is ``ledger`` in the data directory. Without a ledger
(``settings.ledger.enabled``) a service is given None: what has to be in the ledger is refused with
NO_LEDGER, and what is only an extra is not kept.

A damaged ledger loses what stood in the damaged part, and the server starts. A ledger that cannot
be written refuses the batch that needs it, as the log does; a failed sync of it stops the server.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence

from journeyman.clock import Clock
from journeyman.config import Persistence, Settings, WorkqPersistence
from journeyman.disk import Disk
from journeyman.errors import JourneymanError
from journeyman.formats.ledger import Record
from journeyman.logs.ledger.log import LedgerLog
from journeyman.servers.core.server_log import ServerLog, tell_recovery

NO_LEDGER = "this needs the ledger: set data.directory, or ledger.path"


class Ledger:
    """See the module's docstring. ``write`` is safe from any thread."""

    def __init__(self, log: LedgerLog, messages: ServerLog) -> None:
        self._log = log
        self._messages = messages
        self._compaction: threading.Thread | None = None
        self._families: dict[str, dict[str, Record]] = {}
        for (family, key), record in log.states.items():
            self._families.setdefault(family, {})[key] = record
        log.states.clear()

    def take(self, family: str) -> dict[str, Record]:
        """The state of a family by key, in the order of the ledger. It is given away once."""
        return self._families.pop(family, {})

    def write(
        self,
        records: Sequence[Record],
        *,
        sync: bool = True,
        then: Callable[[], None] | None = None,
    ) -> None:
        """Returns when they are durable and ``then`` has been done; JourneymanError: neither is."""
        self._log.append(records, sync=sync, then=then)
        if self._log.is_bloated and self._compaction is None:
            self._compaction = threading.Thread(target=self._compact, name="journeyman-ledger")
            self._compaction.start()

    async def note(self, records: Sequence[Record]) -> None:
        """The same from the event loop, for what belongs to no batch."""
        await asyncio.get_running_loop().run_in_executor(None, self.write, records)

    def close(self) -> None:
        """Blocks. All services are closed."""
        if (compaction := self._compaction) is not None:
            compaction.join()
        self._log.close()

    def _compact(self) -> None:
        try:
            self._log.compact()
        except (OSError, JourneymanError) as error:
            self._messages.warn("the ledger was not compacted", reason=error)
        else:
            self._compaction = None


def open_ledger(settings: Settings, disk: Disk, clock: Clock, messages: ServerLog) -> Ledger | None:
    """None: there is no place for one, or nothing is kept anyway."""
    path = settings.ledger.path
    if not is_used(settings):
        return None
    log = LedgerLog.open(disk, clock, path)
    tell_recovery(messages, log.recovery)
    messages.info(f"loaded {len(log.states)} entries of the ledger", ledger=path)
    return Ledger(log, messages)


def is_used(settings: Settings) -> bool:
    """Whether there is one: it is on, and a service that has something for it keeps its state."""
    return settings.ledger.enabled and (
        settings.database.persistence is Persistence.LOGFILE
        or (settings.workq.enabled and settings.workq.persistence is not WorkqPersistence.MEMORY)
    )
