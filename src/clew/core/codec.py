"""How the state of a run lies in storage.

Owns: the bytes of a snapshot and of one pending item. Never: history (``model.events``).

How it works: a snapshot is a JSON array, one place a field, so that payloads (slices of JSON) pass through untouched
and a person can read it in the database. A *wide* run keeps its pending items in rows of their own, so that a step of a
run with a thousand of them writes two rows and not a thousand; its snapshot leaves them out.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from clew.core.pending import CompletedUpdate, PendingActivity, PendingChild, PendingExternal, PendingTimer
from clew.core.state import ExecutionState
from clew.core.transition import ITEM_ACTIVITY, ITEM_CANCEL, ITEM_CHILD, ITEM_SIGNAL, ITEM_TIMER, ITEM_UPDATE

_encoder: Final = msgspec.json.Encoder()
_state_decoder: Final = msgspec.json.Decoder(ExecutionState)
_item_decoders: Final[dict[int, msgspec.json.Decoder[Any]]] = {
    ITEM_ACTIVITY: msgspec.json.Decoder(PendingActivity),
    ITEM_TIMER: msgspec.json.Decoder(PendingTimer),
    ITEM_CHILD: msgspec.json.Decoder(PendingChild),
    ITEM_SIGNAL: msgspec.json.Decoder(PendingExternal),
    ITEM_CANCEL: msgspec.json.Decoder(PendingExternal),
    ITEM_UPDATE: msgspec.json.Decoder(CompletedUpdate),
}


def items_of(state: ExecutionState, kind: int) -> dict[int, Any]:
    """The pending items of one kind, by item id."""
    if kind == ITEM_ACTIVITY:
        return state.activities
    if kind == ITEM_TIMER:
        return state.timers
    if kind == ITEM_CHILD:
        return state.children
    if kind == ITEM_SIGNAL:
        return state.external_signals
    if kind == ITEM_CANCEL:
        return state.external_cancels
    assert kind == ITEM_UPDATE, f"unknown kind of pending item: {kind}"
    return state.completed_updates


def item_keys(state: ExecutionState) -> list[tuple[int, int]]:
    """``(kind, item id)`` of every pending item."""
    return [(kind, item_id) for kind in _item_decoders for item_id in items_of(state, kind)]


def encode_state(state: ExecutionState) -> bytes:
    """The snapshot; without pending items when the run is wide."""
    if not state.is_wide:
        return _encoder.encode(state)
    kept = (
        state.activities,
        state.timers,
        state.children,
        state.external_signals,
        state.external_cancels,
        state.completed_updates,
    )
    state.activities, state.timers, state.children = {}, {}, {}
    state.external_signals, state.external_cancels, state.completed_updates = {}, {}, {}
    try:
        return _encoder.encode(state)
    finally:
        state.activities, state.timers, state.children = kept[:3]
        state.external_signals, state.external_cancels, state.completed_updates = kept[3:]


def encode_item(state: ExecutionState, kind: int, item_id: int) -> bytes | None:
    """One pending item; None when it is no longer there."""
    item = items_of(state, kind).get(item_id)
    return None if item is None else _encoder.encode(item)


def decode_state(data: bytes, items: Iterable[tuple[int, int, bytes]] = ()) -> ExecutionState:
    """The state from its snapshot and, for a wide run, its items as ``(kind, item id, bytes)``.

    Raises:
        msgspec.DecodeError: The bytes are not a snapshot.
    """
    state = _state_decoder.decode(data)
    for kind, item_id, item in sorted(items, key=lambda entry: entry[:2]):
        items_of(state, kind)[item_id] = _item_decoders[kind].decode(item)
    return state
