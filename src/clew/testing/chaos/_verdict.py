"""Whether a fault did harm, from two tapes.

Owns: what counts as harm, and what to tell of a test that failed. Never: runs anything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from clew.model import events as e
from clew.testing.chaos._tape import RunTape, Tape

_CLOSES = (
    e.WorkflowExecutionCompleted,
    e.WorkflowExecutionFailed,
    e.WorkflowExecutionCanceled,
    e.WorkflowExecutionTimedOut,
    e.WorkflowExecutionTerminated,
    e.WorkflowExecutionContinuedAsNew,
)


def harm_of(undisturbed: Tape, tape: Tape, *, varying: Collection[str] = (), compares_steps: bool = True) -> str | None:
    """Say what a fault did to a test that passed all the same; None if nothing.

    Args:
        undisturbed: The tape of the first go.
        tape: That of the go with the fault.
        varying: Activity types that may answer differently to the same idempotency key.
        compares_steps: Whether each run must take the same steps as in the first go.
    """
    return (
        _divergence(tape)
        or _different_answers(tape, varying)
        or (_lost_steps(undisturbed, tape) if compares_steps else None)
    )


def hints_for(tape: Tape) -> list[str]:
    """What may explain why a test failed under a fault."""
    hints: list[str] = []
    divergence = _divergence(tape)
    if divergence is not None:
        hints.append(divergence)
    for key, outcomes in tape.outcomes.items():
        if len(outcomes) > 1:
            hints.append(
                f"Activity {outcomes[0].activity_type!r} was done {len(outcomes)} times with the idempotency key "
                f"{key[:12]}…. What it does must happen once for one key: see activity.info().idempotency_key."
            )
    return hints


def _divergence(tape: Tape) -> str | None:
    for run in tape.runs:
        for event in run.events:
            if not isinstance(event, e.WorkflowTaskFailed):
                continue
            if event.cause is e.WorkflowTaskFailedCause.NON_DETERMINISTIC_ERROR:
                message = event.failure.message if event.failure is not None else "no message"
                return f"Divergence in {run.workflow_id!r}, told by event {event.event_id}: {message}"
    return None


def _different_answers(tape: Tape, varying: Collection[str]) -> str | None:
    for outcomes in tape.outcomes.values():
        first = outcomes[0]
        for other in outcomes[1:]:
            if other.result != first.result and first.activity_type not in varying:
                return (
                    f"Activity {first.activity_type!r} is not idempotent: with the same idempotency key attempt "
                    f"{first.attempt} answered {_text(first.result)} and attempt {other.attempt} answered "
                    f"{_text(other.result)}. Make what it does go by activity.info().idempotency_key, or name the type "
                    f"in clew_chaos(varying=[{first.activity_type!r}])."
                )
    return None


def _lost_steps(undisturbed: Tape, tape: Tape) -> str | None:
    for before, after in zip(undisturbed.runs, tape.runs, strict=False):
        has_timers = not _has_messages(before)
        wanted, found = (Counter(_steps(run, has_timers=has_timers)) for run in (before, after))
        lost, added = wanted - found, found - wanted
        if lost:
            return f"Lost step in {after.workflow_id!r}: {next(iter(lost))}, which the undisturbed run has."
        if added:
            return f"Divergence in {after.workflow_id!r}: {next(iter(added))}, which the undisturbed run has not."
    if len(tape.runs) < len(undisturbed.runs):
        missing = undisturbed.runs[len(tape.runs)]
        return f"Lost run: {missing.workflow_id!r} of the undisturbed go was never started."
    return None


def _has_messages(run: RunTape) -> bool:
    """Whether something came from outside; where it falls between workflow tasks then decides whether code waits."""
    kinds = (e.WorkflowExecutionSignaled, e.WorkflowExecutionUpdateAccepted, e.WorkflowExecutionCancelRequested)
    return any(isinstance(event, kinds) for event in run.events)


def _steps(run: RunTape, *, has_timers: bool) -> list[str]:
    """What the run did, without what a repeat may change: attempts, tasks, ids, times."""
    steps: list[str] = []
    for event in run.events:
        name = getattr(event, "activity_type", "") or getattr(event, "signal_name", "")
        match event:
            case e.ActivityTaskScheduled() | e.WorkflowExecutionSignaled():
                steps.append(f"{type(event).__name__} {name}")
            case e.TimerStarted() if has_timers:
                steps.append(type(event).__name__)
            case e.MarkerRecorded() | e.StartChildWorkflowExecutionInitiated():
                steps.append(type(event).__name__)
            case _ if isinstance(event, _CLOSES):
                steps.append(type(event).__name__)
            case _:
                pass
    return steps


def _text(result: tuple[bytes, ...]) -> str:
    text = b", ".join(result).decode("utf-8", "replace") or "null"
    return text if len(text) <= 80 else f"{text[:79]}…"
