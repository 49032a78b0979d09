"""Which worker version a task goes to, from what this node knows of deployments.

Owns: the stored record of a deployment, the table of routes, and the two questions that matching asks of it.
Never: changes a deployment for a caller (``engine.deployments``), or decides what a run is pinned to (``core``).

How it works: a deployment is one row, changed by compare-and-swap: its routing, its versions, and the task queues that
the workers of each version have polled. From these a table *task queue → route* is made whenever one changes; if two
deployments claim one task queue, the one whose routing was changed last has it. A worker's version and task queue are
made durable before it is attached, so that no task is ever given to a version that nobody knows.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Final

import msgspec

from clew.core.state import ExecutionState
from clew.core.versioning import Route, pinned_version
from clew.engine.peers import ALONE, Peers
from clew.model.policies import DeploymentVersion
from clew.model.rejection import Rejection, RejectionCode
from clew.ports.clock import Clock
from clew.ports.store import DeploymentRow, Store
from clew.service.errors import RPCError
from clew.service.requests import WorkerHello

RACES_MAX: Final = 20
"""Times a change is made again because another one came first."""

NAME_BYTES_MAX: Final = 255
"""Of a deployment's name, and of a build id (semantics 1.1)."""


class VersionRecord(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One version as stored."""

    created_at: datetime
    task_queues: list[str] = []
    current_since: datetime | None = None
    ramping_since: datetime | None = None
    last_deactivated_at: datetime | None = None


class DeploymentRecord(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One deployment as stored. The empty build id stands for workers without versioning."""

    created_at: datetime
    current_build_id: str = ""
    ramping_build_id: str | None = None
    ramp_percentage: float = 0.0
    routing_changed_at: datetime | None = None
    identity: str = ""
    versions: dict[str, VersionRecord] = {}


Key = tuple[str, str]
"""``(namespace, deployment name)``."""

Change = Callable[[DeploymentRecord], None]
"""Changes a record in place, or raises `RPCError`."""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(DeploymentRecord).decode


class Versions:
    """See the module docstring. All methods belong to the engine's loop."""

    def __init__(self, store: Store, clock: Clock, *, on_rerouted: Callable[[str], None], peers: Peers = ALONE) -> None:
        self._store = store
        self._peers = peers
        self._clock = clock
        self._on_rerouted = on_rerouted
        self._known: dict[Key, tuple[int, DeploymentRecord]] = {}
        self._routes: dict[Key, Route] = {}
        self.has_routes = False
        """Whether any task queue is routed by version."""

    async def load(self) -> None:
        """Read all deployments; also to learn of what other nodes changed."""
        rows = await self._store.list_deployments()
        self._known = {(row.namespace, row.name): (row.revision, _decode(row.body)) for row in rows}
        before, self._routes = self._routes, _routes(self._known)
        self.has_routes = bool(self._routes)
        for namespace in {key[0] for key in {*before, *self._routes} if before.get(key) != self._routes.get(key)}:
            self._on_rerouted(namespace)

    # --- what matching asks -----------------------------------------------------------------------------------------

    def for_workflow(self, state: ExecutionState) -> DeploymentVersion | None:
        """The version that the run's workflow tasks go to; None for workers without versioning."""
        pinned = pinned_version(state)
        if pinned is not None:
            return pinned
        return self._routed(state.namespace, state.task_queue, state.workflow_id) if self._routes else None

    def for_activity(self, state: ExecutionState, task_queue: str) -> DeploymentVersion | None:
        """The version that an activity of the run goes to: the run's own, if that serves the activity's task queue."""
        pinned = pinned_version(state)
        if pinned is not None and (task_queue == state.task_queue or self.serves(state.namespace, pinned, task_queue)):
            return pinned
        return self._routed(state.namespace, task_queue, state.workflow_id) if self._routes else None

    def serves(self, namespace: str, version: DeploymentVersion, task_queue: str) -> bool:
        """Whether a worker of the version has ever polled the task queue."""
        found = self._known.get((namespace, version.deployment_name))
        record = found[1].versions.get(version.build_id) if found is not None else None
        return record is not None and task_queue in record.task_queues

    def _routed(self, namespace: str, task_queue: str, workflow_id: str) -> DeploymentVersion | None:
        route = self._routes.get((namespace, task_queue))
        return None if route is None else route.version_of(workflow_id)

    # --- deployments ------------------------------------------------------------------------------------------------

    def find(self, namespace: str, name: str) -> tuple[int, DeploymentRecord] | None:
        """Revision and record of a deployment, not to be changed."""
        return self._known.get((namespace, name))

    def all(self, namespace: str) -> dict[str, tuple[int, DeploymentRecord]]:
        """The deployments of a namespace by name, not to be changed."""
        return {name: found for (its_namespace, name), found in self._known.items() if its_namespace == namespace}

    async def change(self, namespace: str, name: str, change: Change, *, may_create: bool = False) -> DeploymentRecord:
        """Change a deployment durably, on whatever it is now; what the change raises leaves it as it is.

        Raises:
            RPCError: There is no such deployment (``deployment_not_found``), or others change it all the time.
            StoreError: The store could not be written.
        """
        key = (namespace, name)
        if not self._peers.is_alone:
            await self.load()
        for _ in range(RACES_MAX):
            found = self._known.get(key)
            if found is None and not may_create:
                await self.load()
                found = self._known.get(key)
                if found is None:
                    raise deployment_not_found(namespace, name, self.all(namespace))
            revision, record = found or (0, DeploymentRecord(created_at=self._clock.now()))
            before = _encode(record)
            changed = _decode(before)
            change(changed)
            body = _encode(changed)
            if body == before and found is not None:
                return changed
            row = DeploymentRow(namespace=namespace, name=name, revision=revision + 1, body=body)
            if await self._store.put_deployment_if_revision(row):
                self._known[key] = (revision + 1, changed)
                self._reroute(namespace)
                await self._peers.spread_settings()
                return changed
            await self.load()
        raise RPCError(
            Rejection(
                code=RejectionCode.DEPLOYMENT_CHANGED,
                message=f"deployment {name!r} is being changed by others all the time; nothing was done; try again",
            )
        )

    async def note_worker(self, hello: WorkerHello) -> None:
        """Make the worker's version and task queue known, before it is attached.

        Raises:
            RPCError: Its version cannot be one (``invalid_argument``), or there are too many (``limit_exceeded``).
            StoreError: The store could not be written.
        """
        version, task_queue = hello.deployment_version, hello.task_queue
        if not hello.uses_versioning:
            return
        _check(version)
        assert version is not None, "a worker with versioning names its version"
        if self.serves(hello.namespace, version, task_queue):
            return
        now = self._clock.now()

        def add(record: DeploymentRecord) -> None:
            known = record.versions.setdefault(version.build_id, VersionRecord(created_at=now))
            if task_queue not in known.task_queues:
                known.task_queues = sorted([*known.task_queues, task_queue])

        await self.change(hello.namespace, version.deployment_name, add, may_create=True)

    def _reroute(self, namespace: str) -> None:
        before, self._routes = self._routes, _routes(self._known)
        self.has_routes = bool(self._routes)
        if before != self._routes:
            self._on_rerouted(namespace)


def _routes(known: dict[Key, tuple[int, DeploymentRecord]]) -> dict[Key, Route]:
    routes: dict[Key, Route] = {}
    routed = [(record.routing_changed_at, key, record) for key, (_, record) in known.items()]
    for _, (namespace, name), record in sorted(
        [(at, key, record) for at, key, record in routed if at is not None], key=lambda entry: entry[:2]
    ):
        current, ramping = record.current_build_id, record.ramping_build_id
        ramped = ramping if ramping is not None and record.ramp_percentage > 0 else None
        queues_of_current = set(record.versions[current].task_queues) if current in record.versions else set[str]()
        queues_of_ramp = queues_of_current if ramped == "" else set[str]()
        if ramped is not None and ramped in record.versions:
            queues_of_ramp = set(record.versions[ramped].task_queues)
        for queue in queues_of_current | queues_of_ramp:
            has_ramp = queue in queues_of_ramp
            routes[namespace, queue] = Route(
                current=DeploymentVersion(name, current) if queue in queues_of_current else None,
                ramping=DeploymentVersion(name, ramped) if has_ramp and ramped else None,
                ramp_percentage=record.ramp_percentage if has_ramp else 0.0,
            )
    return routes


def deployment_not_found(namespace: str, name: str, known: dict[str, tuple[int, DeploymentRecord]]) -> RPCError:
    """The refusal for a deployment that is not there."""
    there = f"there are: {', '.join(sorted(known))}" if known else "there is none"
    return RPCError(
        Rejection(
            code=RejectionCode.DEPLOYMENT_NOT_FOUND,
            message=f"deployment {name!r} does not exist in namespace {namespace!r}; {there}. A deployment comes into "
            "being when a worker with versioning is first run",
            details={"namespace": namespace, "deployment_name": name},
        )
    )


def _check(version: DeploymentVersion | None) -> None:
    if version is None or not version.deployment_name or not version.build_id:
        finding = "a worker with versioning must name its deployment and its build id"
    elif "." in version.deployment_name:
        finding = f"the deployment name {version.deployment_name!r} has a dot; versions are written NAME.BUILD, use '-'"
    elif max(len(version.deployment_name.encode()), len(version.build_id.encode())) > NAME_BYTES_MAX:
        finding = f"a deployment name and a build id may have at most {NAME_BYTES_MAX} bytes each"
    else:
        return
    raise RPCError(Rejection(code=RejectionCode.INVALID_ARGUMENT, message=f"{finding}."))
