"""Worker deployments as operators see and change them.

Owns: `WorkerDeploymentHandle` and `DeploymentCalls`, which `Client` inherits. Never: the rules (the engine has them).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, cast, final

from clew.client._calls import call_service
from clew.service import deployments as d
from clew.service.deployments import (
    DeploymentDescription as WorkerDeploymentDescription,
)
from clew.service.deployments import (
    DeploymentInfo as WorkerDeploymentInfo,
)
from clew.service.deployments import (
    DeploymentVersionInfo as WorkerDeploymentVersionInfo,
)
from clew.service.deployments import (
    DeploymentVersionStatus as WorkerDeploymentVersionStatus,
)

if TYPE_CHECKING:
    from clew.client._client import Client

__all__ = [
    "DeploymentCalls",
    "WorkerDeploymentDescription",
    "WorkerDeploymentHandle",
    "WorkerDeploymentInfo",
    "WorkerDeploymentVersionInfo",
    "WorkerDeploymentVersionStatus",
]


@final
class WorkerDeploymentHandle:
    """A handle on one deployment of workers; made by `Client.get_worker_deployment_handle`."""

    def __init__(self, client: Client, name: str) -> None:
        self._client = client
        self._name = name

    def __repr__(self) -> str:
        return f"<WorkerDeploymentHandle {self._name!r}>"

    @property
    def name(self) -> str:
        """Name of the deployment."""
        return self._name

    async def describe(self, *, rpc_timeout: timedelta | None = None) -> WorkerDeploymentDescription:
        """Read its routing and its versions, with how much each is still needed.

        Args:
            rpc_timeout: Longest wait for the answer.

        Raises:
            RPCError: There is no such deployment: none of its workers was ever run.
        """
        connection = self._client.connection
        request = d.DescribeDeploymentRequest(namespace=self._client.namespace, deployment_name=self._name)
        return await call_service(connection, connection.service.describe_deployment, request, timeout=rpc_timeout)

    async def set_current_version(
        self,
        build_id: str,
        *,
        conflict_token: str = "",
        ignore_missing_task_queues: bool = False,
        allow_no_pollers: bool = False,
        rpc_timeout: timedelta | None = None,
    ) -> WorkerDeploymentInfo:
        """Give a version all runs that are not pinned: new ones, and those that auto-upgrade with their next task.

        Args:
            build_id: The version; empty for workers without versioning.
            conflict_token: Of the description that this was decided on; refused when there was a change since.
            ignore_missing_task_queues: Also when the version's workers do not poll all task queues that the present
                current version serves.
            allow_no_pollers: Also when none of its workers is running.
            rpc_timeout: Longest wait for the answer.

        Raises:
            RPCError: There is no such deployment or version, it is not ready, or the deployment has changed.
        """
        connection = self._client.connection
        request = d.SetCurrentVersionRequest(
            namespace=self._client.namespace,
            deployment_name=self._name,
            build_id=build_id,
            conflict_token=conflict_token,
            ignore_missing_task_queues=ignore_missing_task_queues,
            allow_no_pollers=allow_no_pollers,
            identity=self._client.identity,
        )
        return await call_service(connection, connection.service.set_current_version, request, timeout=rpc_timeout)

    async def set_ramping_version(
        self,
        build_id: str | None,
        percentage: float = 0.0,
        *,
        conflict_token: str = "",
        ignore_missing_task_queues: bool = False,
        allow_no_pollers: bool = False,
        rpc_timeout: timedelta | None = None,
    ) -> WorkerDeploymentInfo:
        """Give a version a share of the runs that are not pinned; the workflow id decides which, for good.

        Args:
            build_id: The version; empty for workers without versioning; None ends the ramp.
            percentage: The share, 0 to 100.
            conflict_token: Of the description that this was decided on; refused when there was a change since.
            ignore_missing_task_queues: Also when the version's workers do not poll all task queues that the current
                version serves.
            allow_no_pollers: Also when none of its workers is running.
            rpc_timeout: Longest wait for the answer.

        Raises:
            RPCError: There is no such deployment or version, it is not ready or current, or the deployment has changed.
        """
        connection = self._client.connection
        request = d.SetRampingVersionRequest(
            namespace=self._client.namespace,
            deployment_name=self._name,
            build_id=build_id,
            percentage=percentage,
            conflict_token=conflict_token,
            ignore_missing_task_queues=ignore_missing_task_queues,
            allow_no_pollers=allow_no_pollers,
            identity=self._client.identity,
        )
        return await call_service(connection, connection.service.set_ramping_version, request, timeout=rpc_timeout)

    async def delete_version(
        self, build_id: str, *, skip_drainage: bool = False, rpc_timeout: timedelta | None = None
    ) -> None:
        """Forget a version that gets no runs and has no workers.

        Args:
            build_id: The version.
            skip_drainage: Also when open runs are pinned to it.
            rpc_timeout: Longest wait for the answer.

        Raises:
            RPCError: There is no such version, or it is still needed.
        """
        connection = self._client.connection
        request = d.DeleteDeploymentVersionRequest(
            namespace=self._client.namespace,
            deployment_name=self._name,
            build_id=build_id,
            skip_drainage=skip_drainage,
            identity=self._client.identity,
        )
        await call_service(connection, connection.service.delete_deployment_version, request, timeout=rpc_timeout)


class DeploymentCalls:
    """The calls of a client about worker deployments."""

    def get_worker_deployment_handle(self, name: str) -> WorkerDeploymentHandle:
        """Give a handle on a deployment; asks nothing of the engine.

        Args:
            name: Name of the deployment.
        """
        return WorkerDeploymentHandle(cast("Client", self), name)

    async def list_worker_deployments(self, *, rpc_timeout: timedelta | None = None) -> Sequence[WorkerDeploymentInfo]:
        """Read the deployments of the namespace, by name.

        Args:
            rpc_timeout: Longest wait for the answer.
        """
        client = cast("Client", self)
        request = d.ListDeploymentsRequest(namespace=client.namespace)
        service = client.connection.service
        response = await call_service(client.connection, service.list_deployments, request, timeout=rpc_timeout)
        return response.deployments
