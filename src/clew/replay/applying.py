"""The code of one run, and what each event does to it: the lowest floor of the workflow machine.

Owns: `ApplyingMachine`: the task of `run`, the order in which the events and updates of one activation reach the code,
its cancellation, and how it ends. Never: knows which events belong to which workflow task, or answers one (the floors
above, `FollowingMachine` and `WorkflowMachine`).

How it works: events are applied one after the other, and after each the code runs until it can go no further
(`_settle`). What answers a request of the code is given to `Resolutions`; what is left (a start, a signal, a
cancellation, an update) is told to the run here. ``machine`` explains the order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, cast

from clew.common import RawValue
from clew.converter import decode_arguments
from clew.converter.failure import notes_of
from clew.converter.payload_converter import PayloadConverter
from clew.model import events as e
from clew.model.inputs import UpdateAcceptance
from clew.model.limits import Limits
from clew.model.payload import from_stored
from clew.replay import commands as requests
from clew.replay import stacks
from clew.replay.chance import is_in_interceptor
from clew.replay.handlers import Handlers
from clew.replay.loop import WorkflowLoop
from clew.replay.matching import Ledger
from clew.replay.options import MachineOptions
from clew.replay.outbound import RUN_CANCELLED
from clew.replay.outcome import Outcome, decide_outcome, deciding_leaf
from clew.replay.passages import position_of
from clew.replay.resolutions import RESOLVE, Resolutions
from clew.replay.runtime import WorkflowRuntime, _Continue
from clew.replay.values import FailureConverter, Values, from_header
from clew.workflow._definition import Definition
from clew.workflow._interceptor import ExecuteWorkflowInput

_GATHERING: Final[type[Any]] = asyncio.tasks._GatheringFuture  # type: ignore[attr-defined]


class ApplyingMachine:
    """One run's code; the arguments are those of `WorkflowMachine`."""

    # What many runs neither set nor look at stands here, and not in each; what each looks at is read faster there.
    _cancels_after_release = False
    _is_cancel_kept = False
    """Whether the cancellation reaches `run` in any case, be it swallowed further in."""
    _is_cancel_requested = False

    def __init__(
        self,
        definition: Definition,
        namespace: str,
        task_queue: str,
        workflow_id: str,
        run_id: str,
        workflow_type: str,
        payload_converter: PayloadConverter,
        failure_converter: FailureConverter,
        limits: Limits,
        options: MachineOptions,
        traces_sites: bool,
    ) -> None:
        self._options = options
        self._definition = definition
        values = Values(payload_converter, failure_converter, limits)
        self._ledger = Ledger(self._where, traces_sites=traces_sites)
        self._runtime = WorkflowRuntime(
            definition, namespace, task_queue, workflow_id, run_id, workflow_type, values, self._ledger,
            options, self._cancel_again,
        )  # fmt: skip
        self._loop: WorkflowLoop = self._runtime.loop
        self._main: asyncio.Task[Any] | None = None
        self._close: requests.Pending | None = None
        self._holds_main = self._cancels_again = False
        self._acceptances: dict[str, UpdateAcceptance] = {}
        self._admitted: dict[str, e.UpdateRequest] = {}
        self._resolutions = Resolutions(self._ledger, self._loop, values)

    @property
    def _handlers(self) -> Handlers:
        return self._runtime.handlers

    def _apply(self, job: e.Event) -> None:
        resolve = RESOLVE.get(type(job))
        if resolve is not None:
            resolve(self._resolutions, job)
        else:
            APPLY[type(job)](self, job)

    def _apply_messages(self, jobs: list[e.Event], updates: list[tuple[int, Any]]) -> None:
        """Apply events in order, updates at their places; see the module for the order."""
        hold_through = max((job.event_id for job in jobs if type(job) is e.WorkflowExecutionSignaled), default=0)
        if self._main is None and updates:
            hold_through = max(hold_through, updates[-1][0])
        self._holds_main = hold_through > 0
        if self._holds_main and self._main is not None:
            self._loop.hold(self._main)
        for job in jobs:
            while updates and updates[0][0] < job.event_id:
                self._apply_update(updates.pop(0)[1])
                self._settle()
            if self._holds_main and job.event_id > hold_through:
                self._release()
            self._apply(job)
            self._settle()
        for position, update in updates:
            if self._holds_main and position > hold_through:
                self._release()
            self._apply_update(update)
            self._settle()
        if self._holds_main:
            self._release()

    def _release(self) -> None:
        self._holds_main = False
        self._loop.release()
        self._settle()
        if self._cancels_after_release:
            self._cancels_after_release = False
            self._cancel_main()
            self._settle()

    def _settle(self) -> None:
        """Run the code until it can go no further; then see whether it has come to its end."""
        loop, runtime = self._loop, self._runtime
        while True:
            loop.run_until_idle()
            if runtime.conditions and runtime.check_conditions():
                continue
            if not self._cancels_again:
                break
            self._cancels_again = runtime.is_stirred = False
            if self._main is not None and not self._main.done():
                self._main.uncancel()
                self._cancel_main()
        if runtime.error is not None:
            raise runtime.error
        if self._close is None:
            if runtime.failure is not None:
                self._end_with(runtime.failure)
            elif self._main is not None and self._main.done():
                self._end(self._main)

    def _is_main_done(self) -> bool:
        return self._main is None or self._main.done()

    # --- what is applied -----------------------------------------------------------------------------------

    def _apply_started(self, event: e.WorkflowExecutionStarted) -> None:
        runtime, definition = self._runtime, self._definition
        runtime.first_task_time = self._loop.moment
        runtime.begin(event)
        try:
            args = self._run_arguments(event)
            instance = self._loop.context.copy().run(definition.cls, *(args if definition.has_init else ()))
            runtime.set_instance(instance)
        except Exception as error:  # noqa: BLE001 (the outcome rule decides)
            self._end_with(error)
            return
        if runtime.inbound_chain is not None:
            asked = ExecuteWorkflowInput(definition.cls, definition.run_fn, args, from_header(event.header))
            work = runtime.inbound_chain.execute_workflow(asked)
        else:
            work = cast("Coroutine[Any, Any, Any]", definition.run_fn(instance, *args))
        self._main = self._loop.create_task(work, name="run", context=self._main_context())
        if self._holds_main:
            self._loop.hold(self._main)

    def _main_context(self) -> Any:
        context = self._loop.context.copy()
        if self._runtime.inbound_chain is not None:
            context.run(is_in_interceptor.set, True)
        return context

    def _run_arguments(self, event: e.WorkflowExecutionStarted) -> Sequence[Any]:
        if self._definition.is_dynamic:
            return ([RawValue(from_stored(stored)) for stored in event.input],)
        what = f"workflow {self._runtime.workflow_type!r}"
        return decode_arguments(self._runtime.values.payload_converter, event.input, self._definition.signature, what)

    def _apply_signal(self, event: e.WorkflowExecutionSignaled) -> None:
        self._handlers.apply_signal(event)

    def _apply_cancel_requested(self, event: e.WorkflowExecutionCancelRequested) -> None:
        self._runtime.cancel_reason = event.cause
        self._is_cancel_requested = True
        if self._holds_main:
            self._cancels_after_release = True
        else:
            self._cancel_main()

    def _cancel_main(self) -> None:
        if self._main is not None:
            self._is_cancel_kept = _awaits_gather(self._main)
            self._main.cancel(RUN_CANCELLED)

    def _cancel_again(self) -> None:
        self._cancels_again = self._is_cancel_requested and not self._is_cancel_kept
        self._runtime.is_stirred = True

    def _apply_task_failed(self, event: e.WorkflowTaskFailed) -> None:
        if event.cause is e.WorkflowTaskFailedCause.RESET_WORKFLOW and event.new_run_id:
            self._runtime.reseed(event.new_run_id)

    def _apply_update_admitted(self, event: e.WorkflowExecutionUpdateAdmitted) -> None:
        self._admitted[event.request.update_id] = event.request

    def _apply_update(self, update: Any) -> None:
        """Apply an update that was sent with the task, or that history says was accepted then."""
        if isinstance(update, e.WorkflowExecutionUpdateAccepted):
            request = update.accepted_request or self._admitted.get(update.protocol_instance_id)
            if request is None:
                raise RuntimeError(
                    f"Event {update.event_id} accepts update {update.protocol_instance_id!r}, but history has no "
                    "request of that id."
                )
            self._handlers.apply_update(request, is_recorded=True)
            return
        acceptance = self._handlers.apply_update(update.request, is_recorded=False)
        if acceptance is not None:
            self._acceptances[acceptance.message_id] = UpdateAcceptance(
                message_id=acceptance.message_id,
                update_id=acceptance.update_id,
                request=update.request,
                sequencing_event_id=position_of(update, self._runtime.task_event),
            )

    # --- the end -------------------------------------------------------------------------------------------

    def _end(self, main: asyncio.Task[Any]) -> None:
        try:
            result = main.result()
        except BaseException as error:  # noqa: BLE001 (the outcome rule decides)
            self._end_with(error)
            return
        values = self._runtime.values
        payloads = (
            values.encode((result,), "result of workflow", self._runtime.workflow_type) if result is not None else ()
        )
        self._close_with(requests.Complete(payloads))

    def _end_with(self, error: BaseException) -> None:
        types = self._runtime.failure_types
        outcome = decide_outcome(error, is_cancel_requested=self._is_cancel_requested, failure_types=types)
        if outcome is Outcome.TASK_FAILURE:
            leaf = deciding_leaf(error, types)
            if leaf is not error:
                leaf.add_note("It decided that the workflow task fails, not the run, since it is no failure exception.")
            if isinstance(error, Exception):
                raise error
            raise RuntimeError(f"Workflow code raised {error!r}.") from error
        if outcome is Outcome.CONTINUE_AS_NEW:
            assert isinstance(error, _Continue), "only workflow.continue_as_new makes it"
            self._close_with(requests.ContinueAsNew(error.command))
        elif outcome is Outcome.CANCEL:
            notes = notes_of(error)
            what = "notes of the cancellation"
            details = self._runtime.values.encode(notes, what, self._runtime.workflow_type) if notes else ()
            self._close_with(requests.Cancel(details))
        else:
            self._close_with(requests.Fail(self._runtime.values.to_failure(error)))

    def _close_with(self, close: requests.Pending) -> None:
        close.born = self._ledger.activation
        self._close = close
        if not self._runtime.is_replaying_now and self._runtime.used_handlers is not None:
            self._runtime.used_handlers.warn_unfinished()

    def _where(self) -> str:
        lines = stacks.waiting_on(self._loop.tasks)
        if lines:
            return lines[0].partition(" @ ")[2]
        code = self._definition.run_fn.__code__
        return f"{code.co_filename}:{code.co_firstlineno} in {code.co_qualname}"


APPLY: Final[dict[type[e.BaseEvent], Callable[[ApplyingMachine, Any], None]]] = {
    e.WorkflowExecutionStarted: ApplyingMachine._apply_started,
    e.WorkflowExecutionSignaled: ApplyingMachine._apply_signal,
    e.WorkflowExecutionCancelRequested: ApplyingMachine._apply_cancel_requested,
    e.WorkflowExecutionUpdateAdmitted: ApplyingMachine._apply_update_admitted,
    e.WorkflowTaskFailed: ApplyingMachine._apply_task_failed,
}
"""What is done with events that answer no request."""


def _awaits_gather(task: Any) -> bool:
    """Whether a gathering stands between a task and what it waits for: that raises when all its parts have ended."""
    waiter = task
    while waiter is not None:
        if isinstance(waiter, _GATHERING):
            return True
        waiter = getattr(waiter, "_fut_waiter", None)
    return False
