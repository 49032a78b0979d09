"""The worker's sessions with the engine: what it offers to do, and how much at a time.

Owns: attaching, credits, and the sinks that the engine calls. Never: does any of the work.

How it works: credits are what the worker can really run. One session serves all, unless plain functions have fewer
threads than the worker has activity slots: then they get a session of their own, whose credits are the threads, so
that no task ages in a queue of this process while another worker could have it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, final

import msgspec

from clew.model.inputs import ActivityCancelReason, TaskToken
from clew.service.contract import Service, WorkerSession
from clew.service.requests import ActivityTask, WorkerHello, WorkflowTask
from clew.worker._activity_tasks import ActivityTasks
from clew.worker._workflow_tasks import WorkflowTasks

_log: Final = logging.getLogger("clew.worker")


@dataclass(frozen=True)
class Offer:
    """What one session offers to do.

    Args:
        hello: Says it to the engine.
        workflow_tasks_max: Workflow tasks at a time.
        activity_tasks_max: Attempts of activities at a time.
    """

    hello: WorkerHello
    workflow_tasks_max: int
    activity_tasks_max: int


def plan_offers(
    hello: WorkerHello,
    *,
    async_types: Sequence[str],
    blocking_types: Sequence[str],
    dynamic_is_blocking: bool | None,
    workflow_tasks_max: int,
    activity_tasks_max: int,
    threads_max: int,
) -> list[Offer]:
    """Decide on sessions and credits.

    Args:
        hello: With all but the activity types.
        async_types: Activities that run on the worker's loop.
        blocking_types: Activities that need a thread or a process each.
        dynamic_is_blocking: The same of the dynamic activity; None if there is none.
        workflow_tasks_max: Slots for workflow tasks; 0 if there are no workflows.
        activity_tasks_max: Slots for activities.
        threads_max: Threads or processes there are.
    """
    has_async = bool(async_types) or dynamic_is_blocking is False
    has_blocking = bool(blocking_types) or dynamic_is_blocking is True
    if not has_async and not has_blocking:
        return [Offer(_with_types(hello, (), takes_activities=False), workflow_tasks_max, 0)]
    all_types = None if dynamic_is_blocking is not None else (*async_types, *blocking_types)
    whole = _with_types(hello, all_types, takes_activities=True)
    if not has_blocking or threads_max >= activity_tasks_max:
        return [Offer(whole, workflow_tasks_max, activity_tasks_max)]
    _log.warning(
        "worker.threads_fewer_than_slots: %d activity slots but an executor of %d; at most %d plain ones will run "
        "at a time. Give the executor more workers, or lower max_concurrent_activities.",
        activity_tasks_max,
        threads_max,
        threads_max,
    )
    if not has_async or dynamic_is_blocking is not None:
        return [Offer(whole, workflow_tasks_max, threads_max)]
    mine = _with_types(hello, tuple(async_types), takes_activities=True)
    blocking = _with_types(hello, tuple(blocking_types), takes_activities=True)
    blocking = msgspec.structs.replace(
        blocking,
        instance_id=f"{hello.instance_id}/blocking",
        takes_workflow_tasks=False,
        workflow_types=(),
        is_sticky=False,
    )
    return [
        Offer(mine, workflow_tasks_max, activity_tasks_max - threads_max),
        Offer(blocking, 0, threads_max),
    ]


def _with_types(hello: WorkerHello, types: tuple[str, ...] | None, *, takes_activities: bool) -> WorkerHello:
    return msgspec.structs.replace(hello, activity_types=types, takes_activity_tasks=takes_activities)


class Sink:
    """The worker's end of one session; called by the engine on the service loop, and never raises."""

    def __init__(
        self,
        workflows: WorkflowTasks | None,
        activities: ActivityTasks | None,
        on_error: Callable[[BaseException], None],
    ) -> None:
        self._workflows = workflows
        self._activities = activities
        self._on_error = on_error
        self.session: WorkerSession | None = None
        self._is_polling = True

    def offer_workflow_task(self, task: WorkflowTask) -> None:
        """Take one workflow task."""
        try:
            assert self._workflows is not None, "a worker without workflows was offered a workflow task"
            self._workflows.offer(task, self._settle_workflow_task)
        except Exception as error:  # noqa: BLE001 - the engine must not pay for a bug here
            self._on_error(error)

    def offer_activity_task(self, task: ActivityTask) -> None:
        """Take one attempt of an activity."""
        try:
            assert self._activities is not None, "a worker without activities was offered an attempt"
            self._activities.offer(task, self._settle_activity_task)
        except Exception as error:  # noqa: BLE001 - the engine must not pay for a bug here
            self._on_error(error)

    def cancel_activity(self, token: TaskToken, reason: ActivityCancelReason) -> None:
        """Stop one attempt."""
        try:
            if self._activities is not None:
                self._activities.cancel_by_engine(token, reason)
        except Exception as error:  # noqa: BLE001 - the engine must not pay for a bug here
            self._on_error(error)

    def evict_workflow(self, namespace: str, run_id: str) -> None:
        """Forget one cached run."""
        try:
            if self._workflows is not None:
                self._workflows.evict(run_id)
        except Exception as error:  # noqa: BLE001 - the engine must not pay for a bug here
            self._on_error(error)

    async def attach(self, service: Service, offer: Offer) -> None:
        """Begin: from now on the engine offers tasks.

        Raises:
            RPCError: The engine refuses this worker.
        """
        self.session = await service.attach_worker(offer.hello, self)
        self.session.grant(workflow_tasks=offer.workflow_tasks_max, activity_tasks=offer.activity_tasks_max)

    def stop_polling(self) -> None:
        """Take no more tasks."""
        self._is_polling = False
        if self.session is not None:
            self.session.stop_polling()

    def detach(self) -> None:
        """End the session."""
        if self.session is not None:
            session, self.session = self.session, None
            session.detach()

    def _settle_workflow_task(self) -> None:
        if self._is_polling and self.session is not None:
            self.session.grant(workflow_tasks=1)

    def _settle_activity_task(self) -> None:
        if self._is_polling and self.session is not None:
            self.session.grant(activity_tasks=1)


@final
class EarlySink(Sink):
    """That of a worker whose turns may be lent, and that has no codec, which could take long, and is seen elsewhere."""

    def offer_early_workflow_task(self, task: WorkflowTask) -> bool:
        """Begin with a workflow task whose cause is not durable yet, if it can be begun at once."""
        try:
            return self._workflows is not None and self._workflows.offer_early(
                task, self._settle_workflow_task, self._note_unanswered
            )
        except Exception as error:  # noqa: BLE001 - the engine must not pay for a bug here
            self._on_error(error)
            return False

    def confirm_workflow_task(self, task: WorkflowTask) -> None:
        """The cause of an early task is durable."""
        try:
            if self._workflows is not None:
                self._workflows.confirm(task)
        except Exception as error:  # noqa: BLE001 - the engine must not pay for a bug here
            self._on_error(error)

    def _note_unanswered(self, task: WorkflowTask) -> None:
        if self.session is not None:
            self.session.note_unanswered(task.token)
