"""A run as its code stood at one event of its history, for people who look at it.

Owns: `rebuild`, and what can be seen of the run. Never: goes on from there, or changes anything.

How it works: the history is cut after the event and replayed; then every coroutine of the run is suspended where it
waited. The guard is off, since nothing that is done from here on becomes part of the run. A workflow task that failed
is replayed as if it had gone well, so that the exception is there with its frames.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, final

from clew.model import events as e
from clew.model.history import WorkflowHistory
from clew.replay import WorkflowMachine, stacks
from clew.replay.commands import is_internal


@final
@dataclass(frozen=True)
class TaskStack:
    """One coroutine of the run.

    Args:
        name: Of the task; ``run`` is the workflow's own.
        frames: Outermost first, those of Clew and asyncio left out; each with the line it stands at.
    """

    name: str
    frames: Sequence[tuple[FrameType, int]]


@final
@dataclass
class RebuiltRun:
    """The run at one event. `close` it, and use nothing of it afterwards.

    Args:
        history: All of it.
        event_id: The last event that was taken into account.
        stacks: Of what waits, in the order of the tasks' creation.
        error: What workflow code raised, or why code and history do not fit; None if nothing is wrong.
        is_closed: Whether the code has come to its end.
    """

    history: WorkflowHistory
    event_id: int
    stacks: Sequence[TaskStack] = ()
    error: Exception | None = None
    is_closed: bool = False
    _machine: WorkflowMachine | None = field(default=None, repr=False)

    def close(self) -> None:
        """Forget the run without running any of its code."""
        if self._machine is not None:
            self._machine.evict()


def rebuild(
    history: WorkflowHistory, make: Callable[[WorkflowHistory], WorkflowMachine], event_id: int | None
) -> RebuiltRun:
    """Replay a history up to one event.

    Args:
        history: The history, its payloads decoded.
        make: Makes the machine.
        event_id: The last event to take into account; the last there is, if None.
    """
    end = len(history) if event_id is None else max(min(event_id, len(history)), 1)
    events = list(history.events[:end])
    machine = make(history)
    error: Exception | None = None
    try:
        machine.replay(_with_failed_task(events))
    except Exception as raised:  # noqa: BLE001 (whatever it is, it is what people want to look at)
        error = raised
    waiting = [_stack_of(task) for task in machine.tasks()]
    if error is not None:
        waiting = [_raised(error), *waiting]
    return RebuiltRun(
        history=history,
        event_id=end,
        stacks=[stack for stack in waiting if stack.frames],
        error=error,
        is_closed=machine.is_closed,
        _machine=machine,
    )


def _with_failed_task(events: Sequence[e.Event]) -> Sequence[e.Event]:
    """If the last workflow task failed, the same events with it completed in place of that."""
    last = max((at for at, event in enumerate(events) if isinstance(event, e.WorkflowTaskStarted)), default=-1)
    failed = events[last + 1] if 0 <= last < len(events) - 1 else None
    if not isinstance(failed, e.WorkflowTaskFailed):
        return events
    completed = e.WorkflowTaskCompleted(
        event_id=failed.event_id,
        event_time=failed.event_time,
        scheduled_event_id=failed.scheduled_event_id,
        started_event_id=failed.started_event_id,
    )
    return [*events[: last + 1], completed]


def _stack_of(task: asyncio.Task[Any]) -> TaskStack:
    frames = [frame for frame in stacks.frames_of(task) if not is_internal(frame.f_code)]
    return TaskStack(task.get_name(), [(frame, frame.f_lineno) for frame in frames])


def _raised(error: Exception) -> TaskStack:
    found: list[tuple[FrameType, int]] = []
    traceback = error.__traceback__
    while traceback is not None:
        if not is_internal(traceback.tb_frame.f_code):
            found.append((traceback.tb_frame, traceback.tb_lineno))
        traceback = traceback.tb_next
    return TaskStack("raised", found)
