"""Collectors for telemetry tests: one that understands what it gets, and ones that are no help.

Not a test itself. All of them run in threads of this process.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.trace.v1.trace_pb2 import Span

WAIT_S = 60.0


class Collector:
    """``with Collector() as collector: ...``: an OTLP/HTTP server that keeps everything."""

    def __init__(self, port: int = 0) -> None:
        self.spans: list[Span] = []
        self.metrics: dict[str, Metric] = {}  # the latest of each name
        self.resources: list[dict[str, Any]] = []
        self.paths: set[str] = set()
        self._arrived = threading.Condition()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                assert self.headers["Content-Type"] == "application/x-protobuf"
                collector._take(self.path, body)
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def wait_until(self, true: Callable[[], bool]) -> None:
        with self._arrived:
            assert self._arrived.wait_for(true, WAIT_S), (self.metrics, self.spans)

    def spans_named(self, name: str) -> list[tuple[Span, dict[str, Any]]]:
        return [(span, plain(span.attributes)) for span in self.spans if span.name == name]

    def numbers(self, name: str) -> dict[frozenset[tuple[str, Any]], float]:
        """attributes -> value of a counter or gauge."""
        metric = self.metrics[name]
        kind = metric.WhichOneof("data")
        assert kind is not None
        return {
            frozenset(plain(point.attributes).items()): point.as_int or point.as_double
            for point in getattr(metric, kind).data_points
        }

    def _take(self, path: str, body: bytes) -> None:
        with self._arrived:
            self.paths.add(path)
            if path == "/v1/traces":
                for group in ExportTraceServiceRequest.FromString(body).resource_spans:
                    self.resources.append(plain(group.resource.attributes))
                    for scope in group.scope_spans:
                        self.spans += scope.spans
            else:
                for family in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                    self.resources.append(plain(family.resource.attributes))
                    for scope_metrics in family.scope_metrics:
                        self.metrics |= {metric.name: metric for metric in scope_metrics.metrics}
            self._arrived.notify_all()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def plain(attributes: Any) -> dict[str, Any]:
    """Protobuf's attributes as a dictionary."""

    def value_of(each: KeyValue) -> Any:
        value: AnyValue = each.value
        return getattr(value, value.WhichOneof("value") or "string_value")

    return {each.key: value_of(each) for each in attributes}


class UselessCollector:
    """Takes connections and requests and never answers; ``dripping``: a byte now and then."""

    def __init__(self, *, dripping: bool) -> None:
        self._dripping = dripping
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._held: list[socket.socket] = []
        self._done = threading.Event()
        self.asked = threading.Event()
        self._threads = [threading.Thread(target=self._accept)]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}"

    def _accept(self) -> None:
        while not self._done.is_set():
            connection, _ = self._socket.accept()
            self._held.append(connection)
            thread = threading.Thread(target=self._hold, args=(connection,))
            self._threads.append(thread)
            thread.start()

    def _hold(self, connection: socket.socket) -> None:
        try:
            if connection.recv(65536):
                self.asked.set()
            if self._dripping:
                connection.sendall(b"HTTP/1.1 200 OK\r\nX-Slow: ")
                while not self._done.wait(0.2):
                    connection.sendall(b"z")
        except OSError:
            return  # the server has gone: nothing left to be slow about

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        socket.create_connection(self._socket.getsockname()).close()  # wakes the accepting thread
        self._threads[0].join()
        for connection in self._held:
            connection.close()
        for thread in self._threads[1:]:
            thread.join()
        self._socket.close()
