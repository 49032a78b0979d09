"""The nodes that share one open store, in memory.

Owns: their rows, shard leases and mail. Never: SQL.

How it works: one process owns the file, so whatever nodes there are live in it (several engines on one store object)
and are gone with it; like the claims on tasks, their rows cost no write. Everything here belongs to the store's loop
and happens without awaiting, so each call is atomic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

import msgspec

from clew.ports.store import FleetView, NodeRow, ShardLease


class FleetRegistry:
    """See the module docstring.

    Args:
        now: The store's clock.
    """

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._nodes: dict[str, NodeRow] = {}
        self._mail: dict[str, list[bytes]] = {}
        self._shards: dict[int, ShardLease] = {}
        self._epochs: dict[int, int] = {}

    def view(self, node_id: str) -> FleetView:
        """The fleet as `node_id` sees it."""
        return FleetView(
            now=self._now(),
            nodes=tuple(self._nodes.values()),
            shards=tuple(lease for _, lease in sorted(self._shards.items())),
            has_mail=bool(self._mail.get(node_id)),
        )

    def join(self, node_id: str, address: str, body: bytes, lease: timedelta) -> FleetView:
        """Enter a node."""
        if node_id in self._nodes:
            raise ValueError(f"node id {node_id!r} is in use; a node takes a new id each time it joins")
        self._nodes[node_id] = NodeRow(node_id=node_id, address=address, body=body, lease_until=self._now() + lease)
        return self.view(node_id)

    def renew(self, node_id: str, body: bytes | None, lease: timedelta) -> FleetView | None:
        """Extend the lease of a node that is still there."""
        row = self._nodes.get(node_id)
        if row is None:
            return None
        self._nodes[node_id] = msgspec.structs.replace(
            row, lease_until=self._now() + lease, body=row.body if body is None else body
        )
        return self.view(node_id)

    def remove_expired(self, node_ids: Sequence[str]) -> list[str]:
        """Remove those whose lease is over."""
        removed = [node_id for node_id in node_ids if node_id in self._nodes and not self._is_live(node_id)]
        for node_id in removed:
            self.leave(node_id)
        return removed

    def leave(self, node_id: str) -> None:
        """Remove a node with all it has."""
        self._nodes.pop(node_id, None)
        self._mail.pop(node_id, None)
        self._shards = {shard: lease for shard, lease in self._shards.items() if lease.node_id != node_id}

    def take_free(self, node_id: str, shards: Sequence[int]) -> list[ShardLease]:
        """Give the node what nobody with a good lease holds."""
        if node_id not in self._nodes:
            return []
        got: list[ShardLease] = []
        for shard in shards:
            held = self._shards.get(shard)
            if held is not None and held.node_id != node_id and self._is_live(held.node_id):
                continue
            epoch = self._epochs[shard] = self._epochs.get(shard, 0) + 1
            lease = self._shards[shard] = ShardLease(shard=shard, node_id=node_id, epoch=epoch)
            got.append(lease)
        return got

    def release(self, leases: Sequence[ShardLease]) -> None:
        """Give back what is still held under the very lease."""
        for lease in leases:
            if self._shards.get(lease.shard) == lease:
                del self._shards[lease.shard]

    def post(self, node_id: str, body: bytes) -> bool:
        """Leave a message."""
        if node_id not in self._nodes:
            return False
        self._mail.setdefault(node_id, []).append(body)
        return True

    def take_mail(self, node_id: str) -> list[bytes]:
        """Take all messages."""
        return self._mail.pop(node_id, [])

    def _is_live(self, node_id: str) -> bool:
        row = self._nodes.get(node_id)
        return row is not None and row.lease_until > self._now()
