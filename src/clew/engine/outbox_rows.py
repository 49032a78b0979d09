"""Effects on other executions as rows of the outbox.

Owns: which effects go through the outbox, and the bytes of a row. Never: delivers one (``engine.outbox``).
"""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

from clew.core.transition import (
    ApplyParentClosePolicy,
    CancelExternal,
    NotifyParent,
    ReportChild,
    SignalExternal,
    StartChild,
    Transition,
)
from clew.engine.ids import Ids
from clew.engine.runs import RunEntry
from clew.ports.store import OutboxRow

OutboxEffect: TypeAlias = (
    StartChild | SignalExternal | CancelExternal | ApplyParentClosePolicy | ReportChild | NotifyParent
)

OUTBOX_EFFECTS: Final = frozenset(
    {StartChild, SignalExternal, CancelExternal, ApplyParentClosePolicy, ReportChild, NotifyParent}
)
_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(OutboxEffect)


def outbox_rows(entry: RunEntry, transition: Transition, ids: Ids) -> list[OutboxRow]:
    """The rows to commit together with the transition."""
    return [
        OutboxRow(message_id=ids.next_task_id(), shard=entry.shard, run_key=entry.run_key, body=_encoder.encode(effect))
        for effect in transition.effects
        if type(effect) in OUTBOX_EFFECTS
    ]


def decode_outbox(body: bytes) -> OutboxEffect:
    """The effect of a row."""
    return _decoder.decode(body)
