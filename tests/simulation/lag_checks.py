"""How late deadlines are met, checked when a simulation is over (law 8).

Owns: `check_lags`: no timer, no timeout of an attempt or of a run, and no run that waits for its first task comes later
than a bound after it could. Never: asks the engine, nor uses its reckoning of time.

How it works: a deadline can be met as soon as it is due, a node is there, and no workflow task of the run is out, since
what comes meanwhile waits for its answer and has that moment. Where nothing goes wrong the bound counts from there.
Where nodes die and stand still, it counts from the end of all faults and the return of the last node; who is due after
that is as punctual as in calm. Only where all clocks of the world agree is it known when anything happened.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from clew.model import events as e
from clew.model.failure import TimeoutInfo, TimeoutType
from tests.simulation.clock import EPOCH
from tests.simulation.record import LawBroken, RunLog
from tests.simulation.world import World

LAG_MAX: Final = timedelta(seconds=0.1)
"""What a few calls of the store may take that has no faults; the most that was seen is a thirtieth of it."""

RETURN_SECONDS_MAX: Final = 45.0
"""From the end of all faults until the last node serves and has taken over what was another's: it may come back 20 s
after it died, and a lease is 10 s."""

TASK_ENDS: Final = (e.WorkflowTaskCompleted, e.WorkflowTaskFailed, e.WorkflowTaskTimedOut)


class Deadline(NamedTuple):
    """Something that was to happen at a time.

    Args:
        what: In words.
        due: When.
        met_at: When it did, or was called off, or its run came to an end without it.
    """

    what: str
    due: datetime
    met_at: datetime


def check_lags(world: World) -> None:
    """No deadline is met late."""
    if not world.has_one_time:
        return
    asked = {
        call.action.values.get("id")
        for client in world.clients
        for call in client.calls
        if call.action.kind in ("update", "update_with_start", "signal_with_start", "reset")
    }
    seconds = 0.0 if world.plan.is_calm else world.plan.seconds + RETURN_SECONDS_MAX
    all_well_at = EPOCH + timedelta(seconds=seconds)
    for run in world.record.runs.values():
        if run.is_deleted:
            continue
        tasks = list(_tasks_out(run))
        for one in _deadlines(run, is_asked=run.workflow_id in asked):
            possible_at = max(_when_no_task_is_out(one.due, tasks), all_well_at)
            lag = one.met_at - possible_at
            if lag > LAG_MAX:
                raise LawBroken(
                    f"law 8: {run.workflow_id}: {one.what} was due at {one.due}, could be met at {possible_at}, and "
                    f"was not before {one.met_at}, {lag.total_seconds():g} s too late"
                )


def _tasks_out(run: RunLog) -> Iterator[tuple[datetime, datetime]]:
    """The times during which a workflow task of the run was out, in order."""
    began_at: datetime | None = None
    for event in run.events:
        if isinstance(event, e.WorkflowTaskStarted):
            began_at = event.event_time
        elif isinstance(event, TASK_ENDS) and began_at is not None:
            yield began_at, event.event_time
            began_at = None
    if began_at is not None:
        yield began_at, run.events[-1].event_time


def _when_no_task_is_out(at: datetime, tasks: list[tuple[datetime, datetime]]) -> datetime:
    for began_at, ended_at in tasks:
        if began_at <= at <= ended_at:
            at = ended_at
    return at


def _deadlines(run: RunLog, *, is_asked: bool) -> Iterator[Deadline]:
    timers: dict[int, e.TimerStarted] = {}
    scheduled: dict[int, e.ActivityTaskScheduled] = {}
    attempts: dict[int, datetime] = {}
    for event in run.events:
        match event:
            case e.TimerStarted():
                timers[event.event_id] = event
            case e.TimerFired() | e.TimerCanceled():
                yield _of_timer(timers.pop(event.started_event_id), event.event_time)
            case e.ActivityTaskScheduled():
                scheduled[event.event_id] = event
            case e.ActivityTaskStarted():
                attempts[event.scheduled_event_id] = event.event_time
            case e.ActivityTaskTimedOut():
                info = event.failure.info
                assert isinstance(info, TimeoutInfo), "a timeout says which"
                if info.timeout_type is TimeoutType.START_TO_CLOSE:
                    asked = scheduled[event.scheduled_event_id]
                    due = attempts[event.scheduled_event_id] + asked.start_to_close_timeout
                    yield Deadline(f"the end of an attempt of {asked.activity_id}", due, event.event_time)
            case _:
                pass
    for timer in timers.values():
        yield _of_timer(timer, run.events[-1].event_time)
    yield from _of_the_run(run, is_asked=is_asked)


def _of_timer(timer: e.TimerStarted, met_at: datetime) -> Deadline:
    return Deadline(f"timer {timer.timer_id}", timer.event_time + timer.start_to_fire_timeout, met_at)


def _of_the_run(run: RunLog, *, is_asked: bool) -> Iterator[Deadline]:
    began, end = run.events[0], run.events[-1]
    assert isinstance(began, e.WorkflowExecutionStarted), "event 1 starts the run"
    first_task_due = began.event_time + began.first_workflow_task_backoff
    if began.first_workflow_task_backoff and not is_asked:
        tasks = (event for event in run.events if isinstance(event, e.WorkflowTaskScheduled))
        yield Deadline("the first task", first_task_due, next(tasks, end).event_time)
    if began.workflow_run_timeout:
        yield Deadline("the end by its timeout", first_task_due + began.workflow_run_timeout, end.event_time)
    if began.workflow_execution_expiration_time is not None:
        yield Deadline("the end of its chain", began.workflow_execution_expiration_time, end.event_time)
