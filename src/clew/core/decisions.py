"""The one door to the history machine: every decision by name.

Owns: nothing; it gathers the `decide_*` functions, so that a caller imports one module. All take the state they own and
answer with a `Transition` (the state has moved) or a `Rejection` (it has not); see ``core.transition``.
"""

from __future__ import annotations

from clew.core.activities import (
    decide_adopt_attempt,
    decide_cancel_activity,
    decide_complete_activity,
    decide_detach_activity,
    decide_fail_activity,
    decide_heartbeat_activity,
    decide_release_activity,
    decide_start_activity,
)
from clew.core.children import (
    decide_child_closed,
    decide_child_start_failed,
    decide_child_started,
    decide_external_cancel_failed,
    decide_external_cancel_requested,
    decide_external_signal_failed,
    decide_external_signaled,
)
from clew.core.due import decide_due, decide_sessions_lost, outstanding_tasks
from clew.core.markers import decide_record_markers
from clew.core.messages import decide_cancel_request, decide_signal, decide_terminate
from clew.core.reset import decide_reset
from clew.core.start import decide_attach_request, decide_id_policy, decide_release_first_task, decide_start
from clew.core.updates import decide_admit_update, find_update
from clew.core.versioning import decide_update_options
from clew.core.workflow_tasks import (
    decide_complete_workflow_task,
    decide_fail_workflow_task,
    decide_start_workflow_task,
)

__all__ = [
    "decide_admit_update",
    "decide_attach_request",
    "decide_cancel_activity",
    "decide_cancel_request",
    "decide_child_closed",
    "decide_child_start_failed",
    "decide_child_started",
    "decide_complete_activity",
    "decide_complete_workflow_task",
    "decide_adopt_attempt",
    "decide_detach_activity",
    "decide_due",
    "decide_external_cancel_failed",
    "decide_external_cancel_requested",
    "decide_external_signal_failed",
    "decide_external_signaled",
    "decide_fail_activity",
    "decide_fail_workflow_task",
    "decide_heartbeat_activity",
    "decide_id_policy",
    "decide_record_markers",
    "decide_release_activity",
    "decide_release_first_task",
    "decide_reset",
    "decide_sessions_lost",
    "decide_signal",
    "decide_start",
    "decide_start_activity",
    "decide_start_workflow_task",
    "decide_terminate",
    "decide_update_options",
    "find_update",
    "outstanding_tasks",
]
