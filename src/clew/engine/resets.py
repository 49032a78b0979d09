"""Resets: reading what a run goes back to, and committing both runs together (semantics 1.9).

Owns: the histories that a reset is decided on, and its attempts. Never: decides what a reset does (``core.reset``).

How it works: the decision is taken on the latest run of the workflow id, which it may have to end. Its history is read
from the store; what has come since, and may not be durable yet, is taken from memory in the very turn of the loop in
which it is decided. A lost guard reads everything anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any, Final

from clew.core.decisions import decide_reset
from clew.core.reset import ResetSource, RunEvents, check_reset, made_by_reset
from clew.core.state import ExecutionState
from clew.core.transition import Transition
from clew.engine.funnel import Decision, Funnel, Operation
from clew.engine.history import read_events
from clew.engine.locate import Locator, not_found
from clew.engine.namespaces import Namespaces
from clew.engine.runs import RunEntry
from clew.model import events as e
from clew.model.events import Event
from clew.model.inputs import ResetReapplyExcludeType, ResetWorkflowRequest
from clew.model.rejection import Rejection, RejectionCode
from clew.ports.entropy import Entropy
from clew.ports.store import Store
from clew.service.errors import RPCError
from clew.service.requests import ResetWorkflowResponse

READS_MAX: Final = 20
"""Times the history of a run that keeps changing is read on, before the caller is told to try later."""

FOLLOWED_MAX: Final = 1_000
"""Runs of a chain, in each direction, that are read for what a reset brings along."""


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
        source = ResetSource(base=base.state, events=[])
        is_same_chain = latest.state.first_execution_run_id == base.state.first_execution_run_id
        if base is not latest:
            source.events = await self._read(base)
            await self._read_others(source, request, latest)
        present = await self._read(latest)
        if base is latest:
            source.events = present
        elif is_same_chain:
            source.later = [*source.later, (latest.state, present)]
        limits = self._namespaces.get(namespace).limits
        run_id = self._entropy.uuid7()

        def decide(state: ExecutionState, now: datetime) -> Transition | Rejection:
            return decide_reset(state, request, source, now, run_id=run_id, limits=limits)

        return latest, decide

    async def _read(self, entry: RunEntry) -> list[Event]:
        """The whole history, also what is not durable yet; true until the loop turns."""
        events: list[Event] = []
        for _ in range(READS_MAX):
            kept = entry.events_from(len(events) + 1)
            if kept is not None:
                return [*events, *kept]
            until = entry.durable_last_event_id
            found = await read_events(self._store, entry.shard, entry.run_key, len(events) + 1, until)
            if not found and len(events) < until:
                raise not_found(entry.state.namespace, entry.state.workflow_id, entry.state.run_id)
            events += found
        raise RPCError(
            Rejection(
                code=RejectionCode.WORKFLOW_BUSY,
                message=f"workflow {entry.state.workflow_id!r} changes faster than its history can be read; nothing "
                "was done; try again later",
            )
        )

    async def _read_others(self, source: ResetSource, request: ResetWorkflowRequest, latest: RunEntry) -> None:
        """The other runs of the chain that matter, but for the latest: those that followed, and those on the way to it.

        The way leads over resets, and may pass the run that this one goes back to by, if one of them went back further.
        Then those before it matter too, since they had what the way would bring again.
        """
        followed = following_run(source.events[-1])
        source.later = await self._read_chain(followed, latest, lambda events: following_run(events[-1]))
        last = source.later[-1][1] if source.later else source.events
        if following_run(last[-1]) == latest.state.run_id:
            return
        if len(source.later) >= FOLLOWED_MAX and set(request.reapply_exclude) != set(ResetReapplyExcludeType):
            raise _too_long(request)
        if latest.state.first_execution_run_id != source.base.first_execution_run_id:
            return
        known = {source.base.run_id, *(state.run_id for state, _ in source.later)}
        way: list[RunEvents] = []
        origins = latest.state.origins
        before = origins[-1].run_id if origins else _continued((await self._read(latest))[0])
        while before and before not in known and len(way) < FOLLOWED_MAX:
            found = await self._read_kept(latest, before)
            if found is None:
                break
            way.insert(0, found)
            before = _before(found[0], found[1][0])
        if before not in known:
            source.earlier = await self._read_chain(
                _continued(source.events[0]), latest, lambda events: _continued(events[0])
            )
            known.update(state.run_id for state, _ in source.earlier)
        source.later = [*source.later, *(one for one in way if one[0].run_id not in known)]

    async def _read_chain(
        self, run_id: str, latest: RunEntry, neighbour: Callable[[Sequence[Event]], str]
    ) -> list[RunEvents]:
        """This run and one after the other, in one direction, up to the latest, and as far as they are kept."""
        found: list[RunEvents] = []
        while run_id and run_id != latest.state.run_id and len(found) < FOLLOWED_MAX:
            run = await self._read_kept(latest, run_id)
            if run is None:
                break
            found.append(run)
            run_id = neighbour(run[1])
        return found

    async def _read_kept(self, latest: RunEntry, run_id: str) -> RunEvents | None:
        """Another run of the workflow id with its history; None if that has been deleted."""
        try:
            entry = await self._locator.find(latest.state.namespace, latest.state.workflow_id, run_id)
            return entry.state, await self._read(entry)
        except RPCError as error:
            if error.code is RejectionCode.WORKFLOW_NOT_FOUND:
                return None
            raise


def _before(state: ExecutionState, first: Event) -> str:
    """The run that this one goes on with after a reset, or that it followed."""
    return state.origins[-1].run_id if state.origins else _continued(first)


def _continued(first: Event) -> str:
    assert isinstance(first, e.WorkflowExecutionStarted), "a history begins with the start of the run"
    return first.continued_execution_run_id


def _too_long(request: ResetWorkflowRequest) -> RPCError:
    return RPCError(
        Rejection(
            code=RejectionCode.LIMIT_EXCEEDED,
            message=f"more than {FOLLOWED_MAX} runs followed run {request.run_id!r} of workflow "
            f"{request.workflow_id!r}, which is more than are read for the signals and updates that came to them; "
            "nothing was done; reset to a later run, or exclude signals and updates",
        )
    )


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
