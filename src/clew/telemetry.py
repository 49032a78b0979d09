"""Lines of a log, for people and for programs.

Owns: the two formats. Never: what is logged, or where the lines go.

How it works: loggers write event-style messages (``engine.commit_failed run_id=… error=…``). As JSON the pairs of such
a message are fields of their own, beside those that a caller gave as ``extra``.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from clew.stack_text import error_text

FORMATS: Final = ("text", "json")

_PAIR: Final = re.compile(r"(\w+)=(\S+)")
_EVENT: Final = re.compile(r"[a-z_]+\.[a-z_]+(?= |$)")
_OWN_FIELDS: Final = frozenset(
    (*vars(logging.LogRecord("", 0, "", 0, "", (), None)), "message", "asctime", "taskName", "color_message")
)
"""What every record has; the rest of its attributes are the `extra` of the caller."""


class JsonFormatter(logging.Formatter):
    """One JSON object a line.

    Args:
        around: Gives further fields, of what runs at this moment.
    """

    def __init__(self, around: Callable[[], dict[str, str]] = dict) -> None:
        super().__init__()
        self._around = around

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
        fields |= self._around()
        fields |= {name: value for name, value in vars(record).items() if name not in _OWN_FIELDS}
        if record.exc_info and record.exc_info[1] is not None:
            fields["exception"] = error_text(record.exc_info[1]).rstrip()
        return msgspec.json.encode(fields, enc_hook=repr).decode()


class TextFormatter(logging.Formatter):
    """A line for people."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s %(message)s")
