"""What the two outside services share: a small JSON server in a process of its own."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Reply:
    """What to answer; ``dropped`` closes the connection without a word instead."""

    status: int = 200
    body: Any = field(default_factory=dict)
    dropped: bool = False


Route = Callable[[Message, bytes], Reply]
"""Takes the headers and the body of a request."""


def make_server(routes: Mapping[tuple[str, str], Route], port: int = 0) -> ThreadingHTTPServer:
    """Make a server on the loopback interface.

    Args:
        routes: By method and path, such as ``("POST", "/payments")``.
        port: 0 takes a free one.
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            route = routes.get((self.command, self.path))
            reply = route(self.headers, body) if route else Reply(404, {"error": f"nothing at {self.path}"})
            if reply.dropped:
                self.close_connection = True
                return
            data = json.dumps(reply.body).encode()
            self.send_response(reply.status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = _answer  # noqa: N815 -- the names that the base class looks for

        def handle(self) -> None:
            # A caller that gave up or was killed is what this service is there to see.
            with contextlib.suppress(ConnectionError):
                super().handle()

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing: these services answer hundreds of requests."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

    return Server(("127.0.0.1", port), Handler)


def serve_until_told(server: ThreadingHTTPServer) -> None:
    """Print the address on the first line of standard output, then serve until SIGTERM or until the parent is gone."""
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
    sys.stdin.read()  # the parent holds the other end open for as long as it lives
    server.shutdown()
