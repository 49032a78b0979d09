"""Update-with-start: one call that starts a run and updates it, or updates the open one (semantics 1.5).

Owns: the order in which that is tried. Never: the rules of starts (``engine.starts``) or updates (``core.updates``).

How it works: an update that the latest run of the workflow id knows already is answered from there, whatever the
policies say and even if that run is closed: the call is a repeat. Else a run is started with the update admitted in the
same transition, so that there is never a run without its update. If the policy leads to the open run, the update is
sent to it; should that run close meanwhile, the whole is tried once more.
"""

from __future__ import annotations

import asyncio
from typing import Any

from clew.core.decisions import decide_admit_update
from clew.core.transition import Transition
from clew.engine.locate import Locator
from clew.engine.namespaces import Namespaces
from clew.engine.runs import RunEntry
from clew.engine.starts import RACES_MAX, Starter, StartExtras
from clew.engine.updates import UpdateDesk
from clew.model.policies import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from clew.model.rejection import Rejection, RejectionCode
from clew.service.errors import RPCError
from clew.service.requests import (
    StartWorkflowResponse,
    UpdateResponse,
    UpdateWithStartRequest,
    UpdateWithStartResponse,
    UpdateWorkflowRequest,
)

_GOING = (
    RejectionCode.WORKFLOW_ALREADY_COMPLETED,
    RejectionCode.WORKFLOW_CLOSING,
    RejectionCode.WORKFLOW_NOT_FOUND,
)
"""What is heard of the open run when it closes under the call, or was about to be made by a start that has lost."""


class UpdatesWithStart:
    """See the module docstring. All methods belong to the engine's loop."""

    def __init__(self, *, starter: Starter, updates: UpdateDesk, locator: Locator, namespaces: Namespaces) -> None:
        self._starter = starter
        self._updates = updates
        self._locator = locator
        self._namespaces = namespaces

    async def apply(self, request: UpdateWithStartRequest) -> UpdateWithStartResponse:
        """Start and update, or update.

        Raises:
            RPCError: ``invalid_argument``, ``workflow_already_started``, and what a start or an update may be refused
                with; then nothing was done, except that an update may be refused by a run that was open already.
        """
        _check(request)
        for _ in range(RACES_MAX):
            try:
                return await self._try(request)
            except RPCError as error:
                if error.code not in _GOING:
                    raise
        return await self._try(request)

    async def _try(self, request: UpdateWithStartRequest) -> UpdateWithStartResponse:
        start, update = request.start, request.update
        known = await self._wait_if_known(update)
        if known is not None:
            entry = await self._locator.find(update.namespace, update.workflow_id, known.run_id)
            return UpdateWithStartResponse(start=_existing(entry), update=known)
        first = _FirstUpdate(self._updates, self._namespaces, update)
        try:
            started = await self._starter.start(start, StartExtras(follow=first.admit))
            if started.response.started and started.entry is first.entry:
                response = await first.wait()
            else:
                response = await self._updates.admit_and_wait(started.entry, update)
        finally:
            first.close()
        return UpdateWithStartResponse(start=started.response, update=response)

    async def _wait_if_known(self, update: UpdateWorkflowRequest) -> UpdateResponse | None:
        try:
            return await self._updates.wait_if_known(update)
        except RPCError as error:
            if error.code is RejectionCode.WORKFLOW_NOT_FOUND:
                return None
            raise


class _FirstUpdate:
    """An update that is admitted together with the start of its run; a new attempt at the start replaces the last."""

    def __init__(self, updates: UpdateDesk, namespaces: Namespaces, request: UpdateWorkflowRequest) -> None:
        self._updates = updates
        self._namespaces = namespaces
        self._request = request
        self.entry: RunEntry | None = None
        self._waiter: asyncio.Future[Any] | None = None

    def admit(self, entry: RunEntry) -> Transition | Rejection:
        """Admit the update to a run that is being started."""
        self.close()
        state, request = entry.state, self._request
        limits = self._namespaces.get(request.namespace).limits
        outcome = decide_admit_update(state, request.request, state.start_time, limits)
        if isinstance(outcome, Transition):
            self.entry = entry
            self._waiter = self._updates.register(entry, request.request.update_id)
        return outcome

    async def wait(self) -> UpdateResponse:
        """Wait for the stage of the update; the run is started."""
        assert self.entry is not None, "the update was not admitted"
        assert self._waiter is not None, "an admitted update has a waiter"
        return await self._updates.wait_admitted(self.entry, self._request, self._waiter)

    def close(self) -> None:
        """Let go of the run."""
        if self.entry is not None and self._waiter is not None:
            self._updates.unregister(self.entry, self._request.request.update_id, self._waiter)
        self.entry = self._waiter = None


def _existing(entry: RunEntry) -> StartWorkflowResponse:
    state = entry.state
    return StartWorkflowResponse(
        run_id=state.run_id, first_execution_run_id=state.first_execution_run_id, started=False
    )


def _check(request: UpdateWithStartRequest) -> None:
    start, update = request.start, request.update
    policy = start.id_conflict_policy
    if policy not in (WorkflowIDConflictPolicy.FAIL, WorkflowIDConflictPolicy.USE_EXISTING):
        finding = (
            f"id_conflict_policy is {policy.value}; update-with-start needs Fail (refuse when a run is open) or "
            "UseExisting (update the open run); give one of them"
        )
    elif start.id_reuse_policy is WorkflowIDReusePolicy.TERMINATE_IF_RUNNING:
        finding = "id_reuse_policy TerminateIfRunning does not go with update-with-start; give another"
    elif (start.namespace, start.workflow_id) != (update.namespace, update.workflow_id):
        finding = (
            f"the start is of workflow {start.workflow_id!r} in {start.namespace!r}, but the update of "
            f"{update.workflow_id!r} in {update.namespace!r}; both must name the same workflow"
        )
    elif update.run_id or update.first_execution_run_id:
        finding = "the update names a run; leave run_id and first_execution_run_id empty, the start says which run"
    else:
        return
    raise RPCError(Rejection(code=RejectionCode.INVALID_ARGUMENT, message=f"update-with-start: {finding}"))
