"""Who may use a link, and what for: the seam to whoever judges credentials.

Owns: the shape of the question and of its answer. Never: judges.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from clew.link.frames import Hello
from clew.link.wire import Peer
from clew.service.contract import Service


class Admission(NamedTuple):
    """What a client gets that was let in.

    Args:
        service: The contract as it may use it.
        principal: Names who it is; a session is only gone on with by the same.
        on_end: Called when the session it was let in for is over.
    """

    service: Service
    principal: str = ""
    on_end: Callable[[], None] | None = None


Admit = Callable[[Hello, Peer], Awaitable[Admission]]
"""Judges the credentials in a greeting.

Raises:
    RPCError: They are not good; the client meets this very refusal.
"""
