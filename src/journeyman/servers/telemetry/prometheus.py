"""Figures in the text format of Prometheus: ``jobs.scheduled`` is journeyman_jobs_scheduled_total.

The only module that imports prometheus_client; import it only where the HTTP port is open.
"""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from journeyman.servers.telemetry.metrics import BOUNDS_MS, Family, Histogram

_BOUNDS_S = (*(f"{bound_ms / 1000:g}" for bound_ms in BOUNDS_MS), "+Inf")


def text_of(families: Iterable[Family]) -> bytes:
    """The text format, version 0.0.4."""
    return generate_latest(_Collected(families))


class _Collected(Collector):
    def __init__(self, families: Iterable[Family]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return map(_metric, self._families)


def _metric(family: Family) -> Metric:
    name = "journeyman_" + family.name.replace(".", "_")
    if family.kind == "histogram":
        name = name.removesuffix("_ms") + "_seconds"
    metric = Metric(name, family.meaning, family.kind)
    sample_name = name + "_total" if family.kind == "counter" else name
    for point in family.points:
        labels = {key: _word(value) for key, value in point.labels.items()}
        if isinstance(point.value, Histogram):
            _add_histogram(metric, labels, point.value)
        else:
            metric.add_sample(sample_name, labels, point.value)
    return metric


def _add_histogram(metric: Metric, labels: dict[str, str], histogram: Histogram) -> None:
    total = 0
    for bound, count in zip(_BOUNDS_S, histogram.counts, strict=True):
        total += count
        metric.add_sample(f"{metric.name}_bucket", {**labels, "le": bound}, total)
    metric.add_sample(f"{metric.name}_sum", labels, histogram.sum_ms / 1000)
    metric.add_sample(f"{metric.name}_count", labels, total)


def _word(value: str | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else value
