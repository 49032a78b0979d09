"""The audit log as a port: who did what, when, from where, and how it ended.

Owns: the record and the Protocol. Never: what is audited (``server.security`` decides), or where it goes.

A record never has a payload, a key or a token in it: its fields are ids and names.
"""

from __future__ import annotations

from datetime import datetime
from typing import Protocol

import msgspec


class AuditRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of the log.

    Args:
        at: When the call came.
        event: ``call`` (a mutating call), ``refused`` (no permission, too many calls), ``login_refused``,
            ``session_ended`` (a credential ended while it was in use), ``suppressed`` (`count` further lines of this
            kind were left out, for there were too many).
        principal: Who: ``key:…``, ``token:…``, ``certificate:…``, ``local`` or ``anonymous``.
        principal_name: The same for people.
        source: The address the call came from.
        call: Name of the call in the service contract.
        namespace: In which it acts; ``*`` for what belongs to none.
        subject: What it acts on: names of fields to ids.
        outcome: ``ok``, ``cancelled``, or the stable code of the refusal.
        duration_ms: How long it took to be durable and answered.
        count: Of the lines that `event` ``suppressed`` stands for.
    """

    at: datetime
    event: str
    principal: str
    principal_name: str = ""
    source: str = ""
    call: str = ""
    namespace: str = ""
    subject: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    outcome: str = ""
    duration_ms: float | None = None
    count: int = 0


class AuditLog(Protocol):
    """Where records go. `write` is called on the service loop at every audited call: it neither blocks nor raises."""

    def write(self, record: AuditRecord) -> None:
        """Take one record."""
        ...

    def is_healthy(self) -> bool:
        """Whether records written now will be kept."""
        ...

    def close(self) -> None:
        """Keep what was written, then let go."""
        ...
