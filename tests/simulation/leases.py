"""Leases that lie, and what nodes do by theirs (law 9).

Owns: `LyingRegistry`, which lets nodes believe that they are alone, `Leases`, the record of which shards each node was
told to hold and which it looked after, and `check_leases_only_save_work`. Never: asks the engine what it believes.

How it works: leases are to save work, and safety is to rest on the guard of a commit alone. That has two sides. Where
leases are told truly, a node looks after (asks the store for the due runs, the busy runs and the messages of) only the
shards that it was told to hold, so that nothing is done twice; and a node that lost a guard reads the run anew before
it writes it again. And in some worlds leases lie: now and then, or all the time until faults are over, a node is told
that no other lives and that every shard is its own, a node that lives is declared dead, and rows that one node has
claimed are given to another. There each of the other checks has to hold as anywhere: such nodes are slow, never wrong.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from clew.ports.store import CommitStatus, FleetView, RunWrite, ShardLease
from clew.storage.sqlite.fleet import FleetRegistry

LOOKED_AFTER: Final = frozenset({"find_due_runs", "find_busy_runs", "read_outbox"})
"""Calls of the store by which a node looks after shards; which ones is their first argument."""

BELIEF_SECONDS: Final = 10.0
BELIEF_ANSWERS: Final = 4
"""A node may go by what it was told before for a lease time, or so many answers about the fleet if the store answers no
more often: not each of them is one that it acts on."""


class LyingRegistry(FleetRegistry):
    """A registry that now and then lets a node believe that it is alone.

    Args:
        now: The store's clock.
        shard_count: Shards of the store.
        lies: Drawn for each answer.
    """

    def __init__(self, now: Callable[[], datetime], shard_count: int, lies: Callable[[], bool]) -> None:
        super().__init__(now)
        self._shard_count = shard_count
        self._lies = lies

    def view(self, node_id: str) -> FleetView:
        """The fleet as the node is told that it is."""
        view = super().view(node_id)
        if not self._lies():
            return view
        over = view.now - timedelta(seconds=1)
        nodes = [
            row if row.node_id == node_id else msgspec.structs.replace(row, lease_until=over) for row in view.nodes
        ]
        shards = [ShardLease(shard=shard, node_id=node_id, epoch=1) for shard in range(self._shard_count)]
        return msgspec.structs.replace(view, nodes=tuple(nodes), shards=tuple(shards))

    def remove_expired(self, node_ids: Sequence[str]) -> list[str]:
        """Remove those whose lease is over, or is said to be."""
        removed = super().remove_expired(node_ids)
        for node_id in node_ids:
            if node_id in self._nodes and self._lies():
                self.leave(node_id)
                removed.append(node_id)
        return removed


class Leases:
    """What nodes were told of leases, and what they did, from the calls of the store.

    Args:
        time: The loop's clock.
        is_fleet: Whether nodes share the store; a node that has it to itself looks after everything.
        broken: Where laws found broken are noted.
    """

    def __init__(self, time: Callable[[], float], *, is_fleet: bool, broken: list[str]) -> None:
        self._time = time
        self._is_fleet = is_fleet
        self._broken = broken
        self._held: dict[str, set[int]] = {}
        self._told: dict[str, deque[set[int]]] = {}
        """What each node was told last, the latest at the end."""
        self._held_until: dict[tuple[str, int], float] = {}
        """By node and shard: when a shard was last known to be one that the node holds."""
        self._lost: dict[tuple[str, int], int] = {}
        """By node and run: the version on which it was told to have lost a guard."""
        self.contested_commits = 0
        """Commits of a run whose shard two nodes that lived had been told to hold."""
        self.calls: Counter[str] = Counter()
        """Calls of the store by all nodes."""

    def hold(self, node: str, shards: set[int]) -> None:
        """A node was told, or has decided, which shards are its own."""
        now = self._time()
        for shard in self._held.get(node, set()) | shards:
            self._held_until[node, shard] = now
        self._held[node] = shards
        self._told.setdefault(node, deque(maxlen=BELIEF_ANSWERS)).append(shards)

    def forget(self, node: str) -> None:
        """The node is no more."""
        self._held.pop(node, None)

    def note_call(self, node: str, method: str, args: Sequence[Any]) -> None:
        """A node calls the store."""
        self.calls[method] += 1
        if not self._is_fleet:
            return
        if method in LOOKED_AFTER:
            self._note_look(node, method, args[0])
        elif method == "release_shards":
            self.hold(node, self._held.get(node, set()) - {lease.shard for lease in args[0]})
        elif method == "commit_if_current":
            for unit in args[0]:
                self._note_try(node, unit)

    def note_answer(self, node: str, method: str, args: Sequence[Any], value: Any) -> None:
        """The store has answered a node."""
        if not self._is_fleet:
            return
        if isinstance(value, FleetView):
            self.hold(node, {lease.shard for lease in value.shards if lease.node_id == args[0]})
        elif method == "take_free_shards":
            self.hold(node, self._held.get(node, set()) | {lease.shard for lease in value})
        elif method == "commit_if_current":
            for unit, status in zip(args[0], value, strict=True):
                self._note_outcome(node, unit, status)

    def _note_look(self, node: str, method: str, shards: Sequence[int] | None) -> None:
        since = self._time() - BELIEF_SECONDS
        held = self._held.get(node, set())
        believed: set[int] = set().union(*self._told.get(node, ()))
        if shards is None:
            self._broken.append(f"law 9: {node} asks for {method} of all shards; it was told to hold {sorted(held)}")
            return
        others = [s for s in shards if s not in believed and self._held_until.get((node, s), -1.0) < since]
        if others:
            self._broken.append(
                f"law 9: {node} looks after shards {others} by {method}; it was told to hold {sorted(held)}"
            )

    def _note_try(self, node: str, unit: tuple[RunWrite, ...]) -> None:
        if len(unit) > 1:
            return  # Which of its runs has lost its guard the node is not told.
        [write] = unit
        if not write.status.is_open and not write.batches:
            return  # Of a run that is closed each reader has a memory of its own, and may have read before the loss.
        if write.expected_version and self._lost.get((node, write.run_key)) == write.expected_version:
            self._broken.append(
                f"law 9: {node} writes run {write.workflow_id} on version {write.expected_version}, on which it has "
                "been told that it lost"
            )

    def _note_outcome(self, node: str, unit: tuple[RunWrite, ...], status: CommitStatus) -> None:
        if status is CommitStatus.VERSION_CONFLICT and len(unit) == 1:
            self._lost[node, unit[0].run_key] = unit[0].expected_version
        if status is CommitStatus.COMMITTED:
            for write in unit:
                if sum(write.shard in held for held in self._held.values()) > 1:
                    self.contested_commits += 1


def liar(chance: random.Random, share: Callable[[], float]) -> Callable[[], bool]:
    """Draws whether an answer lies."""
    return lambda: chance.random() < share()
