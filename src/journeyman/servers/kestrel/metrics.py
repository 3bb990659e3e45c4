"""The figures of the fan-out queues, for monitoring and for their clients; version and status too.

    writer   --count-->   commands by word and outcome, batches
    the engine's own figures, read on request: queues, readers, items, who waits

Nothing is formatted while commands are served, and counters start at zero with the process. Labels
are fixed words, but for the MOST_READERS readers with most to come.

Clients ask the server itself as well (KestrelInquiries). The names of the figures that they get,
and their order, are those of the original. Where it counts something that does not exist here the
figure is 0. They may also set its status:

    UP           everything
    WRITEAVOID   everything; says that puts should rather go elsewhere
    READONLY     no set, delete, flush
    QUIESCENT    no items either: open reads can be confirmed, closed and aborted, and questions
                 like these are answered

The version begins with that of the last kestrel whose protocol this is: libmemcached refuses to
talk to servers of a major version 0, and older clients choose commands by it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Sized
from heapq import nlargest
from typing import TYPE_CHECKING, Any, NamedTuple

from journeyman import __version__
from journeyman.clock import Clock
from journeyman.engines.kestrel.engine import KestrelEngine
from journeyman.engines.kestrel.messages import Counts, KestrelStats
from journeyman.engines.kestrel.queue import FanReader, ItemQueue
from journeyman.protocols.kestrel import commands as ask
from journeyman.protocols.kestrel import replies as words
from journeyman.servers.core import metrics
from journeyman.servers.kestrel.writer import DECIDED_LATER
from journeyman.units import NS_PER_MS, NS_PER_S

if TYPE_CHECKING:
    from journeyman.servers.kestrel.persistence import LogSize
    from journeyman.servers.kestrel.session import KestrelContext

_PEEK = "peek"
_COMMAND_NAMES: dict[type | str, str] = {
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

MOST_READERS = 100  # clients choose the names, so their number is bounded
OTHER_QUEUES = "(other)"  # no name of a queue has parentheses

UP, READONLY, QUIESCENT, WRITEAVOID = ask.STATUSES
VERSION = f"2.4.1-journeyman-{__version__}"
_NOT_RELOADED = words.ServerError("settings are read when the server starts")
_CHANGES = (ask.Put, ask.PutTooLarge, ask.DeleteQueue, ask.Flush, ask.FlushAll)
_CHANGES_MORE = (ask.FlushExpired, ask.FlushAllExpired)
_USUAL: frozenset[type] = frozenset({ask.Put, ask.GetItem, ask.Confirm})
_NONE: frozenset[type] = frozenset()


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
            outcome.kind if type(outcome) in (words.Verdict, words.ItemFound) else _kind_of(outcome)
            for outcome in outcomes
        ]
        self._commands.update(zip(asked, kinds, strict=False))

    def count_of(self, word: str) -> int:
        """How often this was said."""
        return sum(n for (command, _), n in self._by_word().items() if command == word)

    def families(self) -> list[metrics.Family]:
        stats, counts = self.stats(), self._counts()
        return [
            metrics.counter(
                "kestrel.commands",
                "Commands of the fan-out queues that were decided.",
                metrics.command_points(self._by_word()),
            ),
            metrics.counter("kestrel.batches", "Batches of commands of the queues.", self._batches),
            metrics.counter("kestrel.get_hits", "Reads that were given an item.", counts.hits),
            metrics.counter("kestrel.get_misses", "Reads that were given none.", counts.misses),
            metrics.gauge("kestrel.queues", "Fan-out queues.", stats.queues),
            metrics.gauge("kestrel.readers", "Readers of all queues.", stats.readers),
            metrics.gauge(
                "kestrel.items", "Items that readers still have to be given.", stats.items
            ),
            metrics.gauge("kestrel.bytes", "And their size.", stats.data_bytes),
            metrics.gauge(
                "kestrel.open_reads", "Items given out and not confirmed.", stats.open_reads
            ),
            metrics.gauge("kestrel.waiting", "Clients that wait for an item.", stats.waiting),
            metrics.gauge(
                "kestrel.connections",
                "Open connections of the kestrel protocol.",
                len(self._sessions),
            ),
            *self._queue_families(),
        ]

    def _queue_families(self) -> list[metrics.Family]:
        """Return figures of the readers with most to come; all others share a name."""
        readers = [
            (reader.items, queue.name, reader.name, reader.data_bytes)
            for queue in list(self._queues())
            for reader in list(queue.readers.values())
        ]
        shown = nlargest(MOST_READERS, readers)
        names: list[metrics.Labels] = [
            {"queue": queue, "reader": name} for _, queue, name, _ in shown
        ]
        names.append({"queue": OTHER_QUEUES, "reader": ""})
        items = [each[0] for each in shown]
        sizes = [each[3] for each in shown]
        items.append(sum(each[0] for each in readers) - sum(items))
        sizes.append(sum(each[3] for each in readers) - sum(sizes))
        return [
            metrics.gauge(
                "kestrel.reader_items",
                "Items that a reader still has to be given, of those with most.",
                [metrics.Point(labels, n) for labels, n in zip(names, items, strict=True)],
            ),
            metrics.gauge(
                "kestrel.reader_bytes",
                "And their size.",
                [metrics.Point(labels, n) for labels, n in zip(names, sizes, strict=True)],
            ),
        ]

    def _by_word(self) -> Counter[tuple[str, str]]:
        found: Counter[tuple[str, str]] = Counter()
        for (asked, outcome), count in dict(self._commands).items():
            if asked in _COMMAND_NAMES and outcome != _NOT_YET:
                found[_COMMAND_NAMES[asked], outcome] += count
        return found


def _kind_of(outcome: Any) -> str:
    """``outcome`` is a reply, None, or why the batch could not be written."""
    if outcome is None:
        return "waits"
    if outcome is DECIDED_LATER:
        return _NOT_YET
    kind: str = words.SERVER_FAULT if isinstance(outcome, Exception) else outcome.kind
    return kind


class Described(NamedTuple):
    """Queues as JSON, by name; asked over HTTP."""

    queue: str | None = None  # one; nothing is said if there is none of this name
    offset: int = 0
    limit: int = 100
    prefix: str = ""
    after: str = ""  # names above this one


class KestrelInquiries:
    """Made once a server."""

    def __init__(
        self,
        engine: KestrelEngine,
        clock: Clock,
        figures: KestrelMetrics,
        size_of: Callable[[str], LogSize],
    ) -> None:
        self._engine = engine
        self._clock = clock
        self._size_of = size_of
        self.port_context: KestrelContext  # as soon as there is one
        self.usual = _USUAL  # commands for the queues that may be done now: no need for ``answer``
        self.figures = figures
        self._started_ns = clock.monotonic_ns()
        self.status = UP

    def answer(self, request: Any) -> words.Reply | None:
        """The answer, if the request is for the server; None: it is for the queues."""
        kind = type(request)
        if kind is ask.RefusedRequest:
            return self._refused(request)
        if kind is ask.ShowStats:
            return words.stat_lines(self._all_figures(request.prefix))
        if kind is ask.DumpStats:
            return words.queue_dump(self._dumped(request.queues, request.prefix))
        if kind is Described:
            return words.ServerLines(self._described(request))
        if kind is ask.Version:
            return words.line(f"VERSION {VERSION}")
        if kind is ask.Reload:
            return _NOT_RELOADED
        if kind is ask.ServerStatus:
            return self._tell_status(request.word)
        return self._forbidden(kind)

    def _refused(self, refused: ask.RefusedRequest) -> words.Reply:
        """The client hears what the original says; the reason goes to the server's log."""
        if refused.hangup:  # no client can say more than one of these
            self.port_context.messages.info("connection refused", reason=refused.reason)
        return words.CLIENT_ERROR_AND_CLOSE if refused.hangup else words.CLIENT_ERROR

    def _tell_status(self, word: str | None) -> words.Reply:
        if word is None:
            return words.line(self.status)
        if word not in ask.STATUSES:
            return words.CLIENT_ERROR_AND_CLOSE
        self.status = word
        self.usual = _USUAL if word in (UP, WRITEAVOID) else _NONE
        self._engine.gives_items = word != QUIESCENT
        return words.END

    def _forbidden(self, kind: type) -> words.Reply | None:
        changes = kind in _CHANGES or kind in _CHANGES_MORE
        return words.FORBIDDEN if changes and self.status in (READONLY, QUIESCENT) else None

    # -- figures --

    def _all_figures(self, prefix: str) -> list[tuple[str, object]]:
        stats, context, counts = self._engine.stats(), self.port_context, self._engine.counts
        figures: list[tuple[str, object]] = [
            ("uptime", (self._clock.monotonic_ns() - self._started_ns) // NS_PER_S),
            ("time", self._clock.now_ns() // NS_PER_S),
            ("version", VERSION),
            ("curr_items", stats.items),
            ("total_items", counts.puts),
            ("bytes", stats.data_bytes),
            ("reserved_memory_ratio", "0.000"),
            ("curr_connections", len(context.sessions)),
            ("total_connections", context.total_connections),
            ("cmd_get", self.figures.count_of("get")),
            ("cmd_set", self.figures.count_of("set")),
            ("cmd_peek", self.figures.count_of("peek")),
            ("get_hits", counts.hits),
            ("get_misses", counts.misses),
            ("bytes_read", context.bytes_read),
            ("bytes_written", context.bytes_written),
            ("queue_creates", counts.queues_made),
            ("queue_deletes", counts.queues_deleted),
            ("queue_expires", counts.queues_expired),
        ]
        for name, its_figures in self._dumped((), prefix).items():
            figures += ((f"queue_{name}_{key}", value) for key, value in its_figures)
        return figures

    def _dumped(self, names: Iterable[str], prefix: str) -> dict[str, list[tuple[str, object]]]:
        queues = self._engine.queues
        chosen = list(names) or sorted(queues)
        found = [queues[name] for name in chosen if name in queues and name.startswith(prefix)]
        return {
            (f"{queue.name}+{reader.name}" if reader.name else queue.name): self._of_reader(
                queue, reader
            )
            for queue in found
            for reader in queue.readers.values()
        }

    def _described(self, request: Described) -> bytes:
        queues = self._engine.queues
        if request.queue is not None:
            found = queues.get(request.queue)
            return b"" if found is None else json.dumps(self._as_json(found)).encode()
        wanted = [n for n in queues if n.startswith(request.prefix) and n > request.after]
        names = sorted(wanted)[request.offset : request.offset + request.limit]
        return json.dumps([self._as_json(queues[name]) for name in names]).encode()

    def _as_json(self, queue: ItemQueue) -> dict[str, object]:
        return {
            "name": queue.name,
            "created": queue.created_ms * NS_PER_MS,
            "puts": queue.puts,
            "stored_bytes": self._size_of(queue.name).stored_bytes,
            "readers": [
                {
                    "name": reader.name,
                    "items": reader.items,
                    "bytes": reader.data_bytes,
                    "open": reader.open_items,
                    "waiting": len(reader.waiters),
                    "expired": reader.tally.expired,
                    "discarded": reader.tally.discarded,
                    "given_back": reader.tally.given_back,
                    "age_ms": reader.age_ms,
                    "oldest_ms": self._oldest_ms(queue, reader),
                }
                for reader in queue.readers.values()
            ],
        }

    def _oldest_ms(self, queue: ItemQueue, reader: FanReader) -> int | None:
        """Return for how long the oldest unread item of a reader has been there; of one on disk,
        about."""
        oldest = reader.oldest()
        if oldest is None:
            return None
        if isinstance(oldest, int):
            return self._age_ms(self._added_ms(queue, oldest))
        return self._age_ms(oldest.add_time_ms)

    def _age_ms(self, added_ms: int) -> int:
        return max(0, self._clock.now_ns() // NS_PER_MS - added_ms)

    def _added_ms(self, queue: ItemQueue, item_id: int) -> int:
        """Return when an item was added, as if the items of its segment had come at equal
        distances."""
        for span in self._size_of(queue.name).spans:
            if item_id <= span.last_id:
                ids = max(1, span.last_id - span.first_id)
                part = max(0, item_id - span.first_id) / ids
                return span.first_ms + round(part * (span.last_ms - span.first_ms))
        return queue.created_ms

    def _of_reader(self, queue: ItemQueue, reader: FanReader) -> list[tuple[str, object]]:
        tally, size = reader.tally, self._size_of(queue.name)
        return [
            ("items", reader.items),
            ("bytes", reader.data_bytes),
            ("total_items", queue.puts),
            ("logsize", size.stored_bytes),
            ("expired_items", tally.expired),
            ("mem_items", len(queue.window)),
            ("mem_bytes", queue.window_bytes),
            ("age", reader.age_ms),
            ("discarded", tally.discarded),
            ("waiters", len(reader.waiters)),
            ("open_transactions", reader.open_items),
            ("transactions", tally.opened),
            ("canceled_transactions", tally.given_back),
            ("total_flushes", queue.flushes),
            ("journal_rewrites", 0),
            ("journal_rotations", size.closed_segments),
            ("create_time", queue.created_ms // 1000),
        ]
