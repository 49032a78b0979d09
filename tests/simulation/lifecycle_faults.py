"""Faults in how runs and activities end, begin again and are ended by others, planted like those of ``planted``.

Owns: `LIFECYCLE_FAULTS`. Never: plants them.
"""

from __future__ import annotations

from typing import Final

from tests.simulation.fault import Fault

LIFECYCLE_FAULTS: Final = (
    Fault(
        "signals-in-reverse",
        "signals of one workflow task are handed over last first",
        "clew.replay.applying:ApplyingMachine._apply_messages",
        "for job in jobs:",
        "for job in jobs if updates or len({type(job) for job in jobs}) > 1 else jobs[::-1]:",
    ),
    Fault(
        "signals-recorded-in-reverse",
        "signals that come during a workflow task are recorded last first",
        "clew.core.step:Step.flush",
        "for event in buffered:",
        "for event in reversed(buffered):",
    ),
    Fault(
        "child-not-cancelled",
        "the close policy that cancels a child does nothing",
        "clew.engine.outbox:Outbox._apply_close_policy",
        "elif policy is ParentClosePolicy.REQUEST_CANCEL:",
        "elif False:",
    ),
    Fault(
        "child-not-terminated",
        "the close policy that terminates a child does nothing",
        "clew.engine.outbox:Outbox._apply_close_policy",
        "if policy is ParentClosePolicy.TERMINATE:",
        "if False:",
    ),
    Fault(
        "child-cancelled-instead",
        "a child that is to be cancelled when its parent closes is terminated",
        "clew.engine.outbox:Outbox._apply_close_policy",
        "if policy is ParentClosePolicy.TERMINATE:",
        "if True:",
    ),
    Fault(
        "pause-too-short",
        "the pause before the next attempt is that of the attempt before",
        "clew.core.retry:backoff_interval",
        "(attempt - 1)",
        "(attempt - 2)",
    ),
    Fault(
        "timeout-too-short",
        "an activity has only nine tenths of its time",
        "clew.core.evolve:_activity_scheduled",
        "start_to_close_timeout=event.start_to_close_timeout",
        "start_to_close_timeout=event.start_to_close_timeout * 0.9",
    ),
    Fault(
        "run-retried-at-once",
        "a run that failed is tried again without a pause",
        "clew.core.chain:run_after_failure",
        "_same_again(step, first, verdict.delay)",
        "_same_again(step, first, verdict.delay * 0)",
    ),
    Fault(
        "run-attempts-not-counted",
        "the attempts of a run are not counted",
        "clew.core.chain:run_after_failure",
        "attempt=state.attempt + 1",
        "attempt=state.attempt",
    ),
    Fault(
        "run-not-retried",
        "a run that failed is not tried again",
        "clew.core.chain:run_after_failure",
        "if not verdict.is_retried:",
        "if True:",
    ),
    Fault(
        "cron-at-once",
        "a run that comes back by a schedule begins at once",
        "clew.core.chain:_cron_run",
        "first = _first_event(state, started)",
        "first, wait = _first_event(state, started), ZERO",
    ),
    Fault(
        "cron-only-once",
        "a run with a schedule does not come back",
        "clew.core.chain:_cron_run",
        "if not state.cron_schedule:",
        "if True:",
    ),
    Fault(
        "update-with-start-ends-the-open-run",
        "an update that may start its run ends the one that is open, and starts another",
        "clew.engine.update_with_start:UpdatesWithStart._try",
        "started = await self._starter.start(start, ",
        "anew = type(start.id_conflict_policy).TERMINATE_EXISTING\n"
        "started = await self._starter.start(__import__('msgspec').structs.replace(start, id_conflict_policy=anew), ",
    ),
    Fault(
        "completion-by-others-lost",
        "a completion that does not come from the worker is answered, and not recorded",
        "clew.core.activities:decide_complete_activity",
        "step = Step(state, now, limits)",
        "step = Step(state, now, limits)\nif request.identity.startswith('client'):\n    return Transition()",
    ),
    Fault(
        "open-run-deleted",
        "a run that is open is deleted",
        "tests.simulation.model_store:ModelStore.delete_run",
        "if run.row.status.is_open:",
        "if False:",
    ),
    Fault(
        "once-deleted-run-told",
        "a node that remembers a run as open tells of it although it was deleted through another node",
        "clew.engine.runs:is_behind",
        "(stored_version is None or",
        "(stored_version is not None and",
    ),
    Fault(
        "once-deleted-run-woken-for-ever",
        "a node that remembers a deadline of a run that was deleted through another node tries to meet it without end",
        "clew.engine.locate:load_again",
        "if now is None:",
        "if now is None:\n    return entry\nif False:",
    ),
    Fault(
        "once-due-again-and-again",
        "a run whose first event has to be read when something is due is found due at each turn until it is read",
        "clew.engine.attention:Attention._look",
        "if not self._wake(entry):",
        "if not self._wake(entry) and False:",
    ),
    Fault(
        "once-two-resets-at-once",
        "of two resets at the same moment each begins a run behind the same one",
        "clew.engine.resets:Resets._prepare",
        "if latest.successor is None:",
        "if True:",
    ),
)
