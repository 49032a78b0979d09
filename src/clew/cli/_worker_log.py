"""The log of a worker that the command runs: lines for people, on stderr.

Owns: where the lines go. Never: what is logged.

How it works: a program that has set up logging itself (a module of workers may, when it is imported) keeps what it set
up; only the level of Clew's own loggers is set, if one was asked for.
"""

from __future__ import annotations

import logging
import sys

from clew.telemetry import JsonFormatter, TextFormatter

LEVELS = ("debug", "info", "warning", "error")


def set_up_worker_log(level: str | None, form: str = "text") -> None:
    """Send the log of this process to stderr, unless it goes somewhere already; call it after users' code is imported.

    Args:
        level: Of Clew's loggers; info when None.
        form: ``text`` or ``json``.
    """
    root = logging.getLogger()
    clew = logging.getLogger("clew")
    is_ours = not root.handlers and not clew.handlers
    if is_ours:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
        root.addHandler(handler)
    if level is not None:
        clew.setLevel(level.upper())
    elif is_ours and clew.level == logging.NOTSET:
        clew.setLevel(logging.INFO)
