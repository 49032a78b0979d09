"""Which facts of a run's state history holds.

Owns: `durable_facts`, by which a state that was decided and one that was folded can be compared. Never: used to decide
anything; tests, the simulation and ``clew db check`` use it.
"""

from __future__ import annotations

from typing import Final

from clew.core.pending import PendingActivity
from clew.core.state import ExecutionState

_PLAIN: Final = (
    "workflow_id", "workflow_type", "task_queue", "start_time", "execution_time", "first_execution_run_id",
    "key_generation", "status", "next_event_id", "close_time", "close_event_id", "parent", "parent_initiated_event_id",
    "root_ref", "start_request_id", "attempt", "cron_schedule", "retry_policy", "workflow_execution_timeout",
    "workflow_run_timeout", "workflow_task_timeout", "execution_deadline", "run_deadline", "memo", "search_attributes",
    "priority", "versioning_override", "versioning_behavior", "deployment_version", "first_task_at",
    "previous_started_event_id", "external_signals", "external_cancels", "completed_updates", "cancel_requested",
    "cancel_reason", "signal_count", "recent_request_ids",
)  # fmt: skip
"""Fields that follow from history as they are."""

_ACTIVITY_FACTS: Final = PendingActivity.__struct_fields__[: PendingActivity.__struct_fields__.index("attempt")]


def durable_facts(state: ExecutionState) -> dict[str, object]:
    """The facts that history holds, in a comparable form: the same for the state decided and the state folded."""
    facts: dict[str, object] = {name: getattr(state, name) for name in _PLAIN}
    for name in ("external_signals", "external_cancels"):
        facts[name] = {key: item.target for key, item in getattr(state, name).items()}
    task = state.workflow_task
    facts["workflow_task"] = None if task is None or task.is_virtual else (
        task.scheduled_event_id, task.started_event_id, task.attempt, task.scheduled_time, task.started_time,
        task.start_to_close_timeout,
    )  # fmt: skip
    facts["activities"] = {
        key: tuple(getattr(item, name) for name in _ACTIVITY_FACTS) for key, item in state.activities.items()
    }
    facts["timers"] = {key: (item.timer_id, item.due_time) for key, item in state.timers.items()}
    facts["children"] = {
        key: (item.ref, item.workflow_type, item.parent_close_policy, item.started_event_id)
        for key, item in state.children.items()
    }
    facts["accepted_updates"] = {
        update.update_id: update.accepted_event_id for update in state.updates.values() if update.accepted_event_id
    }
    return facts
