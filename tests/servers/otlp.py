"""A receiver of OTLP metrics over HTTP, which decodes them with OpenTelemetry's own form."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)


class OtlpReceiver:
    """What was received; `status` is what the receiver answers."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.status = 200
        self.refused = 0
        self._requests: list[ExportMetricsServiceRequest] = []
        self._changed = threading.Condition()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1/metrics"

    def add(self, request: ExportMetricsServiceRequest) -> None:
        with self._changed:
            if self.status == 200:
                self._requests.append(request)
            else:
                self.refused += 1
            self._changed.notify_all()

    def wait_for_refusals(self, number: int, timeout_s: float = 60) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.refused >= number, timeout_s)

    def resource(self) -> dict[str, str]:
        """Return the attributes of the newest resource."""
        (metrics,) = self._requests[-1].resource_metrics
        return {each.key: each.value.string_value for each in metrics.resource.attributes}

    def values(self) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
        """Return the values of the newest export by metric name and sorted attributes."""
        found = {}
        for metrics in self._requests[-1].resource_metrics:
            for scope in metrics.scope_metrics:
                for metric in scope.metrics:
                    kind = metric.WhichOneof("data")
                    for each in getattr(metric, kind).data_points:
                        labels = sorted((a.key, a.value.string_value) for a in each.attributes)
                        value = getattr(each, each.WhichOneof("value"))
                        found[metric.name, tuple(labels)] = value
        return found

    def kinds(self) -> dict[str, tuple[str, str]]:
        """Return the kind and the unit of each metric of the newest export."""
        return {
            metric.name: (str(metric.WhichOneof("data")), metric.unit)
            for metrics in self._requests[-1].resource_metrics
            for scope in metrics.scope_metrics
            for metric in scope.metrics
        }

    def wait_for_exports(self, number: int, timeout_s: float = 60) -> None:
        """Wait until that many exports have come."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self._requests) >= number, timeout_s)


@contextmanager
def otlp_receiver() -> Iterator[OtlpReceiver]:
    """Run a receiver on a free port of loopback."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            request = ExportMetricsServiceRequest()
            request.ParseFromString(body)
            receiver.add(request)
            answer = ExportMetricsServiceResponse().SerializeToString()
            self.send_response(receiver.status)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        receiver = OtlpReceiver(server.server_port)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield receiver
        finally:
            server.shutdown()
            thread.join()
