"""The server's log: one line a fact, as text or as JSON.

Owns: the two formats and where the lines go (stderr). Never: what is logged.

How it works: loggers write event-style messages (``engine.commit_failed run_id=… error=…``). As JSON the pairs of
such a message are fields of their own, beside those that a caller gave as ``extra`` and the id of the request that
runs.
"""

from __future__ import annotations

import logging
import re
import sys
import traceback
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from clew.server.requests import REQUEST_ID
from clew.server.settings import ServerSettings

_PAIR: Final = re.compile(r"(\w+)=(\S+)")
_EVENT: Final = re.compile(r"[a-z_]+\.[a-z_]+(?= |$)")
_OWN_FIELDS: Final = frozenset(
    (*vars(logging.LogRecord("", 0, "", 0, "", (), None)), "message", "asctime", "taskName", "color_message")
)
"""What every record has; the rest of its attributes are the `extra` of the caller."""


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Give the line."""
        message = record.getMessage()
        fields: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": message,
        }
        if event := _EVENT.match(message):
            fields["event"] = event[0]
            fields |= dict(_PAIR.findall(message))
        if request_id := REQUEST_ID.get():
            fields["request_id"] = request_id
        fields |= {name: value for name, value in vars(record).items() if name not in _OWN_FIELDS}
        if record.exc_info:
            fields["exception"] = "".join(traceback.format_exception(*record.exc_info)).rstrip()
        return msgspec.json.encode(fields, enc_hook=repr).decode()


class TextFormatter(logging.Formatter):
    """A line for people."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s %(message)s")


def set_up_logging(settings: ServerSettings) -> None:
    """Send the log of this process to stderr, in the format that is set."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if settings.log_format == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    level = settings.log_level.upper()
    logging.getLogger("clew").setLevel(level)
    logging.getLogger("uvicorn.error").setLevel("WARNING")
    # One line a request only for those who look for it; the metrics have the counts.
    logging.getLogger("clew.server.access").setLevel("DEBUG" if level == "DEBUG" else "WARNING")
