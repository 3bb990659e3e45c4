"""The figures of the fan-out queues.

    writer   --count-->   commands by word and outcome, batches
    the engine's own figures, read on request: queues, readers, items, who waits

Nothing is formatted while commands are served, and counters start at zero with the process. Labels
are fixed words, but for the MOST_READERS readers with most to come.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Sized
from heapq import nlargest
from typing import Any

from journeyman.engines.kestrel.messages import Counts, KestrelStats
from journeyman.engines.kestrel.queue import ItemQueue
from journeyman.protocols.kestrel import commands as ask
from journeyman.protocols.kestrel.replies import SERVER_FAULT, ItemFound, Verdict
from journeyman.servers.telemetry.metrics import (
    Family,
    Labels,
    Point,
    command_points,
    counter,
    gauge,
)

_PEEK = "peek"
_WORDS: dict[type | str, str] = {
    _PEEK: _PEEK,
    ask.Put: "set",
    ask.PutTooLarge: "set",
    ask.GetItem: "get",
    ask.Monitor: "monitor",
    ask.Confirm: "confirm",
    ask.DeleteQueue: "delete",
    ask.Flush: "flush",
    ask.FlushAll: "flush_all",
    ask.FlushExpired: "flush_expired",
    ask.FlushAllExpired: "flush_all_expired",
    ask.ShowStats: "stats",
    ask.DumpStats: "dump_stats",
    ask.Version: "version",
    ask.ServerStatus: "status",
    ask.Reload: "reload",
    ask.Shutdown: "shutdown",
    ask.RefusedRequest: "refused",
}

_NOT_YET = ""
HELD = object()  # the outcome of a command that is decided later, and counted then

MOST_READERS = 100  # clients choose the names, so their number is bounded
OTHER_QUEUES = "(other)"  # no name of a queue has parentheses


class KestrelMetrics:
    """Made once a server. ``stats`` and ``counts`` ask the engine."""

    def __init__(
        self,
        stats: Callable[[], KestrelStats],
        counts: Callable[[], Counts],
        sessions: Sized,
        queues: Callable[[], Iterable[ItemQueue]],
    ) -> None:
        self.stats = stats
        self._queues = queues
        self._counts = counts
        self._sessions = sessions
        self._commands: Counter[tuple[type | str, str]] = Counter()
        self._batches = 0

    def count(self, requests: Sequence[tuple[Any, Any]], outcomes: Sequence[Any]) -> None:
        """A batch was answered: (client, request), and in the same order what each came to."""
        self._batches += 1
        asked = [
            _PEEK if type(request) is ask.GetItem and request.peek else type(request)
            for _, request in requests
        ]
        kinds = [
            outcome.kind if type(outcome) in (Verdict, ItemFound) else _kind_of(outcome)
            for outcome in outcomes
        ]
        self._commands.update(zip(asked, kinds, strict=False))

    def asked(self, word: str) -> int:
        """How often this was said."""
        return sum(n for (command, _), n in self._by_word().items() if command == word)

    def families(self) -> list[Family]:
        stats, counts = self.stats(), self._counts()
        return [
            counter(
                "kestrel.commands",
                "Commands of the fan-out queues that were decided.",
                command_points(self._by_word()),
            ),
            counter("kestrel.batches", "Batches of commands of the queues.", self._batches),
            counter("kestrel.get_hits", "Reads that were given an item.", counts.hits),
            counter("kestrel.get_misses", "Reads that were given none.", counts.misses),
            gauge("kestrel.queues", "Fan-out queues.", stats.queues),
            gauge("kestrel.readers", "Readers of all queues.", stats.readers),
            gauge("kestrel.items", "Items that readers still have to be given.", stats.items),
            gauge("kestrel.bytes", "And their size.", stats.data_bytes),
            gauge("kestrel.open_reads", "Items given out and not confirmed.", stats.open_reads),
            gauge("kestrel.waiting", "Clients that wait for an item.", stats.waiting),
            gauge(
                "kestrel.connections",
                "Open connections of the kestrel protocol.",
                len(self._sessions),
            ),
            *self._queue_families(),
        ]

    def _queue_families(self) -> list[Family]:
        """Of the readers with most to come; all others together have a name that no queue has."""
        readers = [
            (reader.items, queue.name, reader.name, reader.data_bytes)
            for queue in list(self._queues())
            for reader in list(queue.readers.values())
        ]
        shown = nlargest(MOST_READERS, readers)
        names: list[Labels] = [{"queue": queue, "reader": name} for _, queue, name, _ in shown]
        names.append({"queue": OTHER_QUEUES, "reader": ""})
        items = [each[0] for each in shown]
        sizes = [each[3] for each in shown]
        items.append(sum(each[0] for each in readers) - sum(items))
        sizes.append(sum(each[3] for each in readers) - sum(sizes))
        return [
            gauge(
                "kestrel.reader_items",
                "Items that a reader still has to be given, of those with most.",
                [Point(labels, n) for labels, n in zip(names, items, strict=True)],
            ),
            gauge(
                "kestrel.reader_bytes",
                "And their size.",
                [Point(labels, n) for labels, n in zip(names, sizes, strict=True)],
            ),
        ]

    def _by_word(self) -> Counter[tuple[str, str]]:
        found: Counter[tuple[str, str]] = Counter()
        for (asked, outcome), count in dict(self._commands).items():
            if asked in _WORDS and outcome != _NOT_YET:
                found[_WORDS[asked], outcome] += count
        return found


def _kind_of(outcome: Any) -> str:
    """``outcome`` is a reply, None, or why the batch could not be written."""
    if outcome is None:
        return "waits"
    if outcome is HELD:
        return _NOT_YET
    kind: str = SERVER_FAULT if isinstance(outcome, Exception) else outcome.kind
    return kind
