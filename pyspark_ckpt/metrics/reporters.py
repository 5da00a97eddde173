"""The reporters of one query: opened from its settings, each with its library, and closed.

A reporter that fails is reported in the log and in ``query.metricsReporters``. It never stops the
query.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from pyspark_ckpt.errors import ConfigurationError
from pyspark_ckpt.log_fields import library_logger
from pyspark_ckpt.metrics.values import QueryMetrics
from pyspark_ckpt.settings import MetricsReporter, Settings

logger = library_logger(__name__)

_CLOSING_S = 6.0
"""How long the end of a query waits for the last export."""

_Open = Callable[[QueryMetrics, Settings], tuple[str, Callable[[], None]]]


def _open_prometheus(query: QueryMetrics, settings: Settings) -> tuple[str, Callable[[], None]]:
    from pyspark_ckpt.metrics.prometheus_endpoint import report_to_prometheus

    return report_to_prometheus(query, settings.prometheus_host, settings.prometheus_port)


def _open_opentelemetry(query: QueryMetrics, _: Settings) -> tuple[str, Callable[[], None]]:
    from pyspark_ckpt.metrics.otlp_exports import report_by_otlp

    return report_by_otlp(query)


def _need_prometheus() -> None:
    import prometheus_client  # noqa: F401


def _need_opentelemetry() -> None:
    import opentelemetry.exporter.otlp.proto.http
    import opentelemetry.sdk  # noqa: F401


_NEEDS: Mapping[MetricsReporter, Callable[[], None]] = {
    MetricsReporter.PROMETHEUS: _need_prometheus,
    MetricsReporter.OPENTELEMETRY: _need_opentelemetry,
}
_OPENS: Mapping[MetricsReporter, _Open] = {
    MetricsReporter.PROMETHEUS: _open_prometheus,
    MetricsReporter.OPENTELEMETRY: _open_opentelemetry,
}


def check_reporters(settings: Settings) -> None:
    """Check that the libraries of the configured reporters are installed."""
    for name in settings.metrics_reporters:
        _check(name)


def _check(name: MetricsReporter) -> None:
    try:
        _NEEDS[name]()
    except ImportError as exc:
        raise ConfigurationError(
            f"spark.ckpt.metrics.reporters has {name.value!r}, whose library is not installed "
            f"({exc}): install pyspark_ckpt[{name.value}]"
        ) from exc


class Reporters:
    """The open reporters of one query.

    `addresses` has the address of each reporter. For a reporter that could not be opened, it has
    the reason.
    """

    def __init__(self, query: QueryMetrics, settings: Settings) -> None:
        self.addresses: dict[str, str] = {}
        self._closes: list[Callable[[], None]] = []
        self._query_id = query.query.query_id
        for name in settings.metrics_reporters:
            self._open(name, query, settings)

    def _open(self, name: MetricsReporter, query: QueryMetrics, settings: Settings) -> None:
        try:
            url, close = _OPENS[name](query, settings)
        except Exception as exc:
            self.addresses[name.value] = f"failed: {exc}"
            logger.warning(
                "query %s: no metrics are reported to %s%s: %s. The query continues without them",
                self._query_id,
                name.value,
                _place(name, settings),
                exc,
            )
            return
        self.addresses[name.value] = url
        self._closes.append(close)
        logger.info("query %s: metrics by %s: %s", self._query_id, name.value, url)

    def close(self) -> None:
        """End the reporting after a last export, for which this waits a few seconds."""
        for close in self._closes:
            thread = threading.Thread(
                target=self._close, args=(close,), name="pyspark_ckpt metrics end", daemon=True
            )
            thread.start()
            thread.join(_CLOSING_S)

    def _close(self, close: Callable[[], None]) -> None:
        try:
            close()
        except Exception as exc:
            logger.warning("query %s: a reporter of metrics did not end: %s", self._query_id, exc)


def _place(name: MetricsReporter, settings: Settings) -> str:
    if name is not MetricsReporter.PROMETHEUS:
        return ""
    return (
        f" at {settings.prometheus_host}:{settings.prometheus_port} (set "
        "spark.ckpt.metrics.reporter.prometheus.port to a free port, or to 0 for any)"
    )
