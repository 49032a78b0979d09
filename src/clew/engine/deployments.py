"""Deployments as operators change and read them.

Owns: what a change of routing may be, and how much each version is still needed. Never: where a task goes
(``engine.versions``).

How it works: a version that leaves the routing is *draining* while open runs are pinned to it, which the store counts
when somebody asks, and *drained* after that. It is never wrong for long: a run that is not pinned yet goes with the
routing, wherever its first task was.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Final

from clew.engine.namespaces import Namespaces
from clew.engine.summary import OPEN_PINNED_VERSION
from clew.engine.versions import DeploymentRecord, VersionRecord, Versions, deployment_not_found
from clew.model.policies import DeploymentVersion
from clew.model.rejection import Rejection, RejectionCode
from clew.ports.clock import Clock
from clew.ports.store import Store, VisibilityCondition, VisibilityFilter
from clew.service import deployments as d
from clew.service.errors import RPCError
from clew.service.requests import WorkerHello

DEPLOYMENTS_MAX: Final = 100
VERSIONS_MAX: Final = 100
"""Of each deployment (semantics 1.8)."""

Status = d.DeploymentVersionStatus


class Deployments:
    """See the module docstring. All methods belong to the engine's loop."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        versions: Versions,
        namespaces: Namespaces,
        *,
        is_attached: Callable[[str, DeploymentVersion], bool],
    ) -> None:
        self._store = store
        self._clock = clock
        self._versions = versions
        self._namespaces = namespaces
        self._is_attached = is_attached

    async def admit_worker(self, hello: WorkerHello) -> None:
        """Make the worker's version known before it is attached; a version that is not needed any more makes room.

        Raises:
            RPCError: Its version cannot be one (``invalid_argument``), or there are too many (``limit_exceeded``).
        """
        version = hello.deployment_version
        if hello.uses_versioning and version is not None and version.deployment_name and version.build_id:
            await self._make_room(hello.namespace, version)
        await self._versions.note_worker(hello)

    async def _make_room(self, namespace: str, version: DeploymentVersion) -> None:
        name = version.deployment_name
        found = self._versions.find(namespace, name)
        if found is None:
            if len(self._versions.all(namespace)) >= DEPLOYMENTS_MAX:
                raise _too_many(f"namespace {namespace!r} has {DEPLOYMENTS_MAX} deployments already")
            return
        if version.build_id in found[1].versions or len(found[1].versions) < VERSIONS_MAX:
            return
        described = await self.describe(d.DescribeDeploymentRequest(namespace=namespace, deployment_name=name))
        for old in reversed(described.versions):
            if old.status in (Status.DRAINED, Status.INACTIVE) and not old.is_polled:
                await self.delete_version(
                    d.DeleteDeploymentVersionRequest(namespace=namespace, deployment_name=name, build_id=old.build_id)
                )
                return
        raise _too_many(f"deployment {name!r} has {VERSIONS_MAX} versions already, and all of them are still needed")

    async def set_current(self, request: d.SetCurrentVersionRequest) -> d.DeploymentInfo:
        """Change the current version.

        Raises:
            RPCError: ``deployment_not_found``, ``deployment_changed``, ``deployment_not_ready``.
        """
        namespace, name, build_id = request.namespace, request.deployment_name, request.build_id
        self._namespaces.get(namespace)
        now = self._clock.now()

        def change(record: DeploymentRecord) -> None:
            self._check_token(request, record)
            if record.current_build_id == build_id and record.ramping_build_id != build_id:
                return
            self._check_ready(request, record, build_id)
            if record.ramping_build_id == build_id:
                record.ramping_build_id, record.ramp_percentage = None, 0.0
            _deactivate(record, record.current_build_id, now)
            record.current_build_id = build_id
            if build_id:
                version = record.versions.setdefault(build_id, VersionRecord(created_at=now))
                version.current_since, version.ramping_since = now, None
            record.routing_changed_at, record.identity = now, request.identity

        await self._versions.change(namespace, name, change, may_create=request.allow_no_pollers)
        return self._info(namespace, name)

    async def set_ramping(self, request: d.SetRampingVersionRequest) -> d.DeploymentInfo:
        """Begin, change or end the ramp.

        Raises:
            RPCError: ``invalid_argument``, ``deployment_not_found``, ``deployment_changed``, ``deployment_not_ready``.
        """
        namespace, name, build_id = request.namespace, request.deployment_name, request.build_id
        self._namespaces.get(namespace)
        percentage = 0.0 if build_id is None else request.percentage
        if not 0 <= percentage <= 100:
            raise _refused(f"the ramp is {percentage} percent; it must be from 0 to 100")
        now = self._clock.now()

        def change(record: DeploymentRecord) -> None:
            self._check_token(request, record)
            if (record.ramping_build_id, record.ramp_percentage) == (build_id, percentage):
                return
            if build_id is not None:
                if build_id == record.current_build_id:
                    which = f"version {build_id!r} is" if build_id else "workers without versioning are"
                    raise _refused(f"{which} current in deployment {name!r}; ramp another version than the current one")
                self._check_ready(request, record, build_id)
            if record.ramping_build_id != build_id:
                if record.ramping_build_id is not None:
                    _deactivate(record, record.ramping_build_id, now)
                if build_id:
                    version = record.versions.setdefault(build_id, VersionRecord(created_at=now))
                    version.ramping_since = now
            record.ramping_build_id, record.ramp_percentage = build_id, percentage
            record.routing_changed_at, record.identity = now, request.identity

        await self._versions.change(
            namespace, name, change, may_create=request.allow_no_pollers and build_id is not None
        )
        return self._info(namespace, name)

    async def delete_version(self, request: d.DeleteDeploymentVersionRequest) -> None:
        """Forget a version.

        Raises:
            RPCError: ``deployment_not_found``, ``deployment_not_ready``.
        """
        namespace, name, build_id = request.namespace, request.deployment_name, request.build_id
        described = await self.describe(d.DescribeDeploymentRequest(namespace=namespace, deployment_name=name))
        found = next((version for version in described.versions if version.build_id == build_id), None)
        if found is None:
            raise _version_not_found(name, build_id, [version.build_id for version in described.versions])
        if found.status in (Status.CURRENT, Status.RAMPING):
            raise _not_ready(f"version {build_id!r} of deployment {name!r} is {found.status.value.lower()}; route away")
        if found.is_polled:
            raise _not_ready(f"workers of version {build_id!r} of deployment {name!r} are running; stop them first")
        if found.open_pinned_count and not request.skip_drainage:
            raise _not_ready(
                f"{found.open_pinned_count} open runs are pinned to version {build_id!r} of deployment {name!r}; let "
                "them end, move them to another version, or skip the drainage"
            )

        def change(record: DeploymentRecord) -> None:
            if build_id not in (record.current_build_id, record.ramping_build_id):
                record.versions.pop(build_id, None)

        await self._versions.change(namespace, name, change)

    async def describe(self, request: d.DescribeDeploymentRequest) -> d.DeploymentDescription:
        """Everything about a deployment.

        Raises:
            RPCError: ``deployment_not_found``.
        """
        namespace, name = request.namespace, request.deployment_name
        self._namespaces.get(namespace)
        await self._versions.load()
        found = self._versions.find(namespace, name)
        if found is None:
            raise deployment_not_found(namespace, name, self._versions.all(namespace))
        _, record = found
        versions = [
            await self._version(namespace, DeploymentVersion(name, build_id), version, record)
            for build_id, version in record.versions.items()
        ]
        versions.reverse()
        versions.sort(key=lambda version: version.created_at, reverse=True)
        return d.DeploymentDescription(info=self._info(namespace, name), versions=tuple(versions))

    async def list_all(self, request: d.ListDeploymentsRequest) -> d.ListDeploymentsResponse:
        """The deployments of a namespace, by name."""
        self._namespaces.get(request.namespace)
        await self._versions.load()
        names = sorted(self._versions.all(request.namespace))
        return d.ListDeploymentsResponse(deployments=tuple(self._info(request.namespace, name) for name in names))

    async def _version(
        self, namespace: str, version: DeploymentVersion, record: VersionRecord, deployment: DeploymentRecord
    ) -> d.DeploymentVersionInfo:
        pinned_count = await self._count_pinned(namespace, version)
        is_ramping = deployment.ramping_build_id == version.build_id
        if deployment.current_build_id == version.build_id:
            status = Status.CURRENT
        elif is_ramping:
            status = Status.RAMPING
        elif pinned_count:
            status = Status.DRAINING
        else:
            status = Status.DRAINED if record.last_deactivated_at is not None else Status.INACTIVE
        return d.DeploymentVersionInfo(
            build_id=version.build_id,
            status=status,
            created_at=record.created_at,
            current_since=record.current_since,
            ramping_since=record.ramping_since,
            ramp_percentage=deployment.ramp_percentage if is_ramping else 0.0,
            last_deactivated_at=record.last_deactivated_at,
            open_pinned_count=pinned_count,
            task_queues=tuple(record.task_queues),
            is_polled=self._is_attached(namespace, version),
        )

    async def _count_pinned(self, namespace: str, version: DeploymentVersion) -> int:
        condition = VisibilityCondition(
            attribute=OPEN_PINNED_VERSION, operator="=", values=(version.to_canonical_string(),)
        )
        counts = await self._store.count_runs(namespace, VisibilityFilter(conditions=(condition,)))
        return sum(counts.values())

    def _info(self, namespace: str, name: str) -> d.DeploymentInfo:
        found = self._versions.find(namespace, name)
        assert found is not None, f"deployment {name!r} was just read"
        revision, record = found
        return d.DeploymentInfo(
            name=name,
            created_at=record.created_at,
            current_build_id=record.current_build_id,
            ramping_build_id=record.ramping_build_id,
            ramp_percentage=record.ramp_percentage,
            routing_changed_at=record.routing_changed_at,
            identity=record.identity,
            conflict_token=str(revision),
        )

    def _check_token(
        self, request: d.SetCurrentVersionRequest | d.SetRampingVersionRequest, record: DeploymentRecord
    ) -> None:
        name, token = request.deployment_name, request.conflict_token
        found = self._versions.find(request.namespace, name)
        revision = str(found[0]) if found is not None else ""
        if token and token != revision:
            raise RPCError(
                Rejection(
                    code=RejectionCode.DEPLOYMENT_CHANGED,
                    message=f"deployment {name!r} has changed since it was read (it was at {token}, it is at "
                    f"{revision or 'nothing'}); nothing was done; describe it, decide again",
                    details={"conflict_token": revision},
                )
            )

    def _check_ready(
        self,
        request: d.SetCurrentVersionRequest | d.SetRampingVersionRequest,
        record: DeploymentRecord,
        build_id: str,
    ) -> None:
        """A version that gets runs must have workers, on every task queue that is served now."""
        if not build_id:
            return
        name = request.deployment_name
        known = record.versions.get(build_id)
        if known is None and not request.allow_no_pollers:
            raise _version_not_found(name, build_id, list(record.versions))
        if not request.allow_no_pollers and not self._is_attached(request.namespace, DeploymentVersion(name, build_id)):
            raise _not_ready(
                f"no worker of version {build_id!r} of deployment {name!r} is running; start one, or allow no pollers"
            )
        current = record.versions.get(record.current_build_id)
        missing = sorted(set(current.task_queues) - set(known.task_queues if known else ())) if current else []
        if missing and not request.ignore_missing_task_queues:
            raise _not_ready(
                f"no worker of version {build_id!r} of deployment {name!r} has polled {', '.join(map(repr, missing))}, "
                f"which the current version {record.current_build_id!r} serves; start workers there, or ignore missing "
                "task queues"
            )


def _deactivate(record: DeploymentRecord, build_id: str, now: datetime) -> None:
    version = record.versions.get(build_id)
    if version is not None:
        version.current_since = version.ramping_since = None
        version.last_deactivated_at = now


def _refused(finding: str) -> RPCError:
    return RPCError(Rejection(code=RejectionCode.INVALID_ARGUMENT, message=finding))


def _too_many(finding: str) -> RPCError:
    return RPCError(
        Rejection(
            code=RejectionCode.LIMIT_EXCEEDED, message=f"{finding}; the worker is refused; delete what is not needed"
        )
    )


def _not_ready(finding: str) -> RPCError:
    return RPCError(Rejection(code=RejectionCode.DEPLOYMENT_NOT_READY, message=finding))


def _version_not_found(name: str, build_id: str, known: list[str]) -> RPCError:
    there = f"there are: {', '.join(sorted(known))}" if known else "there is none"
    return RPCError(
        Rejection(
            code=RejectionCode.DEPLOYMENT_NOT_FOUND,
            message=f"deployment {name!r} has no version {build_id!r}; {there}. A version comes into being when a "
            "worker of it is first run",
            details={"deployment_name": name, "build_id": build_id},
        )
    )
