"""Which process of which machine this is, and whether another process of the same machine has ended.

Owns: the text that marks a process, and what may be concluded from another's. Never: guesses: a process of which
nothing certain is known goes on.

How it works: a mark names the machine since it was started, the name space of process numbers, the host name and the
number of the process. Only of a process with the same machine, name space and host name can the end be known: its
number is not in use. So a program that was killed and is started again at once need not wait for the lease of the one
before. A number that was given to another process meanwhile proves nothing, and where the system does not tell these
things, marks are empty: then it is the lease that ends.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Final

_SEPARATOR: Final = "|"
_DIGITS_MAX: Final = 20
"""No system has numbers of processes that are longer."""


def mark_of_this_process() -> str:
    """The mark of the process that asks; empty where it cannot be told."""
    place = _place()
    return f"{place}{_SEPARATOR}{os.getpid()}" if place else ""


def has_ended(mark: str) -> bool:
    """Whether the process with this mark is known to be over."""
    place, _, number = mark.rpartition(_SEPARATOR)
    is_number = number.isascii() and number.isdecimal() and len(number) <= _DIGITS_MAX
    if not place or not is_number or int(number) < 1 or place != _place():
        return False
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        """It is there and another user's, or no such number can be."""
    return False


def _place() -> str:
    """The machine since its start, the name space of its process numbers and the host; empty when one is unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        numbers = os.readlink("/proc/self/ns/pid")
    except (OSError, ValueError):
        return ""
    return f"{boot} {numbers} {socket.gethostname()}" if boot else ""
