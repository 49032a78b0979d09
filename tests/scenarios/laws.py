"""The laws that hold after every transition of the history machine (design §3), as checks."""

from __future__ import annotations

from clew.core.codec import decode_state, encode_item, encode_state, item_keys
from clew.core.evolve import fold
from clew.core.facts import durable_facts
from clew.core.state import ExecutionState
from clew.core.tables import ACTIVITY_TABLE, WORKFLOW_TASK_TABLE, ActivityPhase, WorkflowTaskPhase
from clew.core.transition import Transition
from clew.model.events import Event, decode_events, encode_events


class Snapshot:
    """A state as it was, for comparison."""

    def __init__(self, state: ExecutionState) -> None:
        self.encoded = encode_state(state)
        self.items = {key: encode_item(state, *key) for key in item_keys(state)}
        self.was_open = state.is_open
        self.activity_phases = {key: activity.phase for key, activity in state.activities.items()}
        self.task_phase = state.workflow_task.phase if state.workflow_task is not None else WorkflowTaskPhase.NONE

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Snapshot) and (self.encoded, self.items) == (other.encoded, other.items)

    __hash__ = None  # type: ignore[assignment]


def check_unchanged(before: Snapshot, state: ExecutionState) -> None:
    """A rejection leaves the state as it was."""
    assert Snapshot(state) == before, "a rejection changed the state"


def check_transition(
    before: Snapshot | None, state: ExecutionState, transition: Transition, history: list[Event]
) -> None:
    """`history` ends with the transition's events."""
    assert [event.event_id for event in history] == list(range(1, len(history) + 1)), "event ids are not dense"
    if before is not None and not before.was_open:
        assert not transition.events, "an event after the close"
        assert not transition.effects, "an effect after the close"
    if not state.is_open:
        assert state.close_event_id == len(history), "something follows the close event"
        assert state.next_attention() is None
        assert not state.is_busy
        assert not item_keys(state) or all(kind == 6 for kind, _ in item_keys(state))
        assert not state.buffered_events
        assert state.workflow_task is None
    assert decode_events(encode_events(history)) == history
    folded = fold(history, namespace=state.namespace, run_id=state.run_id)
    assert durable_facts(folded) == durable_facts(state), "fold(history) differs from the state"
    check_derived(state)
    check_stored_form(before, state, transition)


def check_phases(before: Snapshot, after: Snapshot) -> None:
    """Every change of phase is one that a table has."""
    for key, phase in before.activity_phases.items():
        now = after.activity_phases.get(key, ActivityPhase.CLOSED)
        allowed = frozenset[ActivityPhase]().union(*ACTIVITY_TABLE[phase].values())
        assert now is phase or now in allowed, f"activity {key} went from {phase} to {now}"
    for key in after.activity_phases.keys() - before.activity_phases.keys():
        assert after.activity_phases[key] is ActivityPhase.SCHEDULED
    allowed_for_task = frozenset[WorkflowTaskPhase]().union(*WORKFLOW_TASK_TABLE[before.task_phase].values())
    assert after.task_phase is before.task_phase or after.task_phase in allowed_for_task


def check_derived(state: ExecutionState) -> None:
    """Indexes and the heap say what a scan would say."""
    derived = state.derived
    assert derived.activity_ids == {a.activity_id: a.scheduled_event_id for a in state.activities.values()}
    assert derived.timer_ids == {t.timer_id: t.started_event_id for t in state.timers.values()}
    assert derived.backing_off == {a.scheduled_event_id for a in state.activities.values() if a.next_attempt_time}
    deadlines = [when for key in state.deadline_keys() if (when := state.deadline_of(*key)) is not None]
    if state.is_open:
        assert state.next_attention() == min(deadlines, default=None), "the heap of deadlines is wrong"


def check_stored_form(before: Snapshot | None, state: ExecutionState, transition: Transition) -> None:
    """A snapshot round-trips, and what changed among the items of a wide run is marked."""
    now = Snapshot(state)
    if before is not None:
        check_phases(before, now)
    items = [(kind, item_id, data) for (kind, item_id), data in now.items.items() if data is not None]
    again = decode_state(now.encoded, items if state.is_wide else ())
    assert again == state, "the stored form does not give the state back"
    assert again.next_attention() == state.next_attention()
    assert again.is_busy == state.is_busy
    if before is not None and (state.is_open or state.is_wide):
        changed = {key for key in now.items.keys() | before.items.keys() if now.items.get(key) != before.items.get(key)}
        assert changed <= transition.dirty_items, f"changed, but not marked: {changed - transition.dirty_items}"
