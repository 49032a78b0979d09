"""A running worker over a fake engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from clew.model.inputs import ActivityCancelReason
from clew.service.requests import ActivityTask
from clew.worker import Worker
from tests.unit.worker.fakes import FakeClient, FakeConnection, until


class Rig:
    """A worker and the fake engine it serves."""

    def __init__(self, connection: FakeConnection, client: FakeClient) -> None:
        self.connection = connection
        self.client = client
        self.service = connection.service
        self.worker: Worker

    async def offer(self, *tasks: ActivityTask) -> None:
        """Hand attempts to the session that announced their type."""

        def offer() -> None:
            for task in tasks:
                sessions = self.service.sessions
                takes = [
                    s
                    for s in sessions
                    if s.hello.activity_types is None or task.activity_type in s.hello.activity_types
                ]
                (takes or sessions)[0].sink.offer_activity_task(task)

        await self.connection.on_service_loop(offer)

    async def cancel(self, task: ActivityTask, reason: ActivityCancelReason) -> None:
        """Ask an attempt to stop, as the engine does."""
        await self.connection.on_service_loop(lambda: self.service.sessions[0].sink.cancel_activity(task.token, reason))

    async def result_of(self, method: str, count: int = 1) -> Any:
        """The requests of a method, once there are so many."""
        await until(lambda: len(self.service.of(method)) >= count, f"{count} calls of {method}")
        requests = self.service.of(method)
        return requests[0] if count == 1 else requests


@asynccontextmanager
async def running(
    activities: Sequence[Callable[..., Any]], *, data_converter: Any = None, **options: Any
) -> AsyncIterator[Rig]:
    """A worker with these activities; without grace unless the test says otherwise."""
    connection = FakeConnection()
    rig = Rig(connection, FakeClient(connection, data_converter))
    options.setdefault("graceful_shutdown_timeout", timedelta(0))
    rig.worker = Worker(rig.client, task_queue="q", activities=activities, **options)
    try:
        async with asyncio.timeout(90), rig.worker:
            yield rig
    finally:
        connection.stop()
