"""Reading a store beside the process that owns it.

Owns: a connection that answers the reading calls of the service straight from a SQLite file, without an engine.
Never: writes, or runs anything; a call that would need the owner is refused with the remedy.

How it works: each call is a read of the file, which SQLite allows at any time beside its writer. There is nobody to be
woken by, so waiting for a new event looks again every `LOOK_SECONDS`: good for people at a terminal, not for programs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar, cast, final

import msgspec

from clew.adapters import SystemClock, SystemEntropy, to_ns, wall_now
from clew.engine.deployments import Deployments
from clew.engine.describe import describe_state
from clew.engine.history import LONG_POLL_SECONDS, HistoryWaiters
from clew.engine.locate import Locator
from clew.engine.namespaces import Namespaces
from clew.engine.reading import Reader
from clew.engine.runs import RunCache
from clew.engine.versions import Versions
from clew.model.limits import LIMITS_DEFAULT, Limits
from clew.model.rejection import Rejection, RejectionCode
from clew.ports.store import Store
from clew.service import deployments as d
from clew.service import requests as r
from clew.service.contract import Service
from clew.service.errors import RPCError
from clew.stores import name_of, open_reader_by_address

T = TypeVar("T")

LOOK_SECONDS: Final = 0.25
"""How long a wait for an event sleeps between two looks at the file."""


async def connect_reader(address: str) -> ReadingConnection:
    """Open a store for reading only, whoever owns it.

    Raises:
        StoreError: There is no such store, or it is not one of this version.
    """
    store = await open_reader_by_address(address)
    return ReadingConnection(store, name_of(address), asyncio.get_running_loop())


@final
class ReadingConnection:
    """A connection (see ``service.connection``) that can only read; it belongs to the loop that opened it."""

    def __init__(self, store: Store, name: str, loop: asyncio.AbstractEventLoop) -> None:
        self._store = store
        self._is_closed = False
        self.service: Service = cast(Service, ReadingService(store, name))
        self.service_loop = loop
        self.limits: Limits = LIMITS_DEFAULT
        self.address = f"{name} (reading)"

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._is_closed

    def call(self, method: Callable[[Any], Awaitable[T]], request: Any) -> asyncio.Future[T]:
        """Call one method of `service`, on the loop that opened this connection."""
        return asyncio.ensure_future(method(request))

    def post(self, callback: Callable[[], None]) -> None:
        """Run `callback` on the loop soon."""
        self.service_loop.call_soon_threadsafe(callback)

    post_last = post

    def now_ns(self) -> int:
        """The time of the operating system, nanoseconds since the epoch."""
        return to_ns(wall_now())

    async def close(self) -> None:
        """Close the store."""
        if not self._is_closed:
            self._is_closed = True
            await self._store.close()


@final
class ReadingService:
    """The reading calls of the service contract; any other is refused."""

    def __init__(self, store: Store, name: str) -> None:
        self._store = store
        self._name = name

    def __getattr__(self, name: str) -> Callable[[Any], Awaitable[Any]]:
        async def refuse(_: Any) -> Any:
            raise RPCError(_needs_owner(name, self._name))

        return refuse

    async def list_workflows(self, request: r.ListWorkflowsRequest) -> r.ListWorkflowsResponse:
        """List runs, newest first."""
        reader, _ = await self._fresh()
        return await reader.list_workflows(request)

    async def count_workflows(self, request: r.CountWorkflowsRequest) -> r.CountWorkflowsResponse:
        """Count runs."""
        reader, _ = await self._fresh()
        return await reader.count_workflows(request)

    async def describe_workflow(self, request: r.DescribeWorkflowRequest) -> r.WorkflowDescription:
        """Describe a run from its stored state; who polls its queues, only the owner knows."""
        _, locator = await self._fresh()
        entry = await locator.find(request.namespace, request.workflow_id, request.run_id)
        return describe_state(entry.state)

    async def describe_deployment(self, request: d.DescribeDeploymentRequest) -> d.DeploymentDescription:
        """Describe a deployment from what is stored; whether workers of it run, only the owner knows."""
        return await (await self._deployments()).describe(request)

    async def list_deployments(self, request: d.ListDeploymentsRequest) -> d.ListDeploymentsResponse:
        """List deployments."""
        return await (await self._deployments()).list_all(request)

    async def get_history(self, request: r.GetHistoryRequest) -> r.GetHistoryResponse:
        """Read events, and wait for them if asked to."""
        look = msgspec.structs.replace(request, wait_new_event=False)
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + LONG_POLL_SECONDS
        while True:
            reader, locator = await self._fresh()
            entry = await locator.find(look.namespace, look.workflow_id, look.run_id)
            # Pinned from the first look on: "the current run" may mean another one by the next.
            look = msgspec.structs.replace(look, run_id=entry.state.run_id)
            answer = await reader.get_history(look)
            if answer.events or not entry.state.is_open or not request.wait_new_event:
                return _going_on(answer, look) if request.wait_new_event and entry.state.is_open else answer
            if loop.time() >= give_up_at:
                return _going_on(answer, look)
            await asyncio.sleep(LOOK_SECONDS)

    async def _deployments(self) -> Deployments:
        store = self._store
        clock = SystemClock(asyncio.get_running_loop())
        namespaces = Namespaces(store, SystemEntropy())
        await namespaces.load()
        versions = Versions(store, clock, on_rerouted=lambda _: None)
        return Deployments(store, clock, versions, namespaces, is_attached=lambda _, version: False)

    async def _fresh(self) -> tuple[Reader, Locator]:
        """The engine's reading parts over the file as it is now: nothing of an earlier look is kept."""
        store = self._store
        namespaces = Namespaces(store, SystemEntropy())
        await namespaces.load()
        locator = Locator(store, RunCache(store), namespaces)
        return Reader(store, locator, HistoryWaiters(), namespaces), locator


def _going_on(answer: r.GetHistoryResponse, look: r.GetHistoryRequest) -> r.GetHistoryResponse:
    """The answer, saying where to look for more."""
    following = answer.events[-1].event_id + 1 if answer.events else look.from_event_id
    return msgspec.structs.replace(answer, next_event_id=following)


def _needs_owner(method: str, store: str) -> Rejection:
    return Rejection(
        code=RejectionCode.UNAVAILABLE,
        message=(
            f"{method} changes or asks a run, but {store} is only open for reading. Do it in the process that owns "
            "the store, or when no process does."
        ),
    )
