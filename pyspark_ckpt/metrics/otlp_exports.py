"""Exports of metrics by OpenTelemetry's own library, as OTLP over HTTP."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    MetricExporter,
    MetricExportResult,
    MetricsData,
    PeriodicExportingMetricReader,
)
from opentelemetry.sdk.resources import Resource

from pyspark_ckpt.log_fields import library_logger
from pyspark_ckpt.metrics.declared import METRICS, PREFIX, QUERY_LABELS, Kind
from pyspark_ckpt.metrics.values import Point, QueryMetrics

logger = library_logger(__name__)

_EXPORT_TIMEOUT_S = 5.0


class _Reported(MetricExporter):
    """An exporter that reports the first failure of several, and that it works again."""

    def __init__(self, exporter: OTLPMetricExporter, query_id: str, url: str) -> None:
        super().__init__(
            exporter._preferred_temporality,  # noqa: SLF001  # PeriodicExportingMetricReader reads it
            exporter._preferred_aggregation,  # noqa: SLF001
        )
        self._exporter = exporter
        self._where = f"query {query_id}: metrics for OpenTelemetry at {url}"
        self._fails = False

    def export(
        self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any
    ) -> MetricExportResult:
        result = self._exporter.export(metrics_data, timeout_millis, **kwargs)
        fails = result is not MetricExportResult.SUCCESS
        if fails and not self._fails:
            logger.warning("%s were not exported, and the query continues", self._where)
        elif self._fails and not fails:
            logger.info("%s are exported again", self._where)
        self._fails = fails
        return result

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        return self._exporter.force_flush(timeout_millis)

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        self._exporter.shutdown(timeout_millis, **kwargs)


class _Readings:
    """The values of a query, read once for all metrics of an export.

    An export asks for each metric once. So a metric that is asked for again begins another export.
    """

    def __init__(self, query: QueryMetrics) -> None:
        self._query = query
        self._guard = threading.Lock()
        self._points: dict[str, list[Point]] | None = None
        self._given: set[str] = set()

    def observations(self, name: str) -> Iterator[Observation]:
        """Yield the values of a metric."""
        with self._guard:
            if self._points is None or name in self._given:
                self._given = set()
                self._points = {}
                for each in self._query.points():
                    self._points.setdefault(each.name, []).append(each)
            self._given.add(name)
            points = self._points.get(name, [])
        keys = (*QUERY_LABELS, *METRICS[name].labels)
        for point in points:
            values = (*self._query.labels, *point.labels)
            yield Observation(point.value, dict(zip(keys, values, strict=True)))

    def callback(self, name: str) -> Callable[[CallbackOptions], Iterator[Observation]]:
        """Return the function that an instrument calls for its values."""
        return lambda _options: self.observations(name)


def report_by_otlp(query: QueryMetrics) -> tuple[str, Callable[[], None]]:
    """Export the metrics of a query; return the URL, and what ends the exports.

    OpenTelemetry's environment variables say where the metrics go, and how often.
    """
    exporter = OTLPMetricExporter(timeout=_EXPORT_TIMEOUT_S)
    url = exporter._endpoint  # noqa: SLF001  # of the environment variables
    reader = PeriodicExportingMetricReader(_Reported(exporter, query.query.query_id, url))
    provider = MeterProvider([reader], _resource(query), shutdown_on_exit=False)
    meter = provider.get_meter(PREFIX, query.query.versions[0])
    readings = _Readings(query)
    for metric in METRICS.values():
        create = (
            meter.create_observable_counter
            if metric.kind is Kind.COUNTER
            else meter.create_observable_gauge
        )
        create(
            metric.opentelemetry_name,
            [readings.callback(metric.name)],
            metric.unit.code,
            metric.help,
        )
    return url, provider.shutdown


def _resource(query: QueryMetrics) -> Resource:
    """Return what OpenTelemetry's environment variables say, with a name if they have none."""
    found = Resource.create({"service.instance.id": query.query.run_id})
    if str(found.attributes.get("service.name", "")).startswith("unknown_service"):
        found = found.merge(Resource({"service.name": PREFIX}))
    return found
