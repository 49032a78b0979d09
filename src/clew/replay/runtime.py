"""The runtime of one run: what ``clew.workflow`` talks to.

Owns: the state of the run that code can see, and the wiring of its parts. Never: reads events (the machine does).
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cached_property
from random import Random
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeAlias, final
from uuid import UUID

import msgspec

from clew._metric import MetricMeter
from clew.common import (
    Priority,
    SearchAttributeKey,
    SearchAttributes,
    SearchAttributeUpdate,
    TypedSearchAttributes,
    VersioningBehavior,
    WorkerDeploymentVersion,
)
from clew.converter import (
    PayloadConverter,
    decode_typed_search_attributes,
    encode_search_attribute,
    encode_search_attributes,
)
from clew.model import commands as c
from clew.model import events as e
from clew.model.payload import Payloads, from_stored, payloads_size
from clew.replay import commands as requests
from clew.replay.chance import Chance, is_in_interceptor, uuid4_of, uuid7_of
from clew.replay.handlers import Handlers, current_update
from clew.replay.interception import InnerInbound, InnerOutbound
from clew.replay.local_activities import LocalActivities
from clew.replay.loop import EPOCH, WorkflowLoop
from clew.replay.matching import Ledger
from clew.replay.options import MachineOptions
from clew.replay.outbound import Outbound
from clew.replay.outcome import is_cancellation, is_failure
from clew.replay.recorded_activities import RecordedActivities
from clew.replay.recorded_steps import RecordedSteps
from clew.replay.values import Values, from_header, to_header
from clew.workflow._definition import Definition, QueryDefinition, SignalDefinition, UpdateDefinition
from clew.workflow._interceptor import (
    ContinueAsNewInput,
    SignalChildWorkflowInput,
    SignalExternalWorkflowInput,
    StartActivityInput,
    StartChildWorkflowInput,
    StartLocalActivityInput,
    WorkflowInboundInterceptor,
    WorkflowOutboundInterceptor,
)
from clew.workflow._local_calls import LocalActivityCall
from clew.workflow._runtime import (
    ContinueAsNewError,
    Info,
    ParentInfo,
    ReadOnlyContextError,
    RootInfo,
    Runtime,
    UpdateInfo,
)

if TYPE_CHECKING:
    from clew.workflow._activities import ActivityHandle
    from clew.workflow._children import ChildWorkflowHandle, ExternalWorkflowHandle

_log: Final = logging.getLogger("clew.workflow")


@final
class _Continue(ContinueAsNewError):
    """Carries the command out of the user's code."""

    def __init__(self, command: c.ContinueAsNewWorkflowExecution) -> None:
        super().__init__("Workflow continues as new")
        self.command = command


Condition: TypeAlias = "tuple[Callable[[], bool], contextvars.Context, asyncio.Task[Any] | None]"
"""What is waited for, the context to ask in, and the task that waits."""


