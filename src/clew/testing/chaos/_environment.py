"""The environment in which one chaotic go of a test runs.

Owns: putting engine, watched store, skipping clock and chaotic service together, and engines that follow a crash.
Never: what a fault does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar, cast, final

from clew.adapters import SystemEntropy
from clew.client import Client
from clew.embedded import MEMORY, connect_embedded
from clew.engine import Engine
from clew.model.limits import Limits
from clew.ports.store import Store
from clew.service.connection import Connection
from clew.service.contract import Service
from clew.testing._clocks import SkippingClock
from clew.testing._environment import WorkflowEnvironment
from clew.testing._skipping import SkippingConnection, TimeSkipper
from clew.testing.chaos._faults import Fault
from clew.testing.chaos._service import ChaosService
from clew.testing.chaos._tape import Tape, WatchedStore

T = TypeVar("T")

SECONDS_MAX_DEFAULT: Final = 10.0
"""For one go; time is skipped, so that one which takes longer waits for something that will not come."""


@final
class ChaosRun:
    """One go: its tape, and whether the fault struck."""

    def __init__(self, fault: Fault, tape: Tape, service: ChaosService) -> None:
        self.fault = fault
        self.tape = tape
        self._service = service

    @property
    def has_struck(self) -> bool:
        """Whether the place of the fault was reached."""
        return self._service.has_struck

    @property
    def problems(self) -> list[BaseException]:
        """What went wrong with the chaos itself."""
        return self._service.problems


async def start_chaos_environment(
    fault: Fault, *, seconds_max: float = SECONDS_MAX_DEFAULT
) -> tuple[WorkflowEnvironment, ChaosRun]:
    """Start an environment with skipped time in which one fault will strike.

    Args:
        fault: What, and where.
        seconds_max: After so much real time whoever waits for the engine gets an error that says what is open.
    """
    clock, tape = SkippingClock(), Tape()
    stores: list[WatchedStore] = []
    raw_stores: list[Store] = []

    def watch(raw: Store) -> Store:
        raw_stores.append(raw)
        stores.append(WatchedStore(raw, tape, closes=True))
        return cast(Store, stores[0])

    inner = await connect_embedded(MEMORY, clock=clock.attach, wrap_store=watch)
    engines = _Engines(inner, raw_stores[0], stores, clock, tape)
    service = ChaosService(inner.service, tape, fault, engines.replace)
    skipping = SkippingConnection(inner, TimeSkipper(clock, raw_stores[0], inner))
    connection = _ChaosConnection(skipping, service, engines, tape, seconds_max)
    skipper = skipping._skipper
    client = Client(connection)
    return WorkflowEnvironment(client, skipper=skipper, now=clock.now), ChaosRun(fault, tape, service)


@final
class _Engines:
    """The engines of one go, each on the same store. All on the service loop."""

    def __init__(
        self, connection: Connection, raw: Store, stores: list[WatchedStore], clock: SkippingClock, tape: Tape
    ) -> None:
        self._connection = connection
        self._raw = raw
        self._stores = stores
        self._clock = clock
        self._tape = tape
        self._later: list[Engine] = []

    def replace(self) -> Awaitable[Service]:
        """Kill the present engine at once; gives the next when awaited."""
        self._stores[-1].die()
        return self._start()

    async def _start(self) -> Service:
        store = WatchedStore(self._raw, self._tape, closes=False)
        self._stores.append(store)
        clock = self._clock.attach(self._connection.service_loop)
        engine = Engine(cast(Store, store), clock=clock, entropy=SystemEntropy(), limits=self._connection.limits)
        await engine.start()
        self._later.append(engine)
        return engine

    async def end(self) -> None:
        """Stop those that live, and let go of the dead."""
        for engine in self._later[-1:]:
            await engine.stop()
        for store in self._stores:
            store.end()


@final
class _ChaosConnection:
    """A connection whose service is a chaotic one; see ``service.connection.Connection``."""

    def __init__(
        self, inner: Connection, service: ChaosService, engines: _Engines, tape: Tape, seconds_max: float
    ) -> None:
        self._inner = inner
        self._chaos = service
        self._engines = engines
        self._tape = tape
        self.service: Service = cast(Service, service)
        self.service_loop = inner.service_loop
        self.limits: Limits = inner.limits
        self.address = inner.address
        self._seconds_max = seconds_max
        self._patience: asyncio.TimerHandle | None = None
        inner.post(self._begin)

    @property
    def is_closed(self) -> bool:
        """As `Connection.is_closed`."""
        return self._inner.is_closed

    def call(self, method: Callable[[Any], Awaitable[T]], request: Any) -> asyncio.Future[T]:
        """As `Connection.call`."""
        return self._inner.call(method, request)

    def post(self, callback: Callable[[], None]) -> None:
        """As `Connection.post`."""
        self._inner.post(callback)

    def post_last(self, callback: Callable[[], None]) -> None:
        """As `Connection.post_last`."""
        self._inner.post_last(callback)

    def now_ns(self) -> int:
        """As `Connection.now_ns`."""
        return self._inner.now_ns()

    async def close(self) -> None:
        """As `Connection.close`."""
        if not self._inner.is_closed:
            ending = asyncio.run_coroutine_threadsafe(self._end(), self.service_loop)
            await asyncio.wrap_future(ending)
        await self._inner.close()

    def _begin(self) -> None:
        self._patience = self.service_loop.call_later(self._seconds_max, self._lose_patience)

    async def _end(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
        await self._engines.end()

    def _lose_patience(self) -> None:
        still = [
            f"{run.workflow_id!r} stands after {type(run.events[-1]).__name__} (event {run.events[-1].event_id})"
            for run in self._tape.runs
            if run.events and not type(run.events[-1]).__name__.startswith("WorkflowExecution")
        ]
        self._chaos.give_up(
            f"the test was not done within {self._seconds_max:g} s of real time; {'; '.join(still) or 'no run is open'}"
        )
