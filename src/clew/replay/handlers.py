"""Signals, updates and queries: from what came in to the user's handler and back.

Owns: which handler takes what, signals that wait for one, handlers in progress, and the rules for queries and
validators. Never: the order in which messages and other events are applied (the machine has it).

How it works: a signal without a handler, or whose payload no handler can take, is kept; it is delivered when a
handler that can take it is set, and until then `undelivered` says what waits and why. Queries and validators run
read-only: a request to the engine, a new task or a changed attribute is an error that names the handler. Handlers
that are not async run at once, without a task.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextvars import Context, ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, final

from clew.common import RawValue
from clew.converter import decode_arguments, to_stored_payloads
from clew.exceptions import ApplicationError, CancelledError, DataConversionError
from clew.model import events as e
from clew.model.inputs import QueryResult, UpdateRejection
from clew.model.payload import Payloads, from_stored
from clew.replay import stacks
from clew.replay.chance import is_in_interceptor
from clew.replay.commands import AcceptUpdate, CompleteUpdate
from clew.replay.values import from_header
from clew.service.requests import QueryTask
from clew.workflow._definition import HandlerUnfinishedPolicy, QueryDefinition, SignalDefinition, UpdateDefinition
from clew.workflow._interceptor import HandleQueryInput, HandleSignalInput, HandleUpdateInput
from clew.workflow._runtime import ReadOnlyContextError, UpdateInfo

if TYPE_CHECKING:
    from clew.replay.runtime import WorkflowRuntime

_log: Final = logging.getLogger("clew.workflow")

current_update: Final[ContextVar[UpdateInfo | None]] = ContextVar("clew_current_update", default=None)
"""The update whose handler runs in this context."""

STACK_TRACE: Final = "__stack_trace"
ENHANCED_STACK_TRACE: Final = "__enhanced_stack_trace"
METADATA: Final = ("__temporal_workflow_metadata", "__clew_workflow_metadata")


@final
@dataclass(slots=True)
class _Waiting:
    """A signal that no handler has taken."""

    event: e.WorkflowExecutionSignaled
    reason: str


@final
@dataclass(slots=True)
class _Running:
    """A handler in progress."""

    kind: str
    name: str
    policy: HandlerUnfinishedPolicy
    update_id: str = ""


@final
class Handlers:
    """The handlers of one run."""

    def __init__(self, runtime: WorkflowRuntime) -> None:
        definition = runtime.definition
        self._runtime = runtime
        self.signals: dict[str | None, SignalDefinition] = dict(definition.signals)
        self.queries: dict[str | None, QueryDefinition] = dict(definition.queries)
        self.updates: dict[str | None, UpdateDefinition] = dict(definition.updates)
        self._waiting: list[_Waiting] = []
        self._running: dict[int, _Running] = {}
        self._run_count = 0
        self.rejections: list[UpdateRejection] = []
        self.has_had_updates = False

    # --- signals -------------------------------------------------------------------------------------------

    def apply_signal(self, event: e.WorkflowExecutionSignaled) -> None:
        """Take a signal from history."""
        reason = self._deliver(event)
        if reason:
            self._waiting.append(_Waiting(event, reason))
            if not self._runtime.is_replaying_now:
                _log.warning(
                    "workflow.signal_kept signal=%s event_id=%d reason=%s %s",
                    event.signal_name, event.event_id, reason, self._runtime.label,
                )  # fmt: skip

    def _deliver(self, event: e.WorkflowExecutionSignaled) -> str:
        """Give a signal to its handler; say why that was not possible, or nothing."""
        name = event.signal_name
        definition = self.signals.get(name) or self.signals.get(None)
        if definition is None:
            known = ", ".join(sorted(n for n in self.signals if n)) or "none"
            return f"there is no handler for it (handlers: {known})"
        try:
            args = self._arguments(definition, name, event.input, f"signal {name!r}")
        except DataConversionError as error:
            return str(error)
        self._start_signal(definition, name, args, event.header)
        return ""

    def _start_signal(
        self, definition: SignalDefinition, name: str, args: Sequence[Any], header: e.Header | None
    ) -> None:
        runtime = self._runtime
        context = runtime.loop.context.copy()
        call: Callable[..., Any]
        if runtime.inbound_chain is not None:
            call = runtime.inbound_chain.handle_signal
            args = (HandleSignalInput(name, args, from_header(header)),)
            context.run(is_in_interceptor.set, True)
        else:
            call = self._bind(definition)
            if not definition.is_async:
                self._run_at_once(context, call, args)
                return
        self._start(_Running("signal", name, definition.unfinished_policy), call(*args), context)

    def _run_at_once(self, context: Context, call: Callable[..., Any], args: Sequence[Any]) -> None:
        try:
            result = context.run(call, *args)
        except asyncio.CancelledError:
            return  # it gave up, as one that is a task does that is cancelled
        except Exception as error:  # noqa: BLE001 (the outcome rule decides)
            self._runtime.handler_failed(error)
            return
        if inspect.isawaitable(result):
            self._start(_Running("signal", "", HandlerUnfinishedPolicy.WARN_AND_ABANDON), _await(result), context)

    def _start(self, running: _Running, work: Coroutine[Any, Any, Any], context: Context) -> None:
        number = self._begin(running)
        self._runtime.loop.create_task(self._signal_task(number, work), name=f"signal-{running.name}", context=context)

    async def _signal_task(self, number: int, work: Coroutine[Any, Any, Any]) -> None:
        try:
            await work
        except Exception as error:  # noqa: BLE001 (the outcome rule decides)
            self._runtime.handler_failed(error)
        finally:
            self._running.pop(number, None)

    def _begin(self, running: _Running) -> int:
        self._run_count += 1
        self._running[self._run_count] = running
        return self._run_count

    def set_signal(self, name: str | None, definition: SignalDefinition | None) -> None:
        """Set or remove a handler; signals that waited for it are delivered."""
        if definition is None:
            self.signals.pop(name, None)
            return
        self.signals[name] = definition
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            reason = self._deliver(one.event) if name in (None, one.event.signal_name) else one.reason
            if reason:
                self._waiting.append(_Waiting(one.event, reason))

    def undelivered(self) -> list[str]:
        """Give one line for each signal that no handler has taken."""
        return [
            f"signal {one.event.signal_name!r} (event {one.event.event_id}) is kept: {one.reason}"
            for one in self._waiting
        ]

    # --- updates -------------------------------------------------------------------------------------------

    def apply_update(self, request: e.UpdateRequest, *, is_recorded: bool) -> AcceptUpdate | None:
        """Take an update: validate it unless history says it was accepted, and start its handler.

        Returns:
            The acceptance; None if it was rejected.
        """
        runtime = self._runtime
        name = request.name
        definition = self.updates.get(name) or self.updates.get(None)
        self.has_had_updates = True
        if definition is None:
            known = ", ".join(sorted(n for n in self.updates if n)) or "none"
            error = ApplicationError(
                f"Workflow {runtime.workflow_type!r} has no handler for update {name!r}; it has: {known}. "
                "Check the name, or set a handler.",
                type="UnknownUpdate",
            )
            self._reject(request, error, is_recorded)
            return None
        try:
            args = self._arguments(definition, name, request.input, f"update {name!r}")
            if not is_recorded:
                self._validate(definition, request, args)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 (whatever a validator raises refuses the update)
            self._reject(request, error, is_recorded)
            return None
        acceptance = AcceptUpdate(request.update_id)
        runtime.ledger.add(acceptance)
        self._start_update(definition, request, args)
        return acceptance

    def _reject(self, request: e.UpdateRequest, error: BaseException, is_recorded: bool) -> None:
        if is_recorded:
            raise error
        failure = self._runtime.values.to_failure(error)
        message_id = f"{request.update_id}/reject"
        self.rejections.append(UpdateRejection(message_id=message_id, update_id=request.update_id, failure=failure))

    def _validate(self, definition: UpdateDefinition, request: e.UpdateRequest, args: Sequence[Any]) -> None:
        if definition.validator is None and self._runtime.inbound_chain is None:
            return
        asked = HandleUpdateInput(request.update_id, request.name, args, from_header(request.header))
        context = self._runtime.loop.context.copy()
        context.run(current_update.set, UpdateInfo(request.update_id, request.name))
        self._read_only(f"The validator of update {request.name!r}", context, self._call_validator_chain, asked)

    def _call_validator_chain(self, asked: HandleUpdateInput) -> None:
        chain = self._runtime.inbound_chain
        if chain is None:
            self.call_validator(asked.update, asked.args)
        else:
            is_in_interceptor.set(True)
            chain.handle_update_validator(asked)

    def call_validator(self, name: str, args: Sequence[Any]) -> None:
        """Call the validator of an update, if it has one."""
        definition = self.updates.get(name) or self.updates.get(None)
        if definition is not None and definition.validator is not None:
            validator: Callable[..., Any] = definition.validator
            if definition.is_method:
                validator(self._runtime.instance(), *args)
            else:
                validator(*args)

    def _start_update(self, definition: UpdateDefinition, request: e.UpdateRequest, args: Sequence[Any]) -> None:
        runtime = self._runtime
        context = runtime.loop.context.copy()
        context.run(current_update.set, UpdateInfo(request.update_id, request.name))
        call: Callable[..., Any]
        if runtime.inbound_chain is not None:
            call = runtime.inbound_chain.handle_update_handler
            args = (HandleUpdateInput(request.update_id, request.name, args, from_header(request.header)),)
            context.run(is_in_interceptor.set, True)
        else:
            call = self._bind(definition)
            if not definition.is_async:
                self._finish_update(request, definition, lambda: context.run(call, *args))
                return
        number = self._begin(_Running("update", request.name, definition.unfinished_policy, request.update_id))
        work = self._update_task(number, request, definition, call(*args))
        runtime.loop.create_task(work, name=f"update-{request.name}-{request.update_id}", context=context)

    async def _update_task(
        self, number: int, request: e.UpdateRequest, definition: UpdateDefinition, work: Coroutine[Any, Any, Any]
    ) -> None:
        try:
            result = await work
        except BaseException as error:
            self._finish_update(request, definition, _raising(error))
            if not isinstance(error, (Exception, asyncio.CancelledError)):
                raise
        else:
            self._finish_update(request, definition, lambda: result)
        finally:
            self._running.pop(number, None)

    def _finish_update(self, request: e.UpdateRequest, definition: UpdateDefinition, get: Callable[[], Any]) -> None:
        runtime = self._runtime
        try:
            result = get()
            outcome = e.UpdateOutcome(result=runtime.values.encode((result,), "result of update", request.name))
        except BaseException as error:  # noqa: BLE001 (the outcome rule decides)
            if not runtime.is_update_failure(error):
                runtime.fail_task(error)
                return
            if type(error) is asyncio.CancelledError:
                error = CancelledError(f"The handler of update {request.name!r} was cancelled")
            outcome = e.UpdateOutcome(failure=runtime.values.to_failure(error))
        runtime.ledger.add(CompleteUpdate(request.update_id, outcome))

    # --- queries -------------------------------------------------------------------------------------------

    def answer(self, query: QueryTask) -> QueryResult:
        """Answer one query; errors are part of the answer."""
        try:
            result = self._query(query)
            payloads = (
                to_stored_payloads(self._runtime.values.payload_converter, (result,))
                if query.query_type in (STACK_TRACE, ENHANCED_STACK_TRACE, *METADATA)
                else self._runtime.values.encode((result,), "result of query", query.query_type)
            )
            return QueryResult(query_id=query.query_id, result=payloads)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 (a failed query is an answer)
            return QueryResult(query_id=query.query_id, failure=self._runtime.values.to_failure(error))

    def _query(self, query: QueryTask) -> Any:
        name = query.query_type
        if name == STACK_TRACE:
            return stacks.stack_text(self._runtime.loop.tasks)
        if name == ENHANCED_STACK_TRACE:
            return stacks.enhanced_stack(self._runtime.loop.tasks)
        if name in METADATA:
            return self.metadata()
        definition = self.queries.get(name) or self.queries.get(None)
        if definition is None:
            known = ", ".join(sorted(n for n in self.queries if n)) or "none"
            raise ApplicationError(
                f"Workflow {self._runtime.workflow_type!r} has no query {name!r}; it has: {known}.", type="UnknownQuery"
            )
        args = self._arguments(definition, name, query.query_args, f"query {name!r}")
        context = self._runtime.loop.context.copy()
        return self._read_only(f"The handler of query {name!r}", context, self._call_query, definition, query, args)

    def _call_query(self, definition: QueryDefinition, query: QueryTask, args: Sequence[Any]) -> Any:
        chain = self._runtime.inbound_chain
        if chain is None:
            result = self._bind(definition)(*args)
            if inspect.isawaitable(result):
                _close(result)
                raise ReadOnlyContextError(
                    f"The handler of query {query.query_type!r} is async; a query answers at once."
                )
            return result
        is_in_interceptor.set(True)
        asked = HandleQueryInput(query.query_id, query.query_type, args, from_header(query.header))
        work = chain.handle_query(asked)
        try:
            work.send(None)
        except StopIteration as done:
            return done.value
        work.close()
        raise ReadOnlyContextError(f"Query {query.query_type!r} waits for something; a query answers at once.")

    def _read_only(self, what: str, context: Context, call: Callable[..., Any], *args: Any) -> Any:
        """Call something that must change nothing, and undo what attributes of the workflow it set."""
        runtime = self._runtime
        attributes: dict[str, Any] = getattr(runtime.instance(), "__dict__", {})
        before = dict(attributes)
        outer, runtime.read_only_reason = runtime.read_only_reason, what
        try:
            return context.run(call, *args)
        finally:
            runtime.read_only_reason = outer
            changed = [
                n for n in {**before, **attributes} if attributes.get(n, before) is not before.get(n, attributes)
            ]
            if changed:
                attributes.clear()
                attributes.update(before)
                names = ", ".join(f"self.{n}" for n in sorted(changed))
                raise ReadOnlyContextError(
                    f"{what} of workflow {runtime.workflow_type!r} changed {names}, which was undone. Queries and "
                    "validators must not change anything; use a signal or an update."
                )

    def metadata(self) -> Mapping[str, Any]:
        """Give what the run offers, in the shape of the published query."""
        return {
            "definition": {
                "type": self._runtime.workflow_type,
                "queryDefinitions": [_offer(n, d.description) for n, d in self.queries.items()],
                "signalDefinitions": [_offer(n, d.description) for n, d in self.signals.items()],
                "updateDefinitions": [_offer(n, d.description) for n, d in self.updates.items()],
            },
            "currentDetails": self._runtime.details,
        }

    # --- shared --------------------------------------------------------------------------------------------

    def all_finished(self) -> bool:
        """Whether no handler is in progress."""
        return not self._running

    def warn_unfinished(self) -> None:
        """Name the handlers that the end of the run abandons, once."""
        names = [
            f"{one.kind} {one.name!r}{f' ({one.update_id})' if one.update_id else ''}"
            for one in self._running.values()
            if one.policy is HandlerUnfinishedPolicy.WARN_AND_ABANDON
        ]
        if names:
            _log.warning(
                "workflow.unfinished_handlers %s were abandoned by the end of the run; wait for "
                "workflow.all_handlers_finished() first, or give them unfinished_policy=ABANDON. %s",
                ", ".join(names), self._runtime.label,
            )  # fmt: skip

    def bound_signal(self, name: str) -> Callable[..., Any]:
        """Give the function that handles a signal, bound to the workflow."""
        return self._bind(self.signals.get(name) or self.signals[None])

    def bound_query(self, name: str) -> Callable[..., Any]:
        """Give the function that answers a query, bound to the workflow."""
        return self._bind(self.queries.get(name) or self.queries[None])

    def bound_update(self, name: str) -> Callable[..., Any]:
        """Give the function that handles an update, bound to the workflow."""
        return self._bind(self.updates.get(name) or self.updates[None])

    def _bind(self, definition: SignalDefinition | QueryDefinition | UpdateDefinition) -> Callable[..., Any]:
        if not definition.is_method:
            return definition.fn
        bound: Callable[..., Any] = definition.fn.__get__(self._runtime.instance())
        return bound

    def _arguments(
        self,
        definition: SignalDefinition | QueryDefinition | UpdateDefinition,
        name: str,
        payloads: Payloads,
        what: str,
    ) -> Sequence[Any]:
        if definition.name is None:
            return (name, [RawValue(from_stored(stored)) for stored in payloads])
        return decode_arguments(self._runtime.values.payload_converter, payloads, definition.signature, what)


def _offer(name: str | None, description: str | None) -> dict[str, str]:
    offer = {"name": name} if name else {}
    return offer | ({"description": description} if description else {})


async def _await(awaitable: Any) -> None:
    await awaitable


def _close(awaitable: Any) -> None:
    close = getattr(awaitable, "close", None)
    if close is not None:
        close()


def _raising(error: BaseException) -> Callable[[], Any]:
    def get() -> Any:
        raise error

    return get
