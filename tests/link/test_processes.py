"""Nodes and workers in processes of their own, killed, restarted and cut off."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from clew import activity, workflow
from clew.client import Client
from clew.common import RetryPolicy
from clew.exceptions import CancelledError, WorkflowFailureError
from clew.linked import LinkedConnection
from clew.worker import Worker
from tests.cases.harness import Process, eventually
from tests.link.node import Node

QUEUE = "processes"
SECONDS_MAX = 30.0

pytestmark = pytest.mark.e2e

begun: list[int] = []
go_on = asyncio.Event()
cancelled: list[str] = []


@pytest.fixture(autouse=True)
def _clear() -> None:
    global go_on
    begun.clear()
    cancelled.clear()
    go_on = asyncio.Event()


@activity.defn
async def long_step() -> int:
    begun.append(os.getpid())
    await go_on.wait()
    return len(begun)


@activity.defn
async def stubborn_step() -> None:
    begun.append(os.getpid())
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        cancelled.append("cancelled")
        raise


@activity.defn
async def pid_of(_: int) -> int:
    return os.getpid()


@workflow.defn
class Long:
    @workflow.run
    async def run(self) -> int:
        return await workflow.execute_activity(
            long_step, start_to_close_timeout=timedelta(minutes=5), retry_policy=RetryPolicy(maximum_attempts=1)
        )


@workflow.defn
class Stubborn:
    @workflow.run
    async def run(self) -> None:
        await workflow.execute_activity(stubborn_step, start_to_close_timeout=timedelta(minutes=5))


@workflow.defn
class Steps:
    @workflow.run
    async def run(self, count: int) -> int:
        for number in range(count):
            await workflow.execute_activity(pid_of, number, start_to_close_timeout=timedelta(seconds=30))
        return count


async def serve_node(database: str, port: str) -> None:
    """A node, until killed."""
    async with Node(database, port=int(port)):
        print("listens")
        await asyncio.Event().wait()


async def serve_worker(address: str) -> None:
    """A worker, until killed."""
    client = await Client.connect(address)
    async with Worker(client, task_queue=QUEUE, workflows=[Steps], activities=[pid_of]):
        print("serves")
        await asyncio.Event().wait()


def worker(client: Client) -> Worker:
    return Worker(
        client,
        task_queue=QUEUE,
        workflows=[Long, Stubborn, Steps],
        activities=[long_step, stubborn_step, pid_of],
        graceful_shutdown_timeout=timedelta(seconds=2),
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def within(awaitable: object) -> object:
    return await asyncio.wait_for(awaitable, SECONDS_MAX)  # type: ignore[arg-type]


async def test_a_node_that_is_killed_and_restarted_loses_nothing(tmp_path: Path) -> None:
    database, port = str(tmp_path / "clew.db"), free_port()
    with Process(serve_node, database, str(port)) as node:
        await node.says("listens")
        async with await Client.connect(f"127.0.0.1:{port}") as client, worker(client):
            busy = await client.start_workflow(Long.run, id="busy", task_queue=QUEUE)
            await eventually(lambda: begun, "the long step has begun", SECONDS_MAX)
            many = [
                asyncio.create_task(client.execute_workflow(Steps.run, 5, id=f"w{n}", task_queue=QUEUE))
                for n in range(20)
            ]
            await eventually(lambda: any(task.done() for task in many), "some have ended", SECONDS_MAX)
            node.kill()
            with Process(serve_node, database, str(port)) as again:
                await again.says("listens")
                assert await within(asyncio.gather(*many)) == [5] * 20
                go_on.set()
                assert await within(busy.result()) == 1, "begun once, though its node was killed meanwhile"
                assert (await client.count_workflows()).count == 21


async def test_the_work_of_a_killed_worker_goes_on_at_another(tmp_path: Path) -> None:
    async with Node(str(tmp_path / "clew.db"), resume_seconds=2.0) as node:
        with Process(serve_worker, node.address) as doomed:
            await doomed.says("serves")
            async with await Client.connect(node.address) as client:
                many = [
                    asyncio.create_task(client.execute_workflow(Steps.run, 50, id=f"w{n}", task_queue=QUEUE))
                    for n in range(10)
                ]
                session = next(iter(node.server._sessions.values()))
                await eventually(lambda: session.lane.received > 50, "it is at work", SECONDS_MAX)
                doomed.kill()
                async with worker(client):
                    assert await asyncio.wait_for(asyncio.gather(*many), 2 * SECONDS_MAX) == [50] * 10


async def test_a_cancel_reaches_a_running_activity_at_once() -> None:
    async with Node() as node, await Client.connect(node.address) as client, worker(client):
        handle = await client.start_workflow(Stubborn.run, id="w", task_queue=QUEUE)
        await eventually(lambda: begun, "the step has begun", SECONDS_MAX)
        await handle.cancel()
        # It sends no heartbeats: the word comes over the link by itself.
        await eventually(lambda: cancelled, "the step was cancelled", SECONDS_MAX)
        with pytest.raises(WorkflowFailureError) as caught:
            await within(handle.result())
        assert isinstance(caught.value.cause, CancelledError)


class Proxy:
    """A network between client and node that can be cut."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.is_cut = False
        self.port = 0

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[Proxy]:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            self.cut()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Break every connection, and let none through until `mend`."""
        self.is_cut = True
        for writer in self._writers:
            writer.transport.abort()

    def mend(self) -> None:
        self.is_cut = False

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.is_cut:
            writer.transport.abort()
            return
        other_reader, other_writer = await asyncio.open_connection("127.0.0.1", self._target)
        self._writers |= {writer, other_writer}
        for source, sink in ((reader, other_writer), (other_reader, writer)):
            task = asyncio.create_task(self._pump(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await source.read(65_536):
                sink.write(data)
                await sink.drain()
        sink.transport.abort()
        self._writers.discard(sink)


async def test_short_cuts_lose_no_activity_and_repeat_none(tmp_path: Path) -> None:
    async with (
        Node(str(tmp_path / "clew.db")) as node,
        Proxy(node.port).open() as proxy,
        await Client.connect(f"127.0.0.1:{proxy.port}") as client,
        worker(client),
    ):
        assert isinstance(client.connection, LinkedConnection)
        link = client.connection._client
        busy = await client.start_workflow(Long.run, id="busy", task_queue=QUEUE)
        await eventually(lambda: begun, "the long step has begun", SECONDS_MAX)
        many = [
            asyncio.create_task(client.execute_workflow(Steps.run, 10, id=f"w{n}", task_queue=QUEUE)) for n in range(20)
        ]
        session = link._session
        for _ in range(3):
            before = link.connects_count
            proxy.cut()
            proxy.mend()
            await eventually(lambda before=before: link.connects_count > before, "back", SECONDS_MAX)  # type: ignore[misc]
        assert await within(asyncio.gather(*many)) == [10] * 20
        go_on.set()
        assert await within(busy.result()) == 1
        assert link._session == session, "it is the same session all along"
        for n in range(20):
            history = await client.get_workflow_handle(f"w{n}").fetch_history()
            assert not [event for event in history.events if type(event).__name__ == "ActivityTaskTimedOut"]
