"""What a start may be answered when its workflow id has a run already (semantics 1.1).

Owns: `untrue_start`, judged at the moment of the answer, and `check_starts_again`, when the simulation is over.
Never: asks the engine.

How it works: whether a run was open when a start was decided cannot be seen from outside, only what was durable when
the call was made and when it was answered. So an answer has to be what the policies of the call say of some moment in
between. What was made is exact: a run that a start has made stands right behind the one that was the latest of its id
before, and that had either been closed, as its reuse policy wants, or was ended by this very start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from clew.core.start import TERMINATED_BY_START
from clew.model import events as e
from clew.model.policies import WorkflowExecutionStatus
from tests.simulation.record import LawBroken, Record, RunLog

if TYPE_CHECKING:
    from tests.simulation.clients import Call
    from tests.simulation.world import World

STARTS: Final = frozenset({"start", "start_register"})
FAILED: Final = frozenset(
    {
        WorkflowExecutionStatus.FAILED,
        WorkflowExecutionStatus.CANCELED,
        WorkflowExecutionStatus.TERMINATED,
        WorkflowExecutionStatus.TIMED_OUT,
    }
)


def untrue_start(record: Record, call: Call) -> str:
    """What is wrong with the answer to a start, with its law; empty when nothing is."""
    if any(run.is_deleted for run in record.runs_of(call.action.values["id"])):
        return ""
    if call.refusal:
        return _untrue_refusal(record, call) if call.refusal == "workflow_already_started" else ""
    run = record.by_run_id.get(call.answer.run_id)
    if run is None or request_of(record, run) == call.request_id:
        return ""
    what = f"law 4: {call} was answered with run {run.run_id} of {run.workflow_id}, which another request started"
    if run.workflow_id != call.action.values["id"] or call.answer.started:
        return what
    if _policy(call) != "use":
        return f"{what}, though it was to {_policy(call)}"
    before = call.first_known
    is_younger = before.run is None or run.number > before.run.number
    if not is_younger and not (run is before.run and before.was_open):
        return f"{what}, and which had long been over"
    return ""


def _untrue_refusal(record: Record, call: Call) -> str:
    values, known = call.action.values, call.known
    may_conflict = _policy(call) == "fail" and known.has_been_open(record, values["id"])
    closed = [run for run in known.since(record, values["id"]) if not run.is_open]
    if may_conflict or any(_is_refused(values, run) for run in closed):
        return ""
    return f"law 11: {call} was refused as {call.refusal}; it was to {_policy(call)}, and the store held {known}"


def _is_refused(values: dict[str, Any], closed: RunLog) -> bool:
    """Whether a start must not follow this run."""
    reuse = values.get("reuse", "")
    return reuse == "reject" or (reuse == "failed" and closed.status not in FAILED)


def _policy(call: Call) -> str:
    return call.action.values.get("policy") or "fail"


def request_of(record: Record, run: RunLog) -> str:
    """The request that started the chain of a run."""
    first = record.by_run_id.get(_started(run).first_execution_run_id)
    return "" if first is None else _started(first).request_id


def check_starts_again(world: World) -> None:
    """Who is started beside an open run has replaced it, and who follows a closed one may."""
    record = world.record
    calls = {call.request_id: call for client in world.clients for call in client.calls if call.action.kind in STARTS}
    before: dict[str, RunLog] = {}
    for run in sorted(record.runs.values(), key=lambda run: run.number):
        last, before[run.workflow_id] = before.get(run.workflow_id), run
        began = _started(run)
        call = calls.get(began.request_id)
        is_first = began.first_execution_run_id == run.run_id and not began.continued_execution_run_id
        is_replaced = last is not None and _is_replaced(last)
        if is_replaced and (call is None or not is_first or _policy(call) != "replace"):
            raise LawBroken(f"law 2: {run.workflow_id} was ended for a start, and what follows is {began}")
        if last is None or last.is_deleted or call is None or not is_first or is_replaced:
            continue
        if _is_refused(call.action.values, last):
            raise LawBroken(f"law 4: {call} began a run after one that ended as {last.status.value}")
    unfollowed = [run.workflow_id for run in before.values() if _is_replaced(run) and not run.is_deleted]
    if unfollowed:
        raise LawBroken(f"law 2: {unfollowed} were ended for a start, and nothing followed")


def _is_replaced(run: RunLog) -> bool:
    end = run.events[-1]
    return isinstance(end, e.WorkflowExecutionTerminated) and end.reason == TERMINATED_BY_START


def _started(run: RunLog) -> e.WorkflowExecutionStarted:
    first = run.events[0]
    assert isinstance(first, e.WorkflowExecutionStarted), "event 1 starts the run"
    return first
