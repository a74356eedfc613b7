"""Prometheus metrics and a health check of a worker, over HTTP."""

from __future__ import annotations

import json
import math
import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from torch_remote_cli.status_file import Counts, memory_of

_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def _number(value: float) -> str:
    return "+Inf" if value == math.inf else f"{value:.17g}"


def text(counts: Counts | None, version: str) -> str:
    """The metrics in Prometheus' text format."""
    lines: list[str] = []

    def metric(name: str, kind: str, help_: str, samples: list[tuple[str, float]]) -> None:
        lines.append(f"# HELP torch_remote_{name} {help_}")
        lines.append(f"# TYPE torch_remote_{name} {kind}")
        lines.extend(f"torch_remote_{name}{labels} {_number(value)}" for labels, value in samples)

    metric("up", "gauge", "1 if the worker listens.", [("", float(counts is not None))])
    metric("build_info", "gauge", "The version.", [(f'{{version="{version}"}}', 1)])
    if counts is None:
        return "\n".join([*lines, ""])
    metric("sessions", "gauge", "Connected clients.", [("", len(counts.sessions))])
    metric(
        "sessions_limit", "gauge", "Maximum number of clients at once; +Inf: no limit.", [("", counts.most or math.inf)]
    )
    metric("sessions_total", "counter", "Accepted clients.", [("", counts.sessions_total)])
    metric("sessions_refused_total", "counter", "Clients refused because of the limit.", [("", counts.refused_total)])
    metric("sessions_killed_total", "counter", "Sessions that a signal ended.", [("", counts.killed_total)])
    metric("messages_total", "counter", "Messages from clients.", [("", counts.messages_total)])
    metric("received_bytes_total", "counter", "Bytes from clients, tensors included.", [("", counts.bytes_in_total)])
    metric("sent_bytes_total", "counter", "Bytes to clients, tensors included.", [("", counts.bytes_out_total)])
    metric("busy_seconds_total", "counter", "Time that sessions worked.", [("", counts.busy_seconds_total)])

    def each(value: Callable[[Any], float]) -> list[tuple[str, float]]:
        return [(f'{{process="{session.process}"}}', value(session)) for session in counts.sessions]

    metric("session_memory_bytes", "gauge", "Memory of a session's process.", each(lambda s: memory_of(s.process)))
    metric("session_busy_seconds_total", "counter", "Time that a session worked.", each(lambda s: s.busy_seconds))
    metric("session_idle_seconds", "gauge", "Time since a session's last message.", each(lambda s: s.idle_seconds))
    return "\n".join([*lines, ""])


class Endpoint:
    """Serves /metrics and /healthz at an address, on a thread, until it is closed."""

    def __init__(self, host: str, port: int, metrics: Callable[[], str], health: Callable[[], str | None]) -> None:
        """`health`: returns what is wrong, or None."""

        class Handler(BaseHTTPRequestHandler):
            timeout = 10  # seconds that a client may take for its request

            def do_GET(self) -> None:
                if self.path == "/metrics":
                    self._answer(200, _TYPE, metrics())
                elif self.path == "/healthz":
                    wrong = health()
                    body = {"status": "ok"} if wrong is None else {"status": "failing", "why": wrong}
                    self._answer(200 if wrong is None else 503, "application/json", json.dumps(body) + "\n")
                else:
                    self._answer(404, "text/plain", "there are /metrics and /healthz\n")

            def _answer(self, status: int, kind: str, body: str) -> None:
                data = body.encode()
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
            daemon_threads = True

        self._server = Server((host, port), Handler)
        address = self._server.server_address
        self.url = f"http://[{address[0]!s}]:{address[1]}" if ":" in host else f"http://{address[0]!s}:{address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
