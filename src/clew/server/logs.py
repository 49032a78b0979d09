"""The server's log: one line a fact, as text or as JSON.

Owns: where the lines go (stderr), and that each has the id of the request that runs. Never: what is logged, or how a
line looks (``telemetry``).
"""

from __future__ import annotations

import logging
import sys

from clew.server.requests import REQUEST_ID
from clew.server.settings import ServerSettings
from clew.telemetry import JsonFormatter, TextFormatter


def set_up_logging(settings: ServerSettings) -> None:
    """Send the log of this process to stderr, in the format that is set."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(_request) if settings.log_format == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    level = settings.log_level.upper()
    logging.getLogger("clew").setLevel(level)
    logging.getLogger("uvicorn.error").setLevel("WARNING")
    # One line a request only for those who look for it; the metrics have the counts.
    logging.getLogger("clew.server.access").setLevel("DEBUG" if level == "DEBUG" else "WARNING")


def _request() -> dict[str, str]:
    request_id = REQUEST_ID.get()
    return {"request_id": request_id} if request_id else {}
