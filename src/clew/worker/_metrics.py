"""What a worker measures of itself, recorded with the meter that it was given (semantics 1.13).

Owns: the names, kinds and attributes of the metrics. Never: where they go (the meter knows), or what they are measured
for.

How it works: the names are those of the published SDKs with ``clew_`` in place of their prefix. Durations are recorded
as such; what a run or task looks like is read from its events, so that waiting is measured by the engine's clock alone.
A worker without a meter has no `WorkerMetrics`, and pays for none.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Final, cast, final

from clew._metric import RequestMetrics
from clew.common import MetricAttributes, MetricMeter
from clew.model import commands as c
from clew.model.events import WorkflowExecutionStarted, WorkflowTaskScheduled, WorkflowTaskStarted
from clew.service.requests import ActivityTask, WorkflowTask

_ZERO: Final = timedelta(0)

_COUNTERS: Final = {
    "workflow_completed": "runs that completed",
    "workflow_failed": "runs that failed",
    "workflow_canceled": "runs that ended as cancelled",
    "workflow_continue_as_new": "runs that continued as new",
    "workflow_task_queue_poll_succeed": "workflow tasks that this worker was handed",
    "workflow_task_execution_failed": "workflow tasks that failed",
    "activity_execution_failed": "attempts of activities that failed",
    "local_activity_total": "local activities that were started",
    "local_activity_execution_failed": "attempts of local activities that failed",
    "sticky_cache_hit": "workflow tasks of runs that were cached",
    "sticky_cache_miss": "workflow tasks of runs that were not cached, or stood elsewhere",
    "sticky_cache_total_forced_eviction": "runs that left the cache for want of room, or because nothing came for them",
}
_LATENCIES: Final = {
    "workflow_endtoend_latency": "from the start of a run to its end",
    "workflow_task_schedule_to_start_latency": "how long a workflow task waited for a worker",
    "workflow_task_execution_latency": "from the hand-over of a workflow task to its answer",
    "workflow_task_replay_latency": "how long a run took to be rebuilt from its history",
    "activity_schedule_to_start_latency": "how long an attempt waited for a worker",
    "activity_execution_latency": "how long an attempt took",
    "activity_succeed_endtoend_latency": "from the first scheduling of an activity to its success",
    "local_activity_execution_latency": "how long an attempt of a local activity took",
    "local_activity_succeed_endtoend_latency": "from the request for a local activity to its success",
}
_GAUGES: Final = {
    "num_pollers": "sessions by which this worker takes tasks",
    "sticky_cache_size": "runs in the cache",
    "worker_task_slots_available": "slots that are free",
    "worker_task_slots_used": "slots that are taken",
}

PREFIX: Final = "clew_"

_CLOSES: Final[dict[type[Any], str]] = {
    c.CompleteWorkflowExecution: "workflow_completed",
    c.FailWorkflowExecution: "workflow_failed",
    c.CancelWorkflowExecution: "workflow_canceled",
    c.ContinueAsNewWorkflowExecution: "workflow_continue_as_new",
}


@final
class WorkerMetrics:
    """Records; from any thread.

    Args:
        meter: With the attributes of the worker.
        now: The engine's time.
    """

    def __init__(self, meter: MetricMeter, now: Callable[[], datetime]) -> None:
        self._now = now
        self._requests = RequestMetrics(meter)
        self._counters = {name: meter.create_counter(PREFIX + name, text) for name, text in _COUNTERS.items()}
        self._latencies = {
            name: meter.create_histogram_timedelta(PREFIX + name, text) for name, text in _LATENCIES.items()
        }
        self._gauges = {name: meter.create_gauge(PREFIX + name, text) for name, text in _GAUGES.items()}

    def count(self, name: str, attributes: MetricAttributes | None = None) -> None:
        """Count one."""
        self._counters[name].add(1, attributes)

    def record(self, name: str, duration: timedelta, attributes: MetricAttributes | None = None) -> None:
        """Record one duration; what seems negative, by clocks that differ, counts as nothing."""
        self._latencies[name].record(max(duration, _ZERO), attributes)

    def show(self, name: str, value: int, attributes: MetricAttributes | None = None) -> None:
        """Show a value from now on."""
        self._gauges[name].set(value, attributes)

    def show_slots(self, kind: str, used_count: int, slots_max: int) -> None:
        """Show how many slots of one kind are taken and free."""
        attributes = {"worker_type": kind}
        self.show("worker_task_slots_used", used_count, attributes)
        self.show("worker_task_slots_available", slots_max - used_count, attributes)

    def now(self) -> datetime:
        """The engine's time."""
        return self._now()

    def note_request(self, operation: str, began_at: datetime, failure_code: str) -> None:
        """A call of the service was answered, with a code when it failed. None is a long one: tasks are handed over."""
        self._requests.note(operation, self._now() - began_at, failure_code)

    def show_pollers(self, workflow_sessions: int, activity_sessions: int) -> None:
        """Show by how many sessions each kind of task is taken."""
        self.show("num_pollers", workflow_sessions, {"poller_type": "workflow_task"})
        self.show("num_pollers", activity_sessions, {"poller_type": "activity_task"})

    # --- workflow tasks -------------------------------------------------------------------------------------

    def note_workflow_task(self, task: WorkflowTask, *, is_cached: bool) -> None:
        """A workflow task goes to its machine."""
        attributes = {"workflow_type": task.workflow_type}
        self.count("sticky_cache_hit" if is_cached else "sticky_cache_miss")
        events = task.events
        if len(events) > 1 and isinstance(events[-1], WorkflowTaskStarted):
            scheduled = next((event for event in reversed(events) if isinstance(event, WorkflowTaskScheduled)), None)
            if scheduled is not None:
                waited = events[-1].event_time - scheduled.event_time
                self.record("workflow_task_schedule_to_start_latency", waited, attributes)

    def note_close(self, task: WorkflowTask, command: Any, began_at: datetime | None) -> None:
        """A run ends by this command."""
        name = _CLOSES.get(cast("type[Any]", type(command)))
        if name is None:
            return
        attributes = {"workflow_type": task.workflow_type}
        self.count(name, attributes)
        if began_at is not None:
            self.record("workflow_endtoend_latency", self._now() - began_at, attributes)

    # --- activities -----------------------------------------------------------------------------------------

    def note_activity_started(self, task: ActivityTask) -> None:
        """An attempt was handed over."""
        if task.started_time is not None and task.current_attempt_scheduled_time is not None:
            waited = task.started_time - task.current_attempt_scheduled_time
            self.record("activity_schedule_to_start_latency", waited, _of_activity(task))

    def note_activity_ended(
        self, task: ActivityTask, seconds: float, *, is_local: bool, is_success: bool, is_failure: bool
    ) -> None:
        """An attempt has ended; one may be neither a success nor a failure, such as a cancelled one."""
        prefix, attributes = "local_" if is_local else "", _of_activity(task)
        took = timedelta(seconds=seconds)
        self.record(f"{prefix}activity_execution_latency", took, attributes)
        if is_failure:
            self.count(f"{prefix}activity_execution_failed", attributes)
        elif is_success and not is_local and task.scheduled_time is not None:
            self.record("activity_succeed_endtoend_latency", self._now() - task.scheduled_time, attributes)


def started_at(task: WorkflowTask) -> datetime | None:
    """Give when the run of a task started, if the task brings its history from the first event on."""
    first = task.events[0] if task.events else None
    return first.event_time if isinstance(first, WorkflowExecutionStarted) else None


def _of_activity(task: ActivityTask) -> dict[str, str]:
    return {"activity_type": task.activity_type, "workflow_type": task.workflow_type}
