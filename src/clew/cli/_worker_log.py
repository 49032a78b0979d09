"""The log of a worker that the command runs: lines for people, on stderr.

Owns: where the lines go. Never: what is logged.

How it works: a program that has set up logging itself (a module of workers may, when it is imported) keeps what it set
up; only the level of Clew's own loggers is set, if one was asked for.
"""

from __future__ import annotations

import logging
import sys

LEVELS = ("debug", "info", "warning", "error")


def set_up_worker_log(level: str | None) -> None:
    """Send the log of this process to stderr, unless it goes somewhere already; call it after users' code is imported.

    Args:
        level: Of Clew's loggers; info when None.
    """
    root = logging.getLogger()
    clew = logging.getLogger("clew")
    is_ours = not root.handlers and not clew.handlers
    if is_ours:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(name)s %(message)s"))
        root.addHandler(handler)
    if level is not None:
        clew.setLevel(level.upper())
    elif is_ours and clew.level == logging.NOTSET:
        clew.setLevel(logging.INFO)
