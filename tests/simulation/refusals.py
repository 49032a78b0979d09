"""Which refusals a call may meet: by its kind, and by what else was going on (law 11).

Owns: `REFUSALS`, the codes of each kind of call, after semantics and the errors' page; `check_refusals`. Never: whether
a run was there, open or closed, which ``told`` judges at the moment of the answer.

How it works: what may be tried again is tried again and never an answer, so that only refusals for good are looked at.
One that names a kind of trouble needs that trouble: nobody says that there is no worker, or that no answer came in
time, before the time for it has passed since the call was made last; too many updates are under way only where as many
calls for updates of that workflow id were.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from clew.engine.queries import ANSWER_SECONDS, NO_WORKER_SECONDS
from clew.model.limits import LIMITS_DEFAULT
from tests.simulation.clients import Call
from tests.simulation.record import LawBroken
from tests.simulation.world import World

FIND: Final = frozenset({"workflow_not_found"})
START: Final = frozenset({"workflow_already_started"})
MESSAGE: Final = FIND | {"workflow_already_completed"}
UPDATE: Final = MESSAGE | {"workflow_not_ready", "limit_exceeded"}
QUERY: Final = FIND | {"workflow_not_ready", "no_worker", "query_failed", "deadline_exceeded"}

REFUSALS: Final[dict[str, frozenset[str]]] = {
    "start": START,
    "start_register": START,
    "signal": MESSAGE,
    "stop_register": MESSAGE,
    "signal_with_start": START,
    "update": UPDATE,
    "write": UPDATE,
    "swap": UPDATE,
    "update_with_start": START | UPDATE,
    "cancel": FIND,  # A run that has closed has nothing to cancel, and that is no refusal.
    "terminate": MESSAGE,
    "end_cron": MESSAGE,
    "reset": FIND | {"invalid_argument"},  # Of a run that has completed no workflow task.
    "delete": FIND | {"workflow_not_closed"},
    "complete": FIND | {"activity_not_found"},  # It came too late, or a second time.
    "report": FIND | {"activity_not_found", "invalid_argument"},  # As cancelled, which nobody had asked for.
    "read": QUERY,
    "query": QUERY,
    "describe": FIND,
    "look": FIND,
    "history": FIND,
    "pages": FIND,
}

NO_TRACE: Final = "update_not_found"
"""What a node of a fleet may say of an update that another has had rejected: a rejection is in no history, so a node
that the word of it has not reached knows nothing of it."""

UPDATES: Final = frozenset({"update", "write", "swap", "update_with_start"})
SECONDS_MIN: Final = {"no_worker": NO_WORKER_SECONDS, "deadline_exceeded": ANSWER_SECONDS}
SLACK_SECONDS: Final = 1e-6


def check_refusals(world: World) -> None:
    """No call is refused for a reason that it did not give."""
    calls = [call for client in world.clients for call in client.calls]
    for call in calls:
        if call.refusal == NO_TRACE and world.plan.nodes > 1 and _is_to_be_rejected(call):
            continue
        if call.refusal and (wrong := unfounded(call, calls)):
            raise LawBroken(f"law 11: {call} was refused as {call.refusal}{wrong}")


def unfounded(call: Call, calls: Sequence[Call]) -> str:
    """What speaks against the refusal of this call, one of all these; empty when nothing does."""
    if call.refusal not in REFUSALS[call.action.kind]:
        return ", which no call of its kind is"
    assert call.ended_at is not None, "a refusal ends a call"
    took = call.ended_at[0] - call.tried_at[0]
    wanted = SECONDS_MIN.get(call.refusal, 0.0)
    if took < wanted - SLACK_SECONDS:
        return f" after {took:.3f} s, and not after {wanted:g}"
    workflow_id = call.action.values["id"]
    if call.refusal == "limit_exceeded" and not any(_resets(other, workflow_id) for other in calls):
        others = sum(_were_together(call, other) for other in calls if other is not call)
        if others < LIMITS_DEFAULT.updates_in_flight_max:
            return f", and only {others} others for updates of its run were under way meanwhile"
    return ""


def _is_to_be_rejected(call: Call) -> bool:
    return call.action.kind == "update" and call.action.values["number"] < 0


def _resets(call: Call, workflow_id: str) -> bool:
    """Whether it may have had updates that were long answered begin again, in the run of a reset."""
    return call.action.kind == "reset" and call.action.values["id"] == workflow_id


def _were_together(call: Call, other: Call) -> bool:
    """Whether another call for an update of the same workflow id was under way beside this one."""
    if other.action.kind not in UPDATES or other.action.values["id"] != call.action.values["id"]:
        return False
    assert call.ended_at is not None
    return other.began_at < call.ended_at and (other.ended_at is None or other.ended_at > call.tried_at)
