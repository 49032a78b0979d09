"""Finding runs: by token, by workflow id and run id, in memory first.

Owns: the look-up and its refusals ("no such workflow", "not the run you mean"). Never: decides.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from clew.engine.namespaces import Namespaces
from clew.engine.peers import ALONE, Peers
from clew.engine.runs import RunCache, RunEntry, is_behind
from clew.model.inputs import TaskToken
from clew.model.rejection import Rejection, RejectionCode
from clew.ports.store import Store
from clew.ports.telemetry import SILENCE, Telemetry
from clew.service.errors import RPCError


class Locator:
    """See the module docstring. All methods belong to the engine's loop."""

    def __init__(
        self,
        store: Store,
        cache: RunCache,
        namespaces: Namespaces,
        peers: Peers = ALONE,
        *,
        on_stale: Callable[[RunEntry], None] | None = None,
        wait_settled: Callable[[RunEntry], Awaitable[None]] | None = None,
        telemetry: Telemetry = SILENCE,
    ) -> None:
        self._telemetry = telemetry
        self._store = store
        self._cache = cache
        self._namespaces = namespaces
        self._peers = peers
        self._on_stale = on_stale
        self._wait_settled = wait_settled

    def at_hand(self, namespace: str, workflow_id: str, run_id: str = "") -> RunEntry | None:
        """The open run, when it is in memory and is the one meant."""
        self._namespaces.get(namespace)
        entry = self._cache.get_open(namespace, workflow_id)
        if entry is not None and (not run_id or entry.state.run_id == run_id):
            self._telemetry.run_was_at_hand()
            return entry
        return None

    async def find(self, namespace: str, workflow_id: str, run_id: str = "") -> RunEntry:
        """The run meant: that of `run_id`, or the latest of the workflow id.

        Raises:
            RPCError: ``workflow_not_found``, ``namespace_not_found``.
        """
        entry = self.at_hand(namespace, workflow_id, run_id)
        if entry is not None:
            return entry
        entry = await self._cache.fetch(lambda: self._store.find_run(namespace, workflow_id, run_id))
        if entry is None or entry.state.workflow_id != workflow_id:
            raise not_found(namespace, workflow_id, run_id)
        return entry

    async def find_current(self, namespace: str, workflow_id: str, run_id: str = "") -> RunEntry:
        """The same, sure to be no older than this call: another node may have changed the run in memory.

        Raises:
            RPCError: ``workflow_not_found``, ``namespace_not_found``.
        """
        entry = self.at_hand(namespace, workflow_id, run_id)
        if entry is not None and not await self.is_current(entry):
            entry = None
        return entry if entry is not None else await self.find(namespace, workflow_id, run_id)

    async def find_started(self, namespace: str, workflow_id: str, run_id: str = "") -> RunEntry:
        """The same, once its start is durable: nobody is told of a run, or waits at one, that may yet be lost (law 3).

        Raises:
            RPCError: ``workflow_not_found``, ``namespace_not_found``.
        """
        entry = await self.find_current(namespace, workflow_id, run_id)
        while entry.unsettled_count and not entry.durable_last_event_id and self._wait_settled is not None:
            await self._wait_settled(entry)
            entry = await self.find_current(namespace, workflow_id, run_id)
        return entry

    async def is_current(self, entry: RunEntry) -> bool:
        """Whether no other node has changed the run since it was read; one that is behind is discarded.

        That a change which was on its way before this call has been made says nothing: the store may have made it long
        ago and its answer come late, and another node have changed the run in between. One that was begun since, and is
        made, does: nobody had changed the run before it.
        """
        if self._peers.is_alone or self._on_stale is None or self._wait_settled is None:
            return not entry.is_discarded
        if entry.unsettled_count:
            await self._wait_settled(entry)
        if entry.is_discarded or not entry.state.is_open:
            return not entry.is_discarded
        versions = await self._store.find_versions([(entry.shard, entry.run_key)])
        if is_behind(entry, versions.get(entry.run_key)):
            self._on_stale(entry)
        elif entry.unsettled_count:
            await self._wait_settled(entry)
        return not entry.is_discarded

    async def by_key(self, shard: int, run_key: int, *, namespace: str, workflow_id: str, run_id: str) -> RunEntry:
        """The run that a token names.

        Raises:
            RPCError: ``workflow_not_found``: there is no such run, or the token is not of this store.
        """
        entry = await self._cache.load(shard, run_key)
        # The namespace too, since it alone is what a caller was allowed by: a token is only data that a worker sends.
        if entry is None or entry.state.run_id != run_id or entry.state.namespace != namespace:
            raise not_found(namespace, workflow_id, run_id)
        return entry

    def by_token_at_hand(self, token: TaskToken) -> RunEntry | None:
        """The run that a token names, when it is in memory."""
        entry = self._cache.get(token.run_key)
        if entry is not None and entry.state.run_id == token.run_id and entry.state.namespace == token.namespace:
            self._telemetry.run_was_at_hand()
            return entry
        return None

    async def by_token(self, token: TaskToken) -> RunEntry:
        """The run that a token names.

        Raises:
            RPCError: ``workflow_not_found``.
        """
        return await self.by_key(
            token.shard,
            token.run_key,
            namespace=token.namespace,
            workflow_id=token.workflow_id,
            run_id=token.run_id,
        )


async def load_again(cache: RunCache, entry: RunEntry) -> RunEntry:
    """The same run, as it is now.

    Raises:
        RPCError: ``workflow_not_found``: it was deleted meanwhile, which may have been through another node.
    """
    now = await cache.load(entry.shard, entry.run_key)
    if now is None:
        raise not_found(entry.state.namespace, entry.state.workflow_id, entry.state.run_id)
    return now


def not_found(namespace: str, workflow_id: str, run_id: str) -> RPCError:
    """The refusal for a run that is not there."""
    which = f"run {run_id} of workflow {workflow_id!r}" if run_id else f"workflow {workflow_id!r}"
    return RPCError(
        Rejection(
            code=RejectionCode.WORKFLOW_NOT_FOUND,
            message=f"{which} does not exist in namespace {namespace!r}; it was never started here, or its history was "
            "deleted after the retention time; check the id and the namespace",
            details={"namespace": namespace, "workflow_id": workflow_id, "run_id": run_id},
        )
    )
