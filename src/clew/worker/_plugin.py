"""Plugins of workers and replayers: what a bundle of settings may change before one is made, or put around its run.

Owns: `Plugin` and the configurations it sees, with the names of the published API. Never: a plugin (``clew.plugin`` has
a simple one).
"""

from __future__ import annotations

import concurrent.futures
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol, TypedDict

from clew.converter import DataConverter
from clew.model.history import WorkflowHistory
from clew.worker._interceptor import Interceptor
from clew.worker._settings import ClientLike, WorkerDeploymentConfig

if TYPE_CHECKING:
    from clew.worker._replayer import Replayer, WorkflowReplayResult
    from clew.worker._worker import Worker


class RunReplayer(Protocol):
    """The run of a replayer, or what is left of it within a plugin."""

    def __call__(
        self, replayer: Replayer, histories: AsyncIterator[WorkflowHistory], /
    ) -> AbstractAsyncContextManager[AsyncIterator[WorkflowReplayResult]]: ...


class WorkerConfig(TypedDict):
    """What a worker is made with, as far as a plugin may change it; `Worker` explains each."""

    client: ClientLike
    task_queue: str
    activities: Sequence[Callable[..., Any]]
    workflows: Sequence[type[Any]]
    activity_executor: concurrent.futures.Executor | None
    interceptors: Sequence[Interceptor]
    build_id: str | None
    identity: str | None
    max_cached_workflows: int
    max_concurrent_workflow_tasks: int | None
    max_concurrent_activities: int | None
    max_concurrent_local_activities: int | None
    max_activities_per_second: float | None
    graceful_shutdown_timeout: timedelta
    workflow_failure_exception_types: Sequence[type[BaseException]]
    debug_mode: bool
    deployment_config: WorkerDeploymentConfig | None


class ReplayerConfig(TypedDict):
    """What a replayer is made with, as far as a plugin may change it; `Replayer` explains each."""

    workflows: Sequence[type[Any]]
    namespace: str
    data_converter: DataConverter | None
    interceptors: Sequence[Interceptor]
    workflow_failure_exception_types: Sequence[type[BaseException]]


class Plugin:
    """Base of what is passed as ``plugins`` to `Worker` and `Replayer`; override what you need.

    Those of the client come first. The first of all configures first and is outermost around the run.
    """

    def name(self) -> str:
        """Give the name by which people know it."""
        return f"{type(self).__module__}.{type(self).__qualname__}"

    def configure_worker(self, config: WorkerConfig) -> WorkerConfig:
        """Change what the worker is made with."""
        return config

    async def run_worker(self, worker: Worker, next: Callable[[Worker], Awaitable[None]]) -> None:
        """Run the worker.

        Args:
            worker: Which.
            next: The rest of the chain; call it to go on.
        """
        await next(worker)

    def configure_replayer(self, config: ReplayerConfig) -> ReplayerConfig:
        """Change what the replayer is made with."""
        return config

    def run_replayer(
        self, replayer: Replayer, histories: AsyncIterator[WorkflowHistory], next: RunReplayer
    ) -> AbstractAsyncContextManager[AsyncIterator[WorkflowReplayResult]]:
        """Run the replayer: give a context manager around the results.

        Args:
            replayer: Which.
            histories: What it is to replay; one, for `Replayer.replay_workflow`.
            next: The rest of the chain; call it to go on.
        """
        return next(replayer, histories)


def replay_through(plugins: Sequence[Plugin], run: RunReplayer) -> RunReplayer:
    """Give `run` with the plugins around it."""

    def around(plugin: Plugin, next: RunReplayer) -> RunReplayer:
        return lambda replayer, histories: plugin.run_replayer(replayer, histories, next)

    for plugin in reversed(plugins):
        run = around(plugin, run)
    return run


def merge_plugins(client: ClientLike, own: Sequence[Plugin]) -> list[Plugin]:
    """Give the plugins of a worker: those of its client that are for workers too, then its own."""
    of_client = [plugin for plugin in getattr(client, "plugins", ()) if isinstance(plugin, Plugin)]
    return [*of_client, *(plugin for plugin in own if plugin not in of_client)]


def run_through(
    plugins: Sequence[Plugin], run: Callable[[Worker], Awaitable[None]]
) -> Callable[[Worker], Awaitable[None]]:
    """Give `run` with the plugins around it."""

    def around(plugin: Plugin, next: Callable[[Worker], Awaitable[None]]) -> Callable[[Worker], Awaitable[None]]:
        return lambda worker: plugin.run_worker(worker, next)

    for plugin in reversed(plugins):
        run = around(plugin, run)
    return run
