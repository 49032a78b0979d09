"""What the parts of a node ask about the other nodes, and what a node answers that is alone.

Owns: `Peers`, the questions and notices; and what nodes know of each other's workers. Never: talks to another node
(``engine.fleet`` does, as a subclass).

How it works: a node that owns its store alone (SQLite) uses `Peers` itself: every shard is its own, nothing is
elsewhere, and notices go nowhere. So the parts of the engine need not know whether there is a fleet.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from clew.model.policies import DeploymentVersion
from clew.service.requests import ActivityCancelReason, TaskToken, WorkerHello

if TYPE_CHECKING:
    from clew.core.transition import Transition
    from clew.engine.runs import RunEntry
    from clew.ports.store import TaskRow


class Attached(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A worker that is attached to some node."""

    session_id: str
    hello: WorkerHello
    former_sessions: tuple[str, ...] = ()
    """Sessions that it had before; all that it still has of theirs is known."""

    @property
    def version(self) -> DeploymentVersion | None:
        """The version that is routed by; None for a worker without versioning."""
        return self.hello.deployment_version if self.hello.uses_versioning else None


class Presence(msgspec.Struct, frozen=True, kw_only=True):
    """What a node tells the others of itself.

    Args:
        number: Part of the ids that it makes; no other node has it.
        workers: The workers attached to it.
        process: The mark of its process; empty when that cannot be told.
    """

    number: int
    workers: list[Attached]
    process: str = ""


class Peers:
    """A node's view of the others; of this very class, there are none. All methods belong to the engine's loop."""

    @property
    def is_alone(self) -> bool:
        """Whether no other node can change what this one has in memory."""
        return True

    def own_shards(self) -> Sequence[int] | None:
        """The shards whose timers, outbox and housekeeping are this node's; None: all there are."""
        return None

    def owns(self, shard: int) -> bool:
        """Whether the shard is one of those."""
        return True

    def does_housekeeping(self, key: str) -> bool:
        """Whether what one node should do for `key` is this one's to do."""
        return True

    def is_elsewhere(self, session_id: str) -> bool:
        """Whether the session belongs to another node that lives."""
        return False

    def workers(self, namespace: str, task_queue: str | None = None) -> Iterable[Attached]:
        """The workers attached to other nodes, of one task queue or all."""
        return ()

    async def refresh(self) -> None:
        """See the other nodes as they are now, if the store can be read."""

    async def announce(self) -> None:
        """Have the others know of this node's workers, if the store takes it at once."""

    async def spread_settings(self) -> None:
        """This node changed namespaces or the routing of worker versions: wait, not long, until the others go by it."""

    # --- notices ----------------------------------------------------------------------------------------------------

    def on_workers_changed(self) -> None:
        """A worker of this node came or went."""

    def on_run_rerouted(self, entry: RunEntry) -> None:
        """Tasks of this run may go to another worker version."""

    def on_rows_queued(self, rows: Iterable[TaskRow]) -> None:
        """Rows were committed that wait for a worker."""

    def on_set_aside(self, row: TaskRow) -> None:
        """No worker of this node can have the task of a claimed row now; one of another node may."""

    def on_sticky(self, entry: RunEntry, session_id: str) -> None:
        """A task was committed that waits for a session of another node."""

    def on_cancel_wanted(self, session_id: str, token: TaskToken, reason: ActivityCancelReason) -> None:
        """An attempt that a session of another node has should stop."""

    def on_waiting(self, entry: RunEntry, *, close_only: bool) -> None:
        """Somebody here begins to wait for this run to change (or to close)."""

    def on_changed(self, entry: RunEntry, transition: Transition) -> None:
        """A transition of this run is durable."""


ALONE: Final = Peers()
"""For what belongs to no node, or to one that is alone."""
