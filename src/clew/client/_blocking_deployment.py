"""Worker deployments, for the blocking client.

Owns: the blocking form of each method. Never: behaviour of its own (``_deployment`` has it).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import final

from clew.client._blocking_calls import BlockingCalls
from clew.client._client import Client
from clew.client._deployment import WorkerDeploymentDescription, WorkerDeploymentHandle, WorkerDeploymentInfo


@final
class BlockingWorkerDeploymentHandle:
    """A handle on a deployment; made by `BlockingClient.get_worker_deployment_handle`."""

    def __init__(self, calls: BlockingCalls, name: str) -> None:
        self._calls = calls
        self._name = name

    def __repr__(self) -> str:
        return f"<BlockingWorkerDeploymentHandle {self._name!r}>"

    @property
    def name(self) -> str:
        """Name of the deployment."""
        return self._name

    def describe(self, *, rpc_timeout: timedelta | None = None) -> WorkerDeploymentDescription:
        """As `WorkerDeploymentHandle.describe`, blocking."""
        return self._calls.call(lambda client: self._on(client).describe(rpc_timeout=rpc_timeout))

    def set_current_version(
        self,
        build_id: str,
        *,
        conflict_token: str = "",
        ignore_missing_task_queues: bool = False,
        allow_no_pollers: bool = False,
        rpc_timeout: timedelta | None = None,
    ) -> WorkerDeploymentInfo:
        """As `WorkerDeploymentHandle.set_current_version`, blocking."""
        return self._calls.call(
            lambda client: self._on(client).set_current_version(
                build_id,
                conflict_token=conflict_token,
                ignore_missing_task_queues=ignore_missing_task_queues,
                allow_no_pollers=allow_no_pollers,
                rpc_timeout=rpc_timeout,
            )
        )

    def set_ramping_version(
        self,
        build_id: str | None,
        percentage: float = 0.0,
        *,
        conflict_token: str = "",
        ignore_missing_task_queues: bool = False,
        allow_no_pollers: bool = False,
        rpc_timeout: timedelta | None = None,
    ) -> WorkerDeploymentInfo:
        """As `WorkerDeploymentHandle.set_ramping_version`, blocking."""
        return self._calls.call(
            lambda client: self._on(client).set_ramping_version(
                build_id,
                percentage,
                conflict_token=conflict_token,
                ignore_missing_task_queues=ignore_missing_task_queues,
                allow_no_pollers=allow_no_pollers,
                rpc_timeout=rpc_timeout,
            )
        )

    def delete_version(
        self, build_id: str, *, skip_drainage: bool = False, rpc_timeout: timedelta | None = None
    ) -> None:
        """As `WorkerDeploymentHandle.delete_version`, blocking."""
        self._calls.call(
            lambda client: self._on(client).delete_version(
                build_id, skip_drainage=skip_drainage, rpc_timeout=rpc_timeout
            )
        )

    def _on(self, client: Client) -> WorkerDeploymentHandle:
        return WorkerDeploymentHandle(client, self._name)


class BlockingDeploymentCalls:
    """The calls of a blocking client about deployments of workers."""

    _calls: BlockingCalls

    def get_worker_deployment_handle(self, name: str) -> BlockingWorkerDeploymentHandle:
        """As `Client.get_worker_deployment_handle`."""
        return BlockingWorkerDeploymentHandle(self._calls, name)

    def list_worker_deployments(self, *, rpc_timeout: timedelta | None = None) -> Sequence[WorkerDeploymentInfo]:
        """As `Client.list_worker_deployments`, blocking."""
        return self._calls.call(lambda client: client.list_worker_deployments(rpc_timeout=rpc_timeout))
