"""The ways in: how a call reaches the run that it changes.

Owns: finding the run that a client names, that the token of a task belongs to, or that an activity's ids name, and
giving the decision about it to the `Funnel`. Never: decides, or knows which call it serves.

How it works: a run that is at hand is changed in the same turn of the loop. One that is not is read first, and so is
the first event of a run whose decision needs it. What rests on an early task that is not durable yet waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import Any

from clew.core.state import ExecutionState
from clew.core.transition import Transition
from clew.engine.early import EarlyTasks
from clew.engine.funnel import Decision, Funnel, Operation, store_error
from clew.engine.locate import Locator
from clew.engine.reading import Reader
from clew.engine.runs import RunEntry
from clew.engine.updates import check_chain
from clew.model import inputs as i
from clew.ports.store import StoreError
from clew.service.errors import RPCError
from clew.service.reply import Reply


class WaysIn:
    """Belongs to the engine's loop.

    Args:
        locator: Finds runs.
        funnel: Takes decisions.
        reader: Reads the first event of a run.
        early: Knows which answers rest on what is not durable yet.
        refuses: Asked with the answer of each call; refuses it, and says so, while the engine does not run.
    """

    def __init__(
        self,
        *,
        locator: Locator,
        funnel: Funnel,
        reader: Reader,
        early: EarlyTasks,
        refuses: Callable[[asyncio.Future[Any] | Reply[Any]], bool],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._locator = locator
        self._funnel = funnel
        self._reader = reader
        self._early = early
        self._refuses = refuses

    def change(
        self,
        request: Any,
        decide: Decision,
        *,
        first_execution_run_id: str = "",
        reply: Callable[[RunEntry, Transition], Any] | None = None,
        may_be_early: bool = False,
    ) -> asyncio.Future[Any]:
        """Change the run that a client names: the run given, else the current one."""
        future: asyncio.Future[Any] = self._loop.create_future()
        if self._refuses(future):
            return future

        async def locate() -> RunEntry:
            entry = await self._locator.find(request.namespace, request.workflow_id, request.run_id)
            check_chain(entry, first_execution_run_id)
            return entry

        operation = Operation(decide, future, locate=locate, reply=reply, may_be_early=may_be_early)
        try:
            entry = self._locator.at_hand(request.namespace, request.workflow_id, request.run_id)
            if entry is not None:
                check_chain(entry, first_execution_run_id)
        except RPCError as error:
            operation.refuse(error)
            return future
        self.take(entry, operation)
        return future

    def take(self, entry: RunEntry | None, operation: Operation) -> None:
        """Decide on this run in this turn; None to find it first, by the operation."""
        if entry is None:
            self._funnel.spawn(self._funnel.retry(operation))
        else:
            self._funnel.apply(entry, operation)

    def by_token(
        self,
        token: i.TaskToken,
        bind: Callable[[RunEntry], Decision],
        *,
        needs_started: bool = False,
        may_answer_early: bool = False,
        on_committed: Callable[[RunEntry, Transition], None] | None = None,
        reply: Callable[[RunEntry, Transition], Any] | None = None,
    ) -> Reply[Any]:
        """Change the run that a worker's token names."""
        future: Reply[Any] = Reply()
        if self._refuses(future):
            return future
        entry = self._locator.by_token_at_hand(token)
        must_read = needs_started and entry is not None and lacks_started(entry)
        cause = None if entry is None else self._early.rests_on(entry, token)
        if (
            entry is not None
            and cause is not None
            and not (may_answer_early and not must_read and self._early.take_answer(cause))
        ):
            self._early.when_durable(
                entry,
                cause,
                future,
                lambda: self._funnel.spawn(self._by_token_later(token, bind, future, on_committed, reply)),
            )
        elif entry is not None and not must_read:
            operation = self.bound(bind, entry, token, future, on_committed, reply)
            operation.rests_on = cause
            self._funnel.apply(entry, operation)
        else:
            self._funnel.spawn(self._by_token_later(token, bind, future, on_committed, reply))
        return future

    def bound(
        self,
        bind: Callable[[RunEntry], Decision],
        entry: RunEntry | None,
        token: i.TaskToken,
        future: Reply[Any],
        on_committed: Callable[[RunEntry, Transition], None] | None = None,
        reply: Callable[[RunEntry, Transition], Any] | None = None,
    ) -> Operation:
        """An operation whose decision is bound to the entry that it is taken on; None when it has to be found first."""
        decide = decide_nothing if entry is None else bind(entry)
        operation = Operation(decide, future, on_committed=on_committed, reply=reply)

        async def locate() -> RunEntry:
            again = await self._locate_with_started(token)
            operation.decide = bind(again)
            return again

        operation.locate = locate
        return operation

    async def _locate_with_started(self, token: i.TaskToken) -> RunEntry:
        entry = await self._locator.by_token(token)
        await self._reader.ensure_started_event(entry)
        return entry

    async def _by_token_later(
        self,
        token: i.TaskToken,
        bind: Callable[[RunEntry], Decision],
        future: Reply[Any],
        on_committed: Callable[[RunEntry, Transition], None] | None,
        reply: Callable[[RunEntry, Transition], Any] | None,
    ) -> None:
        try:
            entry = await self._locate_with_started(token)
        except StoreError as error:
            _fail(future, store_error(error))
        except RPCError as error:
            _fail(future, error)
        else:
            self._funnel.apply(entry, self.bound(bind, entry, token, future, on_committed, reply))

    def by_target(
        self,
        target: i.TaskToken | i.ActivityTarget,
        decide: Decision,
        *,
        reply: Callable[[RunEntry, Transition], Any] | None = None,
    ) -> Reply[Any]:
        """Change the run of an activity, named by token or by ids."""
        future: Reply[Any] = Reply()
        if self._refuses(future):
            return future
        if isinstance(target, i.TaskToken):
            token = target
            operation = Operation(decide, future, locate=lambda: self._locator.by_token(token), reply=reply)
            entry = self._locator.by_token_at_hand(token)
        else:
            ids = target
            operation = Operation(
                decide,
                future,
                locate=lambda: self._locator.find(ids.namespace, ids.workflow_id, ids.run_id),
                reply=reply,
            )
            entry = None
        self.take(entry, operation)
        return future


def decide_nothing(state: ExecutionState, now: datetime) -> None:
    """In the place of a decision that is found or given up before it is taken."""


def lacks_started(entry: RunEntry) -> bool:
    return entry.started_event is None and entry.state.needs_started_event


def _fail(future: asyncio.Future[Any] | Reply[Any], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
