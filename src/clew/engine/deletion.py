"""Removing one closed run, with its history, before its retention time is over.

Owns: which run is meant, and what is told when it cannot be removed. Never: retention (``engine.keeping``), or the
rows (the store).

How it works: the store looks and removes in one transaction, so it does not matter what this node believes of the run.
A run whose last messages are on their way stays, as they are sent from its row: to its parent, or to runs that it has
cancelled. Nothing that is open can be removed; so no worker, timer or caller is left with a run that is gone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import final

from clew.engine.locate import Locator, not_found
from clew.engine.runs import RunCache, RunEntry
from clew.model.rejection import Rejection, RejectionCode
from clew.ports.store import Deletion, Store
from clew.service.errors import RPCError
from clew.service.operations import DeleteWorkflowRequest, DeleteWorkflowResponse


@final
class Deletions:
    """All methods belong to the engine's loop."""

    def __init__(
        self, store: Store, cache: RunCache, locator: Locator, wait_settled: Callable[[RunEntry], Awaitable[None]]
    ) -> None:
        self._store = store
        self._cache = cache
        self._locator = locator
        self._wait_settled = wait_settled

    async def delete(self, request: DeleteWorkflowRequest) -> DeleteWorkflowResponse:
        """Remove a closed run.

        Raises:
            RPCError: ``workflow_not_found``, ``workflow_not_closed``, ``workflow_closing``, ``namespace_not_found``.
        """
        namespace, workflow_id = request.namespace, request.workflow_id
        entry = await self._locator.find(namespace, workflow_id, request.run_id)
        while entry.unsettled_count:
            # Its end may be on its way to the store at this moment; or its start, which may lose: then it never was.
            await self._wait_settled(entry)
            if not entry.is_discarded:
                break
            entry = await self._locator.find(namespace, workflow_id, request.run_id)
        run_id = entry.state.run_id
        outcome = await self._store.delete_run(entry.shard, entry.run_key)
        if outcome is Deletion.NOT_FOUND:
            raise not_found(namespace, workflow_id, run_id)
        if outcome is Deletion.OPEN:
            raise _refusal(
                RejectionCode.WORKFLOW_NOT_CLOSED,
                f"run {run_id} of workflow {workflow_id!r} is open; only a run that has ended can be deleted. Wait for "
                "its end, or cancel or terminate it, then delete it",
                request,
                run_id,
            )
        if outcome is Deletion.UNDELIVERED:
            raise _refusal(
                RejectionCode.WORKFLOW_CLOSING,
                f"run {run_id} of workflow {workflow_id!r} has ended, but messages of it to other runs are still on "
                "their way; delete it again in a moment",
                request,
                run_id,
            )
        known = self._cache.get(entry.run_key)
        if known is not None:
            self._cache.discard(known)
        return DeleteWorkflowResponse(run_id=run_id)


def _refusal(code: RejectionCode, message: str, request: DeleteWorkflowRequest, run_id: str) -> RPCError:
    details = {"namespace": request.namespace, "workflow_id": request.workflow_id, "run_id": run_id}
    return RPCError(Rejection(code=code, message=message, details=details))
