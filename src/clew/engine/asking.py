"""Queries in a fleet: which node asks the run's code.

Owns: the choice of the node, and another try when the run moved meanwhile. Never: how code is asked
(``engine.queries``).

How it works: the node asks whose worker has the run: the one that holds its workflow task or has it cached; without
one, this node if it has a worker on the queue, else any that has. The run in memory is first made sure to be current.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import msgspec

from clew.engine.fleet import Fleet, node_of
from clew.engine.locate import Locator
from clew.engine.matching import Matcher, Want
from clew.engine.namespaces import Namespaces
from clew.engine.queries import ANSWER_SECONDS, QueryDesk
from clew.engine.versions import Versions
from clew.model.rejection import RejectionCode
from clew.ports.store import TaskKind
from clew.service.errors import RPCError
from clew.service.requests import QueryWorkflowRequest, QueryWorkflowResponse

if TYPE_CHECKING:
    from clew.engine.runs import RunEntry

AGAIN_SECONDS: Final = 0.02
"""Between two tries, while a run moves from one node to another."""

_MOVED: Final = (RejectionCode.UNAVAILABLE, RejectionCode.NO_WORKER)


class Asking:
    """See the module docstring. All methods belong to the engine's loop."""

    def __init__(
        self,
        *,
        queries: QueryDesk,
        locator: Locator,
        matcher: Matcher,
        versions: Versions,
        namespaces: Namespaces,
        fleet: Fleet | None,
    ) -> None:
        self._queries = queries
        self._locator = locator
        self._matcher = matcher
        self._versions = versions
        self._namespaces = namespaces
        self._fleet = fleet

    async def ask(self, request: QueryWorkflowRequest) -> QueryWorkflowResponse:
        """Ask the run's code, wherever its worker is.

        Raises:
            RPCError: As `QueryDesk.ask`.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + ANSWER_SECONDS
        while True:
            entry = await self._locator.find_current(request.namespace, request.workflow_id, request.run_id)
            fleet = self._fleet
            node_id = self._node_with_worker(fleet, entry) if fleet is not None else ""
            try:
                if fleet is not None and node_id:
                    pinned = msgspec.structs.replace(request, run_id=entry.state.run_id)
                    return await fleet.ask(node_id, pinned)
                return await self._queries.ask(entry, request, self._namespaces.get(request.namespace).limits)
            except RPCError as error:
                if error.code not in _MOVED or fleet is None or loop.time() >= deadline:
                    raise
                if error.code is RejectionCode.NO_WORKER and not self._node_with_worker(fleet, entry):
                    raise
            await asyncio.sleep(AGAIN_SECONDS)

    async def ask_here(self, request: QueryWorkflowRequest) -> QueryWorkflowResponse:
        """Ask a worker of this node, for another node."""
        entry = await self._locator.find_current(request.namespace, request.workflow_id, request.run_id)
        return await self._queries.ask(entry, request, self._namespaces.get(request.namespace).limits)

    def _node_with_worker(self, fleet: Fleet, entry: RunEntry) -> str:
        """The other node that should ask; empty for this one."""
        state = entry.state
        task = state.workflow_task if state.is_open else None
        holder = state.sticky_session
        if task is not None:
            holder = task.session if task.started_event_id else task.sticky_session or holder
        if holder and fleet.is_elsewhere(holder):
            return node_of(holder)
        version = self._versions.for_workflow(state)
        if self._matcher.is_polled(state.namespace, state.task_queue, TaskKind.WORKFLOW, version):
            return ""
        want = Want(TaskKind.WORKFLOW, state.workflow_type, version)
        for worker in fleet.workers(state.namespace, state.task_queue):
            if want.fits(worker.hello, worker.version):
                return node_of(worker.session_id)
        return ""
