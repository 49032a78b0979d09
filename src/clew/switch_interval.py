"""Sets how often Python's threads take turns, for a process that runs an engine.

Owns: the one call below and its number. Never: changes what the program has set itself.

How it works: a thread that comes back from a system call asks for the interpreter, and whoever runs Python code keeps
it for up to the switch interval. CPython's default is 5 ms. A busy engine runs Python code all the time, so each file
that the program opens, each byte that it sends and each call of the writer into SQLite would take 5 ms longer. What a
tenth of that costs in changes of thread could not be measured. A program that has set an interval of its own keeps it
(docs/adr/0043-a-crowd-wakes.md).
"""

from __future__ import annotations

import sys
from typing import Final

INTERVAL_DEFAULT: Final = 0.005
"""What CPython sets by itself, in seconds."""

INTERVAL: Final = 0.0005

_is_done = False


def settle_switch_interval() -> None:
    """Do it, once a process."""
    global _is_done
    if _is_done:
        return
    _is_done = True
    if abs(sys.getswitchinterval() - INTERVAL_DEFAULT) < 1e-6:
        sys.setswitchinterval(INTERVAL)
