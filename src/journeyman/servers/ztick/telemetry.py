"""Telemetry: spans of commands and runs, and the server's figures, sent to a collector.

    writer --requests--+
                       +--sampled--> a bounded queue --one thread, at intervals--> OTLP/HTTP
    runs   --run-------+                  the figures, read by that thread --------^

What the server does for it is to append a small tuple now and then. Everything slow or unreliable
is the thread's: making spans, encoding, the network. So the collector may be dead, slow or silent:

    too many spans wait        further ones are dropped and counted, memory stays bounded
    an export fails            its spans are dropped and counted; the next interval tries again
    the first failure, and the first success after it, are logged; no more
    the server stops           what waits is sent if that takes no longer than STOP_LIMIT_S

Spans are a sample: at most so many a second of each kind, spread over each batch of commands. The
figures are exact. The libraries are imported only where telemetry is on; see otlp.py.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from journeyman.clock import Clock
from journeyman.config import TelemetrySettings
from journeyman.errors import UsageError
from journeyman.formats.ztick import Runner
from journeyman.formats.ztick.codec import runner_word
from journeyman.protocols.ztick.replies import Metrics as StatFigures
from journeyman.servers.core.metrics import Family
from journeyman.servers.core.server_log import ServerLog
from journeyman.servers.ztick.metrics import COMMAND_WORDS, ServerMetrics, outcome_word
from journeyman.servers.ztick.runs import EndedRun
from journeyman.servers.ztick.spans import RequestSpan, RunSpan, Span
from journeyman.units import NS_PER_S

if TYPE_CHECKING:
    from journeyman.servers.ztick.otlp import OtlpExporter

MAX_SPANS_A_SECOND = 100  # for commands, and as many for runs
MAX_WAITING_SPANS = 4_096
MAX_SPANS_AN_EXPORT = 512
MIN_INTERVAL_S = 0.1  # the interval that "at once" stands for
EXPORT_LIMIT_S = 2  # for one request to the collector
STOP_LIMIT_S = 2.0


class Exporter(Protocol):
    """The other side of the queue. Called from the thread; each call may block for a while."""

    def export_spans(self, spans: Sequence[Span]) -> str:
        """Empty when the collector took them, else why it did not."""
        ...

    def export_figures(self, families: Sequence[Family], now_ns: int) -> str: ...


@dataclass(slots=True)
class RateLimit:
    """A limit of so many a second; what is not used is saved, for a second at most."""

    a_second: int
    left: float
    last_ns: int  # monotonic

    def at(self, now_ns: int) -> int:
        """How many may be taken now."""
        earned = (now_ns - self.last_ns) * self.a_second / NS_PER_S
        self.last_ns = now_ns
        self.left = min(self.left + earned, self.a_second)
        return int(self.left)

    def take(self, count: int) -> None:
        self.left -= count


class Telemetry:
    """Made where it is enabled; ``requests``, ``run`` and ``start`` are for the event loop."""

    def __init__(
        self,
        settings: TelemetrySettings,
        metrics: ServerMetrics,
        stat: Callable[[], StatFigures],
        clock: Clock,
        log: ServerLog,
        *,
        exporter: Exporter | None = None,
    ) -> None:
        """UsageError if the settings or the installation do not allow it. Starts nothing yet."""
        self._exporter = exporter or _otlp_exporter(settings, clock.now_ns())
        self._interval_s = max(settings.flush_interval_ms / 1000, MIN_INTERVAL_S)
        self._metrics = metrics
        self._stat = stat
        self._clock = clock
        self._log = log
        now_ns = clock.monotonic_ns()
        self._requests = RateLimit(MAX_SPANS_A_SECOND, MAX_SPANS_A_SECOND, now_ns)
        self._runs = RateLimit(MAX_SPANS_A_SECOND, MAX_SPANS_A_SECOND, now_ns)
        self._waiting: deque[Span] = deque()
        self._troubled = False
        self._stopping = threading.Event()
        # A daemon: a collector that keeps it waiting must not keep the process.
        self._thread = threading.Thread(target=self._work, name="journeyman-telemetry", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Send what waits, within STOP_LIMIT_S. Blocks: not for the event loop."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(STOP_LIMIT_S)

    # -- from the server --

    def requests(
        self, requests: Sequence[tuple[Any, Any]], outcomes: Sequence[object], begun_ns: int
    ) -> None:
        """A batch was answered: (client, request), and in the same order what each came to.

        Only what clients submitted becomes a span; the server's own commands have no client.
        """
        allowed = self._requests.at(self._clock.monotonic_ns())
        if not allowed:
            return
        ours = [index for index, (client, _) in enumerate(requests) if client is not None]
        chosen = ours[:: -(-len(ours) // allowed)] if ours else ours
        self._requests.take(len(chosen))
        ended_ns = self._clock.now_ns()
        for index in chosen:
            request = requests[index][1]
            word, outcome = COMMAND_WORDS[type(request)], outcome_word(type(outcomes[index]))
            self._add(RequestSpan(request.request_id, word, outcome, begun_ns, ended_ns))

    def run(self, runner: Runner, run: EndedRun) -> None:
        if self._runs.at(self._clock.monotonic_ns()):
            self._runs.take(1)
            self._add(RunSpan(runner_word(runner), run))

    def _add(self, span: Span) -> None:
        if len(self._waiting) < MAX_WAITING_SPANS:
            self._waiting.append(span)
        else:
            self._metrics.spans_crowded_out += 1

    # -- the thread --

    def _work(self) -> None:
        while not self._stopping.wait(self._interval_s):
            self._export()
        self._export()

    def _export(self) -> None:
        # All that waits now; what is added meanwhile is for the next time.
        waiting = [self._waiting.popleft() for _ in range(len(self._waiting))]
        reason = ""
        for begin in range(0, len(waiting), MAX_SPANS_AN_EXPORT):
            spans = waiting[begin : begin + MAX_SPANS_AN_EXPORT]
            reason = self._try("traces", partial(self._exporter.export_spans, spans))
            if reason:
                self._metrics.spans_not_taken += len(waiting) - begin
                break
        if not reason:
            families = self._metrics.families(self._stat())
            now_ns = self._clock.now_ns()
            reason = self._try("metrics", partial(self._exporter.export_figures, families, now_ns))
        self._tell(reason)

    def _try(self, signal: str, export: Callable[[], str]) -> str:
        try:
            reason = export()
        except Exception as error:  # noqa: BLE001 - telemetry may fail, in whatever way, but not end
            reason = f"{type(error).__name__}: {error}"
        self._metrics.exports[signal, not reason] += 1
        return reason

    def _tell(self, reason: str) -> None:
        if reason and not self._troubled:
            self._log.warn("telemetry cannot be sent; the server goes on", reason=reason)
        elif self._troubled and not reason:
            self._log.info("telemetry is sent again")
        self._troubled = bool(reason)


def check_telemetry(settings: TelemetrySettings) -> type[OtlpExporter]:
    """Return what exports; UsageError if the settings or the installation do not allow it."""
    endpoint = settings.endpoint or ""
    try:
        parts = urlsplit(endpoint)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise UsageError(
            f"telemetry.endpoint = {endpoint!r}: expected the URL of a collector, "
            "such as http://127.0.0.1:4318"
        )
    try:
        from journeyman.servers.ztick.otlp import OtlpExporter
    except ImportError as error:
        raise UsageError(
            f"telemetry.enabled = true: {error.name} is not installed; "
            "install journeyman[telemetry]"
        ) from error
    return OtlpExporter


def _otlp_exporter(settings: TelemetrySettings, now_ns: int) -> Exporter:
    exporter = check_telemetry(settings)
    return exporter(
        settings.endpoint or "",
        service_name=settings.service_name,
        limit_s=EXPORT_LIMIT_S,
        started_ns=now_ns,
    )
