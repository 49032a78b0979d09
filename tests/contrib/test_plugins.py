"""Plugins: one object that brings settings to client, worker and replayer, and stands around the worker's run."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextvars import ContextVar
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from clew import activity, client, worker, workflow
from clew.client import BlockingClient, Client, ClientConfig, ConnectConfig
from clew.common import MetricMeter
from clew.contrib.compression import CompressionCodec
from clew.contrib.context_propagation import ContextPropagationInterceptor
from clew.converter import DataConverter
from clew.plugin import SimplePlugin
from clew.service.connection import Connection
from clew.worker import Replayer, Worker, WorkerConfig

QUEUE = "plugins"
user: ContextVar[str] = ContextVar("user", default="nobody")
pool: list[str] = []


@activity.defn
async def use_pool() -> str:
    return f"{pool[0]} {user.get()}"


class Expected(Exception):
    pass


@workflow.defn
class UsesPool:
    @workflow.run
    async def run(self, fails: bool) -> str:
        if fails:
            raise Expected("as told")
        return await workflow.execute_activity(use_pool, start_to_close_timeout=timedelta(seconds=10))


@contextlib.asynccontextmanager
async def opened_pool() -> AsyncGenerator[None]:
    pool.append("open")
    yield
    pool.clear()


CONVERTER = DataConverter(payload_codec=CompressionCodec(bytes_min=0))


def bundle() -> SimplePlugin:
    return SimplePlugin(
        "bundle",
        data_converter=CONVERTER,
        interceptors=[ContextPropagationInterceptor(user)],
        activities=[use_pool],
        workflows=[UsesPool],
        workflow_failure_exception_types=[Expected],
        run_context=opened_pool,
    )


async def test_one_plugin_configures_client_worker_and_replayer() -> None:
    plugin = bundle()
    async with await Client.connect("sqlite::memory:", plugins=[plugin]) as made:
        assert made.data_converter is CONVERTER
        async with Worker(made, task_queue=QUEUE):
            user.set("kim")
            handle = await made.start_workflow(UsesPool.run, False, id="w", task_queue=QUEUE)
            assert await handle.result() == "open kim"
            with pytest.raises(client.WorkflowFailureError):
                await made.execute_workflow(UsesPool.run, True, id="f", task_queue=QUEUE)
        assert pool == []
        await Replayer(workflows=[], plugins=[plugin]).replay_workflow(await handle.fetch_history())


async def test_a_plugin_of_the_worker_alone_leaves_the_client() -> None:
    plugin = SimplePlugin(
        "worker", activities=[use_pool], workflows=lambda own: [*own, UsesPool], run_context=opened_pool
    )
    async with await Client.connect("sqlite::memory:") as made:
        async with Worker(made, task_queue=QUEUE, plugins=[plugin]):
            assert await made.execute_workflow(UsesPool.run, False, id="w", task_queue=QUEUE) == "open nobody"
        assert made.data_converter is DataConverter.default


class Noting(client.Plugin, worker.Plugin):
    """Notes the order of calls."""

    def __init__(self, name: str, notes: list[str]) -> None:
        self._name = name
        self._notes = notes

    def name(self) -> str:
        return self._name

    def configure_client(self, config: ClientConfig) -> ClientConfig:
        self._notes.append(f"{self._name} configures the client")
        config["identity"] = f"{config['identity'] or ''}{self._name}"
        return config

    async def connect_service_client(
        self, config: ConnectConfig, next: Callable[[ConnectConfig], Awaitable[Connection]]
    ) -> Connection:
        self._notes.append(f"{self._name} connects")
        return await next(ConnectConfig(config.target.replace("(where)", ":memory:")))

    def configure_worker(self, config: WorkerConfig) -> WorkerConfig:
        self._notes.append(f"{self._name} configures the worker")
        return config

    async def run_worker(self, worker: Worker, next: Callable[[Worker], Awaitable[None]]) -> None:
        self._notes.append(f"{self._name} begins")
        await next(worker)
        self._notes.append(f"{self._name} ends")


async def test_the_first_is_outermost_and_those_of_the_client_come_first() -> None:
    notes: list[str] = []
    one, two, own = (Noting(name, notes) for name in ("one", "two", "own"))
    async with await Client.connect("sqlite:(where)", plugins=[one, two]) as made:
        assert made.identity == "onetwo"
        async with Worker(made, task_queue=QUEUE, workflows=[UsesPool], plugins=[own, one]):
            pass
    assert notes == [
        "one connects",
        "two connects",
        "one configures the client",
        "two configures the client",
        "one configures the worker",
        "two configures the worker",
        "own configures the worker",
        "one begins",
        "two begins",
        "own begins",
        "own ends",
        "two ends",
        "one ends",
    ]


class AroundReplays(worker.Plugin):
    """Notes what is replayed, and replaces what came of it."""

    def __init__(self, name: str, notes: list[str]) -> None:
        self._name, self._notes = name, notes

    @contextlib.asynccontextmanager
    async def run_replayer(
        self, replayer: Replayer, histories: AsyncIterator[client.WorkflowHistory], next: worker.RunReplayer
    ) -> AsyncGenerator[AsyncIterator[worker.WorkflowReplayResult]]:
        async def noted() -> AsyncIterator[client.WorkflowHistory]:
            async for history in histories:
                self._notes.append(f"{self._name} sees {history.workflow_id}")
                yield history

        self._notes.append(f"{self._name} begins")
        async with next(replayer, noted()) as results:
            yield results
        self._notes.append(f"{self._name} ends")


async def test_plugins_stand_around_replays() -> None:
    plugin, notes = bundle(), list[str]()
    async with await Client.connect("sqlite::memory:", plugins=[plugin]) as made:
        async with Worker(made, task_queue=QUEUE):
            handle = await made.start_workflow(UsesPool.run, False, id="w", task_queue=QUEUE)
            await handle.result()
        history = await handle.fetch_history()
    one, two = AroundReplays("one", notes), AroundReplays("two", notes)
    replayer = Replayer(workflows=[], plugins=[plugin, one, two])
    assert (await replayer.replay_workflow(history)).replay_failure is None
    expected = ["one begins", "two begins", "one sees w", "two sees w", "two ends", "one ends"]
    assert notes == expected

    async def twice() -> AsyncIterator[client.WorkflowHistory]:
        yield history
        yield history

    notes.clear()
    async with replayer.workflow_replay_iterator(twice()) as results:
        seen = []
        async for result in results:
            seen.append((result.replay_failure, list(pool)))
    assert seen == [(None, ["open"])] * 2, "the context of the simple plugin is open meanwhile"
    assert notes == [*expected[:4], *expected[2:]]
    assert pool == []


async def test_an_error_around_a_run_ends_the_worker() -> None:
    @contextlib.asynccontextmanager
    async def broken() -> AsyncIterator[Any]:
        raise OSError("no pool")
        yield

    async with await Client.connect("sqlite::memory:") as made:
        worker = Worker(made, task_queue=QUEUE, workflows=[UsesPool], plugins=[SimplePlugin("p", run_context=broken)])
        with pytest.raises(OSError, match="no pool"):
            await worker.run()


def test_a_blocking_client_takes_plugins(tmp_path: Path) -> None:
    with BlockingClient.connect(f"sqlite:{tmp_path}/clew.db", plugins=[bundle()]) as made:
        assert made.client.data_converter is CONVERTER


def test_a_plugin_has_a_name() -> None:
    assert bundle().name() == "bundle"
    assert client.Plugin().name() == "clew.client._plugin.Plugin"
    assert worker.Plugin().name() == "clew.worker._plugin.Plugin"


async def test_another_client_is_made_with_the_settings_of_one() -> None:
    notes: list[str] = []
    meter = MetricMeter.noop
    one = Noting("one", notes)
    async with await Client.connect("sqlite::memory:", identity="me-", plugins=[one], metric_meter=meter) as made:
        config = made.config()
        assert (config["identity"], config["plugins"], config["metric_meter"]) == ("me-", [one], meter)
        config["namespace"] = "returns"
        other = Client(**config)
        assert (other.namespace, other.identity) == ("returns", "me-one"), "the plugins configure it anew, once"
        assert other.config()["connection"] is config["connection"], "no layer of measuring around another"
        assert (made.namespace, made.config()["namespace"]) == ("default", "default"), "the first one is as it was"
        with pytest.raises(client.RPCError, match="returns"):
            await other.count_workflows()
    assert notes == ["one connects", "one configures the client", "one configures the client"]


class Rerouting(client.Plugin):
    """Gives the client another connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def configure_client(self, config: ClientConfig) -> ClientConfig:
        config["connection"] = self._connection
        return config


async def test_a_plugin_may_give_the_client_another_connection() -> None:
    async with await Client.connect("sqlite::memory:") as first, await Client.connect("sqlite::memory:") as second:
        rerouted = Client(first.connection, plugins=[Rerouting(second.connection)])
        assert rerouted.connection is second.connection
