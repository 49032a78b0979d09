"""A plugin made of values: data converter, interceptors, activities, workflows, and a context around workers.

Owns: `SimplePlugin`. Never: the hooks themselves (``client`` and ``worker`` have them).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeAlias, TypeVar

from clew import client, worker
from clew.converter import DataConverter

T = TypeVar("T")
PluginParameter: TypeAlias = T | Callable[[T], T] | None
"""A value to add (for a converter: to set), a function from what is configured to what shall be, or None."""


class SimplePlugin(client.Plugin, worker.Plugin):
    """Adds to what clients, workers and replayers are made with; pass it to `Client.connect`.

    Args:
        name: By which people know it.
        data_converter: Takes the place of the configured one.
        interceptors: Of clients, of workers, or both; each is added where it fits.
        activities: Added to every worker.
        workflows: Added to every worker and replayer.
        workflow_failure_exception_types: Added to every worker and replayer.
        run_context: Entered around each run of a worker or replayer, for what its code needs.
    """

    def __init__(
        self,
        name: str,
        *,
        data_converter: PluginParameter[DataConverter] = None,
        interceptors: Sequence[client.Interceptor | worker.Interceptor] = (),
        activities: PluginParameter[Sequence[Callable[..., Any]]] = None,
        workflows: PluginParameter[Sequence[type[Any]]] = None,
        workflow_failure_exception_types: PluginParameter[Sequence[type[BaseException]]] = None,
        run_context: Callable[[], AbstractAsyncContextManager[Any]] | None = None,
    ) -> None:
        self._name = name
        self._data_converter = data_converter
        self._interceptors = tuple(interceptors)
        self._activities = activities
        self._workflows = workflows
        self._failure_types = workflow_failure_exception_types
        self._run_context = run_context

    def name(self) -> str:
        """Give its name."""
        return self._name

    def configure_client(self, config: client.ClientConfig) -> client.ClientConfig:
        """Set the converter, add the interceptors of clients."""
        converter = self._converter(config["data_converter"])
        if converter is not None:
            config["data_converter"] = converter
        mine = [one for one in self._interceptors if isinstance(one, client.Interceptor)]
        config["interceptors"] = [*config["interceptors"], *mine]
        return config

    def configure_worker(self, config: worker.WorkerConfig) -> worker.WorkerConfig:
        """Add activities, workflows, exception types and the interceptors of workers."""
        config["activities"] = _added(config["activities"], self._activities)
        config["workflows"] = _added(config["workflows"], self._workflows)
        config["workflow_failure_exception_types"] = _added(
            config["workflow_failure_exception_types"], self._failure_types
        )
        config["interceptors"] = [*config["interceptors"], *self._of_workers()]
        return config

    def configure_replayer(self, config: worker.ReplayerConfig) -> worker.ReplayerConfig:
        """Set the converter, add workflows, exception types and the interceptors of workers."""
        config["data_converter"] = self._converter(config["data_converter"])
        config["workflows"] = _added(config["workflows"], self._workflows)
        config["workflow_failure_exception_types"] = _added(
            config["workflow_failure_exception_types"], self._failure_types
        )
        config["interceptors"] = [*config["interceptors"], *self._of_workers()]
        return config

    async def run_worker(self, worker: worker.Worker, next: Callable[[worker.Worker], Awaitable[None]]) -> None:
        """Run the worker within the context."""
        if self._run_context is None:
            await next(worker)
            return
        async with self._run_context():
            await next(worker)

    @asynccontextmanager
    async def _replay_within(
        self,
        context: Callable[[], AbstractAsyncContextManager[Any]],
        replayer: worker.Replayer,
        histories: AsyncIterator[client.WorkflowHistory],
        next: worker.RunReplayer,
    ) -> AsyncGenerator[AsyncIterator[worker.WorkflowReplayResult], None]:
        async with context(), next(replayer, histories) as results:
            yield results

    def run_replayer(
        self, replayer: worker.Replayer, histories: AsyncIterator[client.WorkflowHistory], next: worker.RunReplayer
    ) -> AbstractAsyncContextManager[AsyncIterator[worker.WorkflowReplayResult]]:
        """Run the replayer within the context."""
        if self._run_context is None:
            return next(replayer, histories)
        return self._replay_within(self._run_context, replayer, histories, next)

    def _of_workers(self) -> list[worker.Interceptor]:
        return [one for one in self._interceptors if isinstance(one, worker.Interceptor)]

    def _converter(self, configured: DataConverter | None) -> DataConverter | None:
        mine = self._data_converter
        if mine is None:
            return configured
        return mine if isinstance(mine, DataConverter) else mine(configured or DataConverter.default)


def _added(configured: Sequence[T], mine: PluginParameter[Sequence[T]]) -> Sequence[T]:
    if mine is None:
        return configured
    return mine(configured) if callable(mine) else [*configured, *mine]