@final
class WorkflowRuntime(Runtime):
    """See the module; arguments as those of `WorkflowMachine`."""

    # What many runs neither set nor look at stands here, and not in each. It must not be more than 30 that each sets:
    # CPython 3.11 keeps so many beside the object, and for one more makes a dictionary of all of them.
    is_querying = False
    started: e.WorkflowExecutionStarted
    first_task_time = EPOCH
    task_event: e.WorkflowTaskStarted
    cancel_reason: str | None = None
    details = ""
    inbound_chain: WorkflowInboundInterceptor | None = None
    _memo: dict[str, Any] | None = None
    _info: Info | None = None
    _instance: Any = None
    _chance: Chance | None = None
    _memo_payloads: Mapping[str, Any] = MappingProxyType({})
    _search_attributes: Mapping[str, Any] = MappingProxyType({})
    patches: Mapping[str, bool] = MappingProxyType({})
    recorded_patches: frozenset[str] = frozenset()
    _steps: RecordedSteps | None = None

    def __init__(
        self,
        definition: Definition,
        namespace: str,
        task_queue: str,
        workflow_id: str,
        run_id: str,
        workflow_type: str,
        values: Values,
        ledger: Ledger,
        options: MachineOptions,
        cancel_again: Callable[[], None],
    ) -> None:
        self.definition = definition
        self.namespace = namespace
        self.task_queue = task_queue
        self.workflow_id = workflow_id
        self.run_id = run_id
        self.workflow_type = workflow_type
        self.values = values
        self.ledger = ledger
        self.options = options
        self.read_only_reason = ""
        self.is_replaying_now = True
        self.error: BaseException | None = None
        """What fails the workflow task at hand."""
        self.is_stirred = False
        """Whether something came up that `ApplyingMachine._settle` has to see to, once the code can go no further."""
        self.failure: BaseException | None = None
        """What a handler raised that fails the run."""
        self.applied_event_id = 0
        """The last event that has been applied: the start of a workflow task, or a marker recorded since."""
        self.outbound_chain: WorkflowOutboundInterceptor | None = None
        self.used_handlers: Handlers | None = None
        """`handlers`, if anybody has asked for them: most runs are sent nothing."""
        self.task_version = options.deployment_version
        """Of the worker that has, or had, the task."""
        self.conditions: dict[asyncio.Future[None], Condition] = {}
        self.take_recorded_activity = self.take_recorded_step = None
        self.out = Outbound(ledger, values, self.check_writable, cancel_again, namespace, task_queue)
        self.loop = WorkflowLoop(self, self.out, self._on_loop_error, self.check_writable)  # type: ignore[abstract]
        self.out.loop = self.loop
        self.out.send_signal = self.send_signal
        self.local = LocalActivities(ledger, values, self.loop, self.check_writable, self.out.sleep)

    @property
    def steps(self) -> RecordedSteps:
        """Local steps that a replay passes; a run that is never replayed needs none."""
        steps = self._steps
        if steps is None:
            steps = self._steps = RecordedSteps(self, self.loop, self.local, self.values)
            self.take_recorded_step = steps.taker()
        return steps

    @cached_property
    def activities(self) -> RecordedActivities:
        """Those that a replay passes; a run that is never replayed needs none."""
        row = RecordedActivities(self, self.loop, self.local, self.values, self.ledger)
        self.take_recorded_activity = row.taker()
        return row

    def let_go_of_rows(self) -> None:
        """Have what passes recorded steps forget the run."""
        if self._steps is not None:
            self._steps.let_go()
        if self.take_recorded_activity is not None:
            self.activities.let_go()

    @property
    def label(self) -> str:
        """Names the run, for the log."""
        return f"workflow_type={self.workflow_type} workflow_id={self.workflow_id} run_id={self.run_id}"

    @property
    def handlers(self) -> Handlers:
        """The handlers of the run."""
        handlers = self.used_handlers
        if handlers is None:
            handlers = self.used_handlers = Handlers(self)
        return handlers

    @property
    def logger_extra(self) -> Mapping[str, Any]:  # type: ignore[override]
        return {
            "attempt": self.started.attempt,
            "namespace": self.namespace,
            "run_id": self.run_id,
            "task_queue": self.task_queue,
            "workflow_id": self.workflow_id,
            "workflow_type": self.workflow_type,
        }

    # --- for the machine -----------------------------------------------------------------------------------

    def begin(self, started: e.WorkflowExecutionStarted) -> None:
        """Take what the run started with."""
        self.started = started
        if started.memo:
            self._memo_payloads = started.memo
        if started.search_attributes:
            self._search_attributes = started.search_attributes
        if self.options.interceptors:
            chain: WorkflowInboundInterceptor = InnerInbound(self)
            for interceptor in reversed(self.options.interceptors):
                chain = interceptor(chain)
            self.inbound_chain = chain
            chain.init(InnerOutbound(self))

    def set_instance(self, instance: Any) -> None:
        """Take the workflow object."""
        self._instance = instance

    def reseed(self, run_id: str) -> None:
        """Derive randomness from another run id, as a reset asks."""
        self.chance().reseed(run_id)

    def chance(self) -> Chance:
        """The random streams, made when first needed."""
        if self._chance is None:
            self._chance = Chance(self.started.original_execution_run_id or self.run_id)
        return self._chance

    def check_writable(self, what: str) -> None:
        """Refuse a change where nothing may be changed.

        Raises:
            ReadOnlyContextError: A query handler, validator or condition is running.
        """
        if self.read_only_reason:
            raise ReadOnlyContextError(
                f"{self.read_only_reason} of workflow {self.workflow_type!r} tried to {what}. It must not change "
                "anything; use a signal or an update."
            )

    def check_conditions(self) -> bool:
        """Ask all conditions that are waited for; say whether one holds."""
        held = False
        held_back = self.loop.held_task
        for future, (predicate, context, task) in list(self.conditions.items()):
            if future.done():
                del self.conditions[future]
                continue
            if task is held_back and task is not None:
                continue  # What it is held back for may change the answer.
            try:
                holds = self._ask(predicate, context)
            except Exception as error:  # noqa: BLE001 (it is the waiting code's error)
                future.set_exception(error)
            else:
                if not holds:
                    continue
                future.set_result(None)
            del self.conditions[future]
            held = True
        return held

    def _ask(self, predicate: Callable[[], bool], context: contextvars.Context) -> bool:
        outer, self.read_only_reason = self.read_only_reason, "A condition"
        try:
            return bool(context.run(predicate))
        finally:
            self.read_only_reason = outer

    def handler_failed(self, error: Exception) -> None:
        """Take what a signal handler raised."""
        if is_cancellation(error):
            return
        if is_failure(error, self.failure_types):
            self.failure = self.failure or error
            self.is_stirred = True
        else:
            self.fail_task(error)

    def fail_task(self, error: BaseException) -> None:
        """Fail the workflow task at hand."""
        self.error = self.error or error
        self.is_stirred = True

    def is_update_failure(self, error: BaseException) -> bool:
        """Whether what an update handler raised is an outcome of the update."""
        return is_cancellation(error) or is_failure(error, self.failure_types)

    @property
    def failure_types(self) -> tuple[type[BaseException], ...]:
        """Exceptions that worker or workflow name as failures."""
        return (*self.options.failure_exception_types, *self.definition.failure_exception_types)

    def _on_loop_error(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        _log.error("workflow.lost_error message=%s %s", context.get("message"), self.label, exc_info=error)

    # --- what the run knows of itself ----------------------------------------------------------------------

    def info(self) -> Info:
        return self.info_directly() if self.outbound_chain is None else self.outbound_chain.info()

    def info_directly(self) -> Info:
        """Give the info without interceptors."""
        if self._info is None:
            self._info = self._make_info()
        return self._info

    def _make_info(self) -> Info:
        started = self.started
        parent, root = started.parent, started.root
        return Info(
            attempt=started.attempt,
            continued_run_id=started.continued_execution_run_id or None,
            cron_schedule=started.cron_schedule or None,
            execution_timeout=started.workflow_execution_timeout or None,
            first_execution_run_id=started.first_execution_run_id or self.run_id,
            headers=from_header(started.header),
            namespace=self.namespace,
            original_run_id=started.original_execution_run_id or self.run_id,
            parent=ParentInfo(parent.namespace or self.namespace, parent.run_id, parent.workflow_id)
            if parent
            else None,
            priority=started.priority or Priority(),
            raw_memo={key: from_stored(stored) for key, stored in self._memo_payloads.items()},
            retry_policy=started.retry_policy,
            root=RootInfo(root.run_id, root.workflow_id) if root else None,
            run_id=self.run_id,
            run_timeout=started.workflow_run_timeout or None,
            search_attributes=self._untyped_search_attributes(),
            start_time=self.first_task_time,
            task_queue=self.task_queue,
            task_timeout=started.workflow_task_timeout,
            typed_search_attributes=self._typed_search_attributes(),
            workflow_id=self.workflow_id,
            workflow_start_time=started.event_time,
            workflow_type=self.workflow_type,
        )

    def _typed_search_attributes(self) -> TypedSearchAttributes:
        return decode_typed_search_attributes(self._search_attributes)

    def _untyped_search_attributes(self) -> SearchAttributes:
        found: dict[str, Any] = {}
        for pair in self._typed_search_attributes():
            value: Any = pair.value
            found[pair.key.name] = list(value) if isinstance(value, (list, tuple)) else [value]  # pyright: ignore[reportUnknownArgumentType]
        return found

    def instance(self) -> Any:
        return self._instance

    def payload_converter(self) -> PayloadConverter:
        return self.values.payload_converter

    def metric_meter(self) -> MetricMeter:
        meter = self.options.metric_meter
        if meter is None or self.is_replaying_now:
            return MetricMeter.noop
        return meter.with_additional_attributes({"workflow_type": self.workflow_type})

    def extern_functions(self) -> Mapping[str, Callable[..., Any]]:
        return self.options.extern_functions

    def deployment_version(self) -> WorkerDeploymentVersion | None:
        return self.task_version

    def history_length(self) -> int:
        return self.task_event.event_id

    def history_size(self) -> int:
        return self.task_event.history_size_bytes

    def is_continue_as_new_suggested(self) -> bool:
        return self.task_event.suggest_continue_as_new

    # --- time and chance -----------------------------------------------------------------------------------

    def now(self) -> datetime:
        return self.loop.moment

    def time_ns(self) -> int:
        since = self.loop.moment - EPOCH
        return (since.days * 86_400 + since.seconds) * 1_000_000_000 + since.microseconds * 1_000

    def random(self) -> Random:
        self.check_writable("draw a random number")
        return self.chance().generator()

    def new_random(self, name: str) -> Random:
        return self.chance().named(name)

    def random_seed(self) -> int:
        return self.chance().seed

    def register_random_seed_callback(self, callback: Callable[[int], None]) -> None:
        self.chance().on_reseed(callback)

    def uuid4(self) -> UUID:
        return uuid4_of(self.random())

    def uuid7(self) -> UUID:
        return uuid7_of(self.random(), self.time_ns() // 1_000_000)

    # --- waiting -------------------------------------------------------------------------------------------

    def sleep(self, seconds: float, summary: str | None) -> Coroutine[Any, Any, None]:
        return self.out.sleep(seconds, summary)

    async def wait_condition(
        self, predicate: Callable[[], bool], timeout: float | None, timeout_summary: str | None
    ) -> None:
        self.check_writable("wait for a condition")
        context = contextvars.copy_context()
        if self._ask(predicate, context):
            return
        if timeout is not None and timeout <= 0:
            await asyncio.sleep(0)
            if not self._ask(predicate, context):
                raise TimeoutError("The condition did not hold")
            return
        future = self.loop.create_future()
        self.conditions[future] = (predicate, context, asyncio.current_task(self.loop))
        timer = None
        try:
            if timeout is not None:
                timer = self.loop.call_later(timeout, _time_out, future, summary=timeout_summary)
            await future
        finally:
            if timer is not None:
                timer.cancel()
            self.conditions.pop(future, None)

    # --- what happens elsewhere ----------------------------------------------------------------------------

    def start_activity(self, input: StartActivityInput) -> ActivityHandle[Any]:
        chain = self.outbound_chain
        if chain is None:
            return self.out.start_activity(input)
        token = is_in_interceptor.set(True)
        try:
            return chain.start_activity(input)
        finally:
            is_in_interceptor.reset(token)

    def execute_activity(self, input: StartActivityInput) -> Awaitable[Any]:
        if self.outbound_chain is None:
            return self.out.activity_result(self.out.schedule_activity(input))
        return self.start_activity(input)

    def start_local_activity(self, call: LocalActivityCall, args: Sequence[Any]) -> ActivityHandle[Any]:
        chain = self.outbound_chain
        if chain is None:
            self._check_runs_local(call)
            return self.local.start(call, args)
        token = is_in_interceptor.set(True)
        try:
            return chain.start_local_activity(call.input(args))
        finally:
            is_in_interceptor.reset(token)

    def execute_local_activity(self, call: LocalActivityCall, args: Sequence[Any]) -> Awaitable[Any]:
        if self.outbound_chain is None:
            if not self.options.runs_local_activities:
                self._check_runs_local(call)
            return self.local.result(self.local.ask(call, args))
        return self.start_local_activity(call, args)

    def start_local_activity_directly(self, input: StartLocalActivityInput) -> ActivityHandle[Any]:
        """Start a local activity as interceptors leave it."""
        call = LocalActivityCall(input)
        self._check_runs_local(call)
        return self.local.start(call, input.args)

    def _check_runs_local(self, call: LocalActivityCall) -> None:
        if not self.options.runs_local_activities:
            raise RuntimeError(
                f"Local activity {call.activity!r} cannot run: this worker has no part that runs local activities. "
                "Use execute_activity, or another worker."
            )

    async def start_child_workflow(self, input: StartChildWorkflowInput) -> ChildWorkflowHandle[Any, Any]:
        self.check_writable("start a child workflow")
        if not input.id:
            input.id = str(self.chance().machine_uuid())
        chain = self.outbound_chain
        if chain is None:
            return await self.out.start_child(input)
        token = is_in_interceptor.set(True)
        try:
            return await chain.start_child_workflow(input)
        finally:
            is_in_interceptor.reset(token)

    def get_external_workflow_handle(self, workflow_id: str, run_id: str | None) -> ExternalWorkflowHandle[Any]:
        return self.out.external(workflow_id, run_id)

    async def send_signal(self, target: e.ExecutionRef, name: str, args: Sequence[Any], is_child: bool) -> None:
        """Signal another workflow, past the interceptors."""
        chain = self.outbound_chain
        if chain is None:
            return await self.out.signal_external(target, name, args, is_child)
        token = is_in_interceptor.set(True)
        try:
            if is_child:
                await chain.signal_child_workflow(SignalChildWorkflowInput(name, args, target.workflow_id))
            else:
                run_id = target.run_id or None
                await chain.signal_external_workflow(
                    SignalExternalWorkflowInput(name, args, target.namespace, target.workflow_id, run_id)
                )
        finally:
            is_in_interceptor.reset(token)

    def continue_as_new(self, input: ContinueAsNewInput) -> NoReturn:
        self.check_writable("continue as new")
        if self.outbound_chain is not None:
            self.outbound_chain.continue_as_new(input)
        self.continue_as_new_directly(input)

    def continue_as_new_directly(self, input: ContinueAsNewInput) -> NoReturn:
        """Continue as new without interceptors."""
        name = input.workflow or self.workflow_type
        values = self.values
        raise _Continue(
            c.ContinueAsNewWorkflowExecution(
                workflow_type=name,
                task_queue=input.task_queue or "",
                input=values.encode(input.args, "argument of workflow", name),
                workflow_run_timeout=input.run_timeout or timedelta(0),
                workflow_task_timeout=input.task_timeout or timedelta(0),
                retry_policy=input.retry_policy,
                header=to_header(input.headers),
                memo=values.encode_mapping(input.memo, "memo", name),
                search_attributes=encode_search_attributes(input.search_attributes) or None,
                initial_versioning_behavior=input.initial_versioning_behavior or VersioningBehavior.UNSPECIFIED,
            )
        )

    # --- versions, memo, search attributes -----------------------------------------------------------------

    def patched(self, patch_id: str, is_deprecated: bool) -> bool:
        answer = self.patches.get(patch_id)
        if answer is None:
            self.check_writable(f"check patch {patch_id!r} for the first time")
            answer = not self.is_replaying_now or patch_id in self.recorded_patches
            self.patches = {**self.patches, patch_id: answer}
            if answer:
                marker: dict[str, Payloads] = {
                    "patch_id": (msgspec.Raw(msgspec.json.encode(patch_id)),),
                    "deprecated": (msgspec.Raw(b"true" if is_deprecated else b"false"),),
                }
                self.ledger.add(requests.RecordPatch(patch_id, is_deprecated, marker))
                if not is_deprecated:
                    self._list_patches()
        return answer

    def _list_patches(self) -> None:
        """Let people search runs by their patches."""
        key = SearchAttributeKey.for_keyword_list(requests.CHANGE_VERSION)
        listed = [patch_id for patch_id, answer in self.patches.items() if answer]
        payload = encode_search_attribute(key, listed)
        if payloads_size((payload,)) <= requests.CHANGE_VERSION_BYTES_MAX:
            self.ledger.add(requests.UpsertSearchAttributes({key.name: payload}, is_optional=True))
            self._search_attributes = {**self._search_attributes, key.name: payload}
            self._info = None

    def upsert_memo(self, updates: Mapping[str, Any]) -> None:
        self.check_writable("change the memo")
        payloads = self.values.encode_mapping(updates, "memo", self.workflow_type)
        if payloads is None:
            return
        self.ledger.add(requests.UpsertMemo(payloads))
        memo = dict(self._memo_payloads)
        for key, value in updates.items():
            if value is None:
                memo.pop(key, None)
            else:
                memo[key] = payloads[key]
        self._memo_payloads = memo
        self._memo = self._info = None

    def memo(self) -> Mapping[str, Any]:
        if self._memo is None:
            self._memo = {k: self.values.decode((stored,), None)[0] for k, stored in self._memo_payloads.items()}
        return self._memo

    def memo_value(self, key: str, default: Any, type_hint: Any | None) -> Any:
        stored = self._memo_payloads.get(key)
        if stored is None:
            if default is ...:
                raise KeyError(
                    f"The memo has no value {key!r}; it has: {', '.join(sorted(self._memo_payloads)) or 'none'}."
                )
            return default
        return self.values.decode((stored,), None if type_hint is None else (type_hint,))[0]

    def upsert_search_attributes(self, updates: SearchAttributes | Sequence[SearchAttributeUpdate[Any]]) -> None:
        self.check_writable("change search attributes")
        payloads = encode_search_attributes(updates)
        if payloads:
            self.ledger.add(requests.UpsertSearchAttributes(payloads))
            self._search_attributes = {**self._search_attributes, **payloads}
            self._info = None

    # --- handlers ------------------------------------------------------------------------------------------

    def signal_handler(self, name: str | None) -> Callable[..., Any] | None:
        return self.handlers.bound_signal(name or "") if name in self.handlers.signals else None

    def set_signal_handler(self, name: str | None, definition: SignalDefinition | None) -> None:
        self.check_writable("set a signal handler")
        self.handlers.set_signal(name, definition)

    def query_handler(self, name: str | None) -> Callable[..., Any] | None:
        return self.handlers.bound_query(name or "") if name in self.handlers.queries else None

    def set_query_handler(self, name: str | None, definition: QueryDefinition | None) -> None:
        self.check_writable("set a query handler")
        _set(self.handlers.queries, name, definition)

    def update_handler(self, name: str | None) -> Callable[..., Any] | None:
        return self.handlers.bound_update(name or "") if name in self.handlers.updates else None

    def set_update_handler(self, name: str | None, definition: UpdateDefinition | None) -> None:
        self.check_writable("set an update handler")
        _set(self.handlers.updates, name, definition)

    def all_handlers_finished(self) -> bool:
        return self.handlers.all_finished()

    def current_update_info(self) -> UpdateInfo | None:
        return current_update.get()

    # --- state of the run ----------------------------------------------------------------------------------

    def current_details(self) -> str:
        return self.details

    def set_current_details(self, description: str) -> None:
        self.check_writable("set the current details")
        self.details = description

    def cancellation_reason(self) -> str | None:
        return self.cancel_reason

    def last_completion_result(self, type_hint: Any | None) -> Any:
        return self.values.decode_result(self.started.last_completion_result or (), type_hint)

    def has_last_completion_result(self) -> bool:
        return bool(self.started.last_completion_result)

    def last_failure(self) -> BaseException | None:
        failure = self.started.continued_failure
        return None if failure is None else self.values.from_failure(failure)

    def is_failure_exception(self, error: BaseException) -> bool:
        return is_failure(error, self.failure_types)

    def is_replaying(self) -> bool:
        return self.is_replaying_now

    def is_replaying_history_events(self) -> bool:
        return self.is_replaying_now and not self.is_querying

    def is_read_only(self) -> bool:
        return bool(self.read_only_reason)


def _time_out(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_exception(TimeoutError("The condition did not hold in time"))


def _set(handlers: dict[str | None, Any], name: str | None, definition: Any) -> None:
    if definition is None:
        handlers.pop(name, None)
    else:
        handlers[name] = definition
