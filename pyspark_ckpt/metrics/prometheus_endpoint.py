"""An HTTP endpoint that Prometheus scrapes: one for all queries of a process with its address."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pyspark_ckpt.log_fields import library_logger
from pyspark_ckpt.metrics.declared import METRICS, QUERY_LABELS, Kind
from pyspark_ckpt.metrics.values import QueryMetrics

logger = library_logger(__name__)

_open: dict[tuple[str, int], PrometheusEndpoint] = {}
_guard = threading.Lock()


class _Queries(Collector):
    """Collects the values of several queries when Prometheus asks for them."""

    def __init__(self) -> None:
        self.queries: dict[str, QueryMetrics] = {}
        self._failed: set[str] = set()

    def describe(self) -> Iterable[Metric]:
        return ()  # else the registry would collect to know the names

    def collect(self) -> Iterator[Metric]:
        families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
        for query_id, query in list(self.queries.items()):
            try:
                points = query.points()
            except Exception as exc:  # the other queries are still reported
                self._warn(query_id, exc)
                continue
            for name, value, labels in points:
                if name not in families:
                    families[name] = _family(name)
                families[name].add_metric([*query.labels, *labels], value)
        yield from families.values()

    def _warn(self, query_id: str, error: Exception) -> None:
        if query_id not in self._failed:
            self._failed.add(query_id)
            logger.warning("query %s: no metrics for Prometheus: %s", query_id, error)


def _family(name: str) -> CounterMetricFamily | GaugeMetricFamily:
    metric = METRICS[name]
    family = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
    return family(metric.prometheus_name, metric.help, labels=[*QUERY_LABELS, *metric.labels])


class PrometheusEndpoint:
    """The endpoint; `url` is what Prometheus scrapes."""

    def __init__(self, host: str, port: int) -> None:
        self.collected = _Queries()
        registry = CollectorRegistry()
        registry.register(self.collected)
        self._server, self._thread = start_http_server(port, addr=host, registry=registry)
        name = f"[{host}]" if ":" in host else host
        self.url = f"http://{name}:{self._server.server_port}/metrics"

    def close(self) -> None:
        """Stop to listen; the port is free on return."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def report_to_prometheus(
    query: QueryMetrics, host: str, port: int
) -> tuple[str, Callable[[], None]]:
    """Report a query at an address; return the URL, and what ends the reporting.

    Queries of this process with the same address share one endpoint, which the last one closes.
    """
    address, query_id = (host, port), query.query.query_id
    with _guard:
        endpoint = _open.get(address)
        if endpoint is None:
            endpoint = _open[address] = PrometheusEndpoint(host, port)
        endpoint.collected.queries[query_id] = query

    def close() -> None:
        with _guard:
            if endpoint.collected.queries.get(query_id) is query:
                del endpoint.collected.queries[query_id]
            if not endpoint.collected.queries and _open.get(address) is endpoint:
                del _open[address]
                endpoint.close()

    return endpoint.url, close
