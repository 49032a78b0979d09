"""Sockets that a forked child must not keep open.

Owns: the list of them, and what happens to them in a child. Never: opens or closes one in the process that made it.

How it works: a child gets a copy of every open socket of its parent. When the parent is killed, its connections would
not break as long as such a child lives, and whoever connects to its socket would wait for ever; so nobody would take
over. Therefore each is replaced in the child by the null device, which leaves its number taken, so that whatever of the
parent's objects is still there can close it.
"""

from __future__ import annotations

import os
from typing import Final

_descriptors: Final[set[int]] = set()


def keep_from_children(descriptor: int) -> None:
    """A socket was opened."""
    if descriptor >= 0:
        _descriptors.add(descriptor)


def forget(descriptor: int) -> None:
    """It is about to be closed, or was."""
    _descriptors.discard(descriptor)


def _replace_in_child() -> None:
    if not _descriptors:
        return
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in _descriptors:
        os.dup2(null, descriptor, inheritable=False)
    os.close(null)
    _descriptors.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_replace_in_child)
