"""The usual course of an update, without a task of the loop: a run in memory whose code answers at once.

Owns: `UpdateCall`. Never: the rules of updates (``core.updates``), or any wait that may take long (``updates``).

How it works: the call's waiter is a `Reply`, so the commit that settles the update answers its caller in the same turn
of the loop. When everything that the run has submitted by then is settled and there is no answer, or the word that came
is not an outcome, the waiter gives its place to a future, and a coroutine of ``updates`` goes on from there. What is
told, and when, is the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol, final

from clew.core.replies import UpdateAdmission
from clew.engine.funnel import store_error
from clew.engine.runs import RunEntry
from clew.model.rejection import Rejection, RejectionCode
from clew.ports.store import StoreError
from clew.service.errors import RPCError
from clew.service.reply import Reply
from clew.service.requests import UpdateResponse, UpdateStage, UpdateWorkflowRequest

Waiter = asyncio.Future[Any] | Reply[Any]
"""Told ``(entry, UpdateSettled | None)``, or an error."""


class Desk(Protocol):
    """What a call needs of the desk that made it."""

    def add_waiter(self, entry: RunEntry, update_id: str, waiter: Waiter) -> None: ...
    def unregister(self, entry: RunEntry, update_id: str, waiter: Waiter) -> None: ...
    def change_waiter(self, entry: RunEntry, update_id: str, waiter: Waiter, to: Waiter) -> RunEntry: ...
    def after_current(self, entry: RunEntry, callback: Callable[[], None]) -> None: ...
    def wait_on(
        self, entry: RunEntry, admission: UpdateAdmission, stage: UpdateStage, waiter: asyncio.Future[Any]
    ) -> Coroutine[Any, Any, UpdateResponse]: ...


@final
class UpdateCall:
    """One call, from its admission to its answer.

    Args:
        desk: Registers waiters.
        entry: The run.
        request: What was asked.

    Attributes:
        reply: The answer to the caller.
        admitted: For the operation that admits it: how far the update has come.
    """

    __slots__ = ("_admission", "_desk", "_entry", "_request", "_waiter", "admitted", "reply")

    def __init__(self, desk: Desk, entry: RunEntry, request: UpdateWorkflowRequest) -> None:
        self._desk = desk
        self._entry = entry
        self._request = request
        self._admission: UpdateAdmission | None = None
        # Unparametrised: making one of the generic alias costs five times as much.
        self.reply: Reply[UpdateResponse] = Reply()
        self.admitted: Reply[UpdateAdmission] = Reply()
        self._waiter: Reply[Any] = Reply()
        desk.add_waiter(entry, request.request.update_id, self._waiter)
        self._waiter.listen(self._on_word)
        self.admitted.listen(self._on_admitted)

    def _on_admitted(self, admitted: Reply[UpdateAdmission]) -> None:
        error = admitted.exception()
        if error is not None:
            self._desk.unregister(self._entry, self._request.request.update_id, self._waiter)
            self.reply.set_exception(error)
            return
        admission = self._admission = admitted.result()
        if not admission.is_new or self._waiter.done():
            self._wait()
        else:
            self._desk.after_current(self._entry, self._look)

    def _on_word(self, word: Reply[Any]) -> None:
        """The update is settled, or the run has left memory."""
        if self._admission is None or self.reply.done():
            return  # Looked at when it is admitted.
        if word.exception() is None:
            entry, settled = word.result()
            if settled is not None and settled.outcome is not None:
                state = entry.state
                self.reply.set_result(
                    UpdateResponse(
                        update_id=settled.update_id,
                        workflow_id=state.workflow_id,
                        run_id=state.run_id,
                        stage=UpdateStage.COMPLETED,
                        outcome=settled.outcome,
                    )
                )
                return
        self._wait()

    def _look(self) -> None:
        """All that the run had submitted is settled."""
        if not self._waiter.done():
            self._wait()

    def _wait(self) -> None:
        """Go on in a coroutine."""
        admission, word, entry = self._admission, self._waiter, self._entry
        assert admission is not None, "waited for when it is admitted"
        waiter: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if not word.done():
            entry = self._desk.change_waiter(entry, admission.update_id, word, waiter)
        elif (error := word.exception()) is not None:
            waiter.set_exception(error)
        else:
            waiter.set_result(word.result())
        task = asyncio.ensure_future(self._desk.wait_on(entry, admission, self._request.wait_stage, waiter))
        task.add_done_callback(self._on_waited)

    def _on_waited(self, task: asyncio.Future[UpdateResponse]) -> None:
        if task.cancelled():
            self.reply.set_exception(RPCError(_STOPPED))
            return
        error = task.exception()
        if error is None:
            self.reply.set_result(task.result())
        else:
            self.reply.set_exception(store_error(error) if isinstance(error, StoreError) else error)


_STOPPED: Final = Rejection(
    code=RejectionCode.UNAVAILABLE,
    message="The engine was stopped while the update was waited for. Connect again and send it under the same id.",
)
