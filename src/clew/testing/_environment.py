"""The environment a test runs its workflows in: the real engine, on a store of its own.

Owns: `WorkflowEnvironment` and which clock it has. Never: an engine of its own making; what is tested is what runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Self, final

from clew.adapters import SystemClock
from clew.client import Client, Interceptor
from clew.converter import DataConverter
from clew.embedded import MEMORY, connect_embedded
from clew.ports.store import Store
from clew.testing._clocks import ManualClock, SkippingClock
from clew.testing._skipping import SkippingConnection, TimeSkipper
from clew.testing.faults import Faults


@final
class WorkflowEnvironment:
    """A client with an engine behind it, for tests. Use it as an async context manager, or call `shutdown`.

    ::

        async with await WorkflowEnvironment.start_time_skipping() as env:
            async with Worker(env.client, task_queue="claims", workflows=[ClaimWorkflow]):
                result = await env.client.execute_workflow(ClaimWorkflow.run, id="claim-1", task_queue="claims")
    """

    @staticmethod
    def from_client(client: Client) -> WorkflowEnvironment:
        """An environment on an engine that runs already; its time is real, and `shutdown` leaves the client open."""
        return WorkflowEnvironment(client, owns_client=False)

    @staticmethod
    async def start_local(
        *,
        namespace: str = "default",
        data_converter: DataConverter | None = None,
        interceptors: Sequence[Interceptor] = (),
        identity: str | None = None,
        database: str = MEMORY,
        clock: ManualClock | None = None,
        store_faults: Faults | None = None,
    ) -> WorkflowEnvironment:
        """An engine in real time, or with the time of a clock that the test moves.

        Args:
            namespace: As for `Client.connect`; so are `data_converter`, `interceptors` and `identity`.
            data_converter: How values become payloads.
            interceptors: User code around the client's calls.
            identity: Who the client is, in histories.
            database: The SQLite file; by default there is none, and all is gone with the environment.
            clock: Moves time by hand, in place of real time.
            store_faults: Wrapped around the store.
        """
        connection = await connect_embedded(
            database,
            clock=SystemClock if clock is None else clock.attach,
            wrap_store=_as_it_is if store_faults is None else store_faults.wrap,
        )
        client = Client(
            connection,
            namespace=namespace,
            data_converter=data_converter,
            interceptors=interceptors,
            identity=identity,
        )
        return WorkflowEnvironment(client)

    @staticmethod
    async def start_time_skipping(
        *,
        namespace: str = "default",
        data_converter: DataConverter | None = None,
        interceptors: Sequence[Interceptor] = (),
        identity: str | None = None,
        start: datetime | None = None,
    ) -> WorkflowEnvironment:
        """An engine whose time jumps to the next deadline when nothing runs and somebody waits.

        Time is skipped while a result is awaited (`WorkflowHandle.result`, `Client.execute_workflow`) and in `sleep`.
        At all other times it passes as usual, so that a test may signal a run before its timer fires.

        Args:
            namespace: As for `Client.connect`; so are `data_converter`, `interceptors` and `identity`.
            data_converter: How values become payloads.
            interceptors: User code around the client's calls.
            identity: Who the client is, in histories.
            start: Where time begins, aware UTC; now, when not given.
        """
        clock = SkippingClock(start)
        stores: list[Store] = []

        def note(store: Store) -> Store:
            stores.append(store)
            return store

        connection = await connect_embedded(MEMORY, clock=clock.attach, wrap_store=note)
        skipper = TimeSkipper(clock, stores[0], connection)
        client = Client(
            SkippingConnection(connection, skipper),
            namespace=namespace,
            data_converter=data_converter,
            interceptors=interceptors,
            identity=identity,
        )
        return WorkflowEnvironment(client, skipper=skipper, now=clock.now)

    def __init__(
        self,
        client: Client,
        *,
        owns_client: bool = True,
        skipper: TimeSkipper | None = None,
        now: Callable[[], datetime] | None = None,
    ) -> None:
        self._client = client
        self._owns_client = owns_client
        self._skipper = skipper
        self._now = now

    @property
    def client(self) -> Client:
        """The client of this environment; workers are made with it."""
        return self._client

    @property
    def supports_time_skipping(self) -> bool:
        """Whether time is skipped here."""
        return self._skipper is not None

    async def sleep(self, duration: timedelta | float) -> None:
        """Let time pass, skipping it where that is supported; a plain number is seconds."""
        span = duration if isinstance(duration, timedelta) else timedelta(seconds=duration)
        if self._skipper is None:
            await asyncio.sleep(span.total_seconds())
        else:
            await self._skipper.sleep_until(await self.get_current_time() + span)

    async def get_current_time(self) -> datetime:
        """The engine's present instant, aware UTC."""
        if self._now is not None:
            return self._now()
        return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=self._client.connection.now_ns() // 1_000)

    @contextmanager
    def auto_time_skipping_disabled(self) -> Generator[None]:
        """Let time pass as it does in the world inside the block."""
        if self._skipper is None:
            yield
            return
        with self._skipper.disabled():
            yield

    async def shutdown(self) -> None:
        """Stop the engine, unless it was there before."""
        if self._owns_client:
            await self._client.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.shutdown()


def _as_it_is(store: Store) -> Store:
    return store
