"""Spans and figures in the words of OpenTelemetry, and over OTLP/HTTP to a collector.

    RequestSpan   span ztick.request, kind SERVER      POST <endpoint>/v1/traces
    RunSpan       span ztick.run                       POST <endpoint>/v1/metrics
    Family        metric ztick.<name>, cumulative since the start of the process

The only module that imports opentelemetry; import it only where telemetry is on. Of that library it
takes spans, encoding and HTTP. Its threads stay unused: they start again in every process that is
forked from this one, and a stop would wait for them as long as the collector likes.

Credentials for the collector, certificates and compression come from the variables that
OpenTelemetry defines, such as OTEL_EXPORTER_OTLP_HEADERS.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    HistogramDataPoint,
    Metric,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.metrics.export import Histogram as HistogramPoints
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanKind, Status, StatusCode

from journeyman import __version__
from journeyman.servers.core.metrics import BOUNDS_MS, Family, Histogram, Point
from journeyman.servers.ztick.spans import RequestSpan, RunSpan, Span
from journeyman.units import MS_PER_S, NS_PER_S

SCOPE = "ztick"

_NO_PARENT = Context()
_BOUNDS_S = [bound / MS_PER_S for bound in BOUNDS_MS]


class OtlpExporter:
    """See journeyman.servers.ztick.telemetry.Exporter. ``limit_s`` is for one request."""

    def __init__(
        self, endpoint: str, *, service_name: str, limit_s: float, started_ns: int
    ) -> None:
        base = endpoint.rstrip("/")
        self._started_ns = started_ns
        self._resource = Resource.create({SERVICE_NAME: service_name, SERVICE_VERSION: __version__})
        self._scope = InstrumentationScope(SCOPE, __version__)
        self._made = _Made()
        provider = TracerProvider(resource=self._resource, shutdown_on_exit=False)
        provider.add_span_processor(self._made)
        self._tracer = provider.get_tracer(SCOPE, __version__)
        self._complaints = _Complaints()
        self._complaints.take_over("opentelemetry")
        self._traces = OTLPSpanExporter(f"{base}/v1/traces", timeout=limit_s)
        self._metrics = OTLPMetricExporter(f"{base}/v1/metrics", timeout=limit_s)

    def export_spans(self, spans: Sequence[Span]) -> str:
        for span in spans:
            if isinstance(span, RequestSpan):
                self._make_request(span)
            else:
                self._make_run(span)
        self._complaints.first = ""
        success = self._traces.export(self._made.take()) is SpanExportResult.SUCCESS
        return "" if success else self._complaints.first or "the collector did not take spans"

    def export_figures(self, families: Sequence[Family], now_ns: int) -> str:
        metrics = [self._metric(family, now_ns) for family in families if family.points]
        scope = ScopeMetrics(self._scope, metrics, schema_url="")
        data = MetricsData([ResourceMetrics(self._resource, [scope], schema_url="")])
        self._complaints.first = ""
        success = self._metrics.export(data) is MetricExportResult.SUCCESS
        return "" if success else self._complaints.first or "the collector did not take metrics"

    # -- spans --

    def _make_request(self, request: RequestSpan) -> None:
        success = request.outcome == "ok"
        span = self._tracer.start_span(
            "ztick.request",
            _NO_PARENT,
            SpanKind.SERVER,
            {
                # Any bytes will do for a request id, but not for an attribute.
                "ztick.request.id": request.request_id.decode(errors="backslashreplace"),
                "ztick.command": request.command,
                "ztick.success": success,
            },
            start_time=request.begun_ns,
        )
        if not success:
            span.set_attribute("error.type", request.outcome)
            span.set_status(Status(StatusCode.ERROR))
        span.end(max(request.begun_ns, request.ended_ns))

    def _make_run(self, span_of_run: RunSpan) -> None:
        run = span_of_run.run
        span = self._tracer.start_span(
            "ztick.run",
            _NO_PARENT,
            SpanKind.INTERNAL,
            {
                "ztick.job.id": run.identifier,
                "ztick.runner": span_of_run.runner,
                "ztick.success": run.success,
                "ztick.lateness": (run.started_ns - run.execution_ns) / NS_PER_S,
            },
            start_time=run.started_ns,
        )
        if not run.success:
            span.set_status(Status(StatusCode.ERROR, run.reason))
        span.end(run.started_ns + run.duration_ns)

    # -- figures --

    def _metric(self, family: Family, now_ns: int) -> Metric:
        data: Sum | Gauge | HistogramPoints
        if family.kind == "histogram":
            data = HistogramPoints(
                [
                    self._histogram(point, point.value, now_ns)
                    for point in family.points
                    if isinstance(point.value, Histogram)
                ],
                AggregationTemporality.CUMULATIVE,
            )
        else:
            numbers = [
                NumberDataPoint(point.labels, self._started_ns, now_ns, point.value)
                for point in family.points
                if not isinstance(point.value, Histogram)
            ]
            data = (
                Sum(numbers, AggregationTemporality.CUMULATIVE, is_monotonic=True)
                if family.kind == "counter"
                else Gauge(numbers)
            )
        return Metric(otlp_name(family), family.meaning, otlp_unit(family), data)

    def _histogram(self, point: Point, value: Histogram, now_ns: int) -> HistogramDataPoint:
        count = sum(value.counts)
        return HistogramDataPoint(
            point.labels,
            self._started_ns,
            now_ns,
            count=count,
            sum=value.sum_ms / MS_PER_S,
            bucket_counts=value.counts,
            explicit_bounds=_BOUNDS_S,
            min=value.smallest_ms / MS_PER_S if count else 0.0,
            max=value.largest_ms / MS_PER_S,
        )


def otlp_name(family: Family) -> str:
    """Return the name of a metric: its unit stands beside it, not in it."""
    name = family.name.removesuffix("_ms").removesuffix("_seconds")
    return f"ztick.{name.replace('bytes', 'size')}"


def otlp_unit(family: Family) -> str:
    """Return the unit by UCUM: seconds, bytes, or none."""
    if family.name.endswith(("_ms", "_seconds")):
        return "s"
    return "By" if family.name.endswith("bytes") else family.unit


class _Made(SpanProcessor):
    """Keeps the spans that have ended until they are taken."""

    def __init__(self) -> None:
        self._spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        self._spans.append(span)

    def take(self) -> list[ReadableSpan]:
        spans, self._spans = self._spans, []
        return spans


class _Complaints(logging.Handler):
    """The library says why something failed only in its log. Keeps it from stderr as well."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.first = ""

    def take_over(self, name: str) -> None:
        logger = logging.getLogger(name)
        logger.addHandler(self)
        logger.propagate = False

    def emit(self, record: logging.LogRecord) -> None:
        self.first = self.first or record.getMessage()
