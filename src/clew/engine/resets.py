"""Resets: reading what a run goes back to, and committing both runs together (semantics 1.9).

Owns: the histories that a reset is decided on, and its attempts. Never: decides what a reset does (``core.reset``).

How it works: the decision is taken on the latest run of the workflow id, which it may have to end. Its history is read
from the store; what has come since, and may not be durable yet, is taken from memory in the very turn of the loop in
which it is decided. A lost guard reads everything anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from datetime import datetime
from typing import Any, Final

from clew.core.decisions import decide_reset
from clew.core.reset import ResetSource, RunEvents, check_reset, made_by_reset
from clew.core.state import ExecutionState
from clew.core.transition import Transition
from clew.engine.funnel import Decision, Funnel, Operation
from clew.engine.history import read_events
from clew.engine.locate import Locator
from clew.engine.namespaces import Namespaces
from clew.engine.runs import RunEntry
from clew.model import events as e
from clew.model.events import Event
from clew.model.inputs import ResetWorkflowRequest
from clew.model.rejection import Rejection, RejectionCode
from clew.ports.entropy import Entropy
from clew.ports.store import Store
from clew.service.errors import RPCError
from clew.service.requests import ResetWorkflowResponse

READS_MAX: Final = 20
"""Times the history of a run that keeps changing is read on, before the caller is told to try later."""

FOLLOWED_MAX: Final = 1_000
"""Runs of a chain, after the one that a reset goes back to, whose signals and updates come along."""


class Resets:
    """See the module docstring. All methods belong to the engine's loop."""

    def __init__(
        self, *, store: Store, entropy: Entropy, funnel: Funnel, locator: Locator, namespaces: Namespaces
    ) -> None:
        self._store = store
        self._entropy = entropy
        self._funnel = funnel
        self._locator = locator
        self._namespaces = namespaces

    def reset(
        self, request: ResetWorkflowRequest, future: asyncio.Future[ResetWorkflowResponse]
    ) -> Awaitable[ResetWorkflowResponse]:
        """Go on from an earlier point of a run, as a new run.

        The future fails with `RPCError`: ``invalid_argument``, ``workflow_not_found``, ``namespace_not_found`` …
        """
        try:
            refusal = check_reset(request, self._namespaces.get(request.namespace).limits)
        except RPCError as error:
            future.set_exception(error)
            return future
        if refusal is not None:
            future.set_exception(RPCError(refusal))
            return future
        operation = Operation(lambda state, now: None, future, reply=_answer)

        async def locate() -> RunEntry:
            entry, operation.decide = await self._prepare(request)
            return entry

        operation.locate = locate
        self._funnel.spawn(self._funnel.retry(operation))
        return future

    async def _prepare(self, request: ResetWorkflowRequest) -> tuple[RunEntry, Decision]:
        """The latest run, and the decision on it; to be taken in the same turn of the loop."""
        while True:
            latest, decide = await self._prepare_on_latest(request)
            # Another reset may have ended it while its history was read. Both new runs would follow the same one, and
            # be written in one unit, in which neither is seen to be in the way of the other.
            if latest.successor is None:
                return latest, decide

    async def _prepare_on_latest(self, request: ResetWorkflowRequest) -> tuple[RunEntry, Decision]:
        namespace, workflow_id = request.namespace, request.workflow_id
        latest = await self._locator.find_current(namespace, workflow_id)
        made = made_by_reset(latest.state, request)
        if made:
            return latest, lambda state, now: Transition(reply=made)
        base = latest
        if request.run_id not in ("", latest.state.run_id):
            base = await self._locator.find(namespace, workflow_id, request.run_id)
        events = [] if base is latest else await self._read(base)
        later = [] if base is latest else await self._read_later(base, events, latest)
        present = await self._read_to_present(latest)
        if base is latest:
            events = present
        elif later and later[-1][0] == latest.state.run_id:
            later[-1] = (latest.state.run_id, present)
        elif latest.state.goes_on_with(base.state.run_id):
            later.append((latest.state.run_id, present))
        source = ResetSource(base=base.state, events=events, later=later)
        limits = self._namespaces.get(namespace).limits
        run_id = self._entropy.uuid7()

        def decide(state: ExecutionState, now: datetime) -> Transition | Rejection:
            return decide_reset(state, request, source, now, run_id=run_id, limits=limits)

        return latest, decide

    async def _read_to_present(self, entry: RunEntry) -> list[Event]:
        """The whole history, also what is not durable yet; true until the loop turns."""
        events: list[Event] = []
        for _ in range(READS_MAX):
            kept = entry.events_from(len(events) + 1)
            if kept is not None:
                return [*events, *kept]
            events += await read_events(
                self._store, entry.shard, entry.run_key, len(events) + 1, entry.durable_last_event_id
            )
        raise RPCError(
            Rejection(
                code=RejectionCode.WORKFLOW_BUSY,
                message=f"workflow {entry.state.workflow_id!r} changes faster than its history can be read; nothing "
                "was done; try again later",
            )
        )

    async def _read(self, entry: RunEntry) -> list[Event]:
        return await read_events(self._store, entry.shard, entry.run_key, 1, entry.state.history_length)

    async def _read_later(self, base: RunEntry, events: list[Event], latest: RunEntry) -> list[RunEvents]:
        """The runs that followed in the chain, up to the latest one, whose history is left for later."""
        found: list[RunEvents] = []
        state = base.state
        next_id = following_run(events[-1])
        while next_id and next_id != latest.state.run_id and len(found) < FOLLOWED_MAX:
            entry = await self._locator.find(state.namespace, state.workflow_id, next_id)
            history = await self._read(entry)
            found.append((next_id, history))
            next_id = following_run(history[-1])
        if next_id == latest.state.run_id:
            found.append((next_id, []))
        return found


def following_run(close: Event) -> str:
    """The run that took over when this event closed its predecessor; empty when none did."""
    match close:
        case (
            e.WorkflowExecutionCompleted()
            | e.WorkflowExecutionFailed()
            | e.WorkflowExecutionTimedOut()
            | e.WorkflowExecutionContinuedAsNew()
        ):
            return close.new_execution_run_id
        case _:
            return ""


def _answer(entry: RunEntry, transition: Transition) -> Any:
    run_id = transition.new_run[0].run_id if transition.new_run is not None else transition.reply
    return ResetWorkflowResponse(run_id=run_id)
