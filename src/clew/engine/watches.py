"""Noticing that another node changed a run that somebody here waits on.

Owns: which runs are waited on here, which of ours are waited on elsewhere, and the look at what is stored.
Never: who waits (``engine.history``, ``engine.updates``), or what the change means to them.

How it works: a node that begins to wait on a run tells all others; each remembers it and says when it has committed a
change of that run. Both may get lost, so the versions of all runs that are waited on here are read together, shortly
after the wait began (what changed before the others knew) and every few seconds from then on. An entry in memory that
is behind is stale: it is discarded, and whoever waits looks again. A wait that is over within `GRACE_SECONDS`, as most
are, is never told to anyone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from clew.engine.background import Background
from clew.engine.hints import ALL_NODES, Hint, RunChanged, RunWatched
from clew.engine.runs import RunCache, RunEntry, is_behind
from clew.ports.store import Store, StoreError

logger: Final = logging.getLogger("clew.engine")

GRACE_SECONDS: Final = 0.05
CONFIRM_SECONDS: Final = 0.15
"""How long after a wait was told to the others the stored version is looked at."""

TOLD_AGAIN_SECONDS: Final = 20.0
REMEMBERED_SECONDS: Final = 60.0
"""How long a node remembers that another waits on one of its runs without hearing of it again."""


class _Watch:
    __slots__ = ("close_only", "shard", "told_at")

    def __init__(self, shard: int, close_only: bool) -> None:
        self.shard = shard
        self.close_only = close_only
        self.told_at: float | None = None


class Watches:
    """See the module docstring. All methods belong to the engine's loop.

    Args:
        store: Where versions are read.
        cache: The runs in memory.
        send: Sends a hint to a node or to all, if there is another.
        has_others: Whether another node lives.
        is_waited: Whether somebody here still waits on the run with this key.
        on_stale: What is in memory of this run is behind the store.
        on_elsewhere: The run is not in memory: those who wait for it here should look again.
    """

    def __init__(
        self,
        store: Store,
        cache: RunCache,
        *,
        send: Callable[[str, Hint], None],
        has_others: Callable[[], bool],
        is_waited: Callable[[int], bool],
        on_stale: Callable[[RunEntry], None],
        on_elsewhere: Callable[[int], None],
    ) -> None:
        self._store = store
        self._cache = cache
        self._send = send
        self._has_others = has_others
        self._had_others = False
        self._is_waited = is_waited
        self._on_stale = on_stale
        self._on_elsewhere = on_elsewhere
        self._loop = asyncio.get_running_loop()
        self._ours: dict[int, _Watch] = {}
        self._theirs: dict[int, dict[str, tuple[float, bool]]] = {}
        self._untold: set[int] = set()
        self._background = Background("watches")

    # --- waits of this node -----------------------------------------------------------------------------------------

    def watch(self, entry: RunEntry, *, close_only: bool, at_once: bool) -> None:
        """Somebody here begins to wait on this run; the others are told `at_once`, or when the wait lasts."""
        watch = self._ours.get(entry.run_key)
        if watch is None:
            watch = self._ours[entry.run_key] = _Watch(entry.shard, close_only)
        elif watch.close_only and not close_only:
            watch.close_only, watch.told_at = False, None
        if watch.told_at is not None:
            return
        if at_once:
            self._tell([entry.run_key])
        elif entry.run_key not in self._untold:
            if not self._untold:
                self._loop.call_later(GRACE_SECONDS, self._tell_untold)
            self._untold.add(entry.run_key)

    async def look(self) -> None:
        """Drop what nobody waits on any more, and look at the stored versions of the rest."""
        now = self._loop.time()
        self._forget_theirs(now)
        for run_key in [run_key for run_key in self._ours if not self._is_waited(run_key)]:
            del self._ours[run_key]
        again = [
            run_key
            for run_key, watch in self._ours.items()
            if watch.told_at is not None and now - watch.told_at > TOLD_AGAIN_SECONDS
        ]
        for run_key in again:
            self._announce(run_key)
        has_others = self._has_others()
        if has_others or self._had_others:
            # Once more after the last has gone: it may have changed something before.
            await self._check(list(self._ours))
        self._had_others = has_others

    def tell_all_again(self) -> None:
        """There is a new node, which knows of nothing."""
        for run_key, watch in self._ours.items():
            if watch.told_at is not None:
                self._announce(run_key)

    def on_run_changed(self, hint: RunChanged) -> None:
        """Another node changed a run."""
        if hint.run_key in self._ours:
            self._compare(hint.run_key, hint.version)

    async def close(self) -> None:
        """Look no more."""
        await self._background.cancel()

    def _tell_untold(self) -> None:
        untold, self._untold = self._untold, set()
        self._tell([run_key for run_key in untold if run_key in self._ours and self._is_waited(run_key)])
        for run_key in untold:
            if run_key in self._ours and self._ours[run_key].told_at is None:
                del self._ours[run_key]

    def _tell(self, run_keys: list[int]) -> None:
        for run_key in run_keys:
            self._announce(run_key)
        if run_keys:
            self._loop.call_later(CONFIRM_SECONDS, self._confirm, run_keys)

    def _announce(self, run_key: int) -> None:
        watch = self._ours[run_key]
        watch.told_at = self._loop.time()
        self._send(ALL_NODES, RunWatched(run_key, watch.close_only))

    def _confirm(self, run_keys: list[int]) -> None:
        waited = [run_key for run_key in run_keys if run_key in self._ours and self._is_waited(run_key)]
        if waited and self._has_others():
            self._background.spawn(self._check_quietly(waited))

    async def _check_quietly(self, run_keys: list[int]) -> None:
        try:
            await self._check(run_keys)
        except StoreError as error:
            logger.warning("watches.look_failed error=%s", error)

    async def _check(self, run_keys: list[int]) -> None:
        if not run_keys:
            return
        runs = [(self._ours[run_key].shard, run_key) for run_key in run_keys]
        versions = await self._store.find_versions(runs)
        for run_key in run_keys:
            self._compare(run_key, versions.get(run_key))

    def _compare(self, run_key: int, version: int | None) -> None:
        """Compare what is in memory with the version in the store; None when the run was deleted."""
        entry = self._cache.get(run_key)
        if entry is None:
            self._on_elsewhere(run_key)
        elif is_behind(entry, version):
            self._on_stale(entry)

    # --- waits of other nodes ---------------------------------------------------------------------------------------

    def on_run_watched(self, sender: str, hint: RunWatched) -> None:
        """Another node waits on a run."""
        self._theirs.setdefault(hint.run_key, {})[sender] = (self._loop.time() + REMEMBERED_SECONDS, hint.close_only)

    def watchers(self, run_key: int) -> list[str]:
        """The nodes that wait for any change of the run."""
        return [node_id for node_id, (_, close_only) in self._theirs.get(run_key, {}).items() if not close_only]

    def on_committed(self, entry: RunEntry) -> None:
        """This node changed a run."""
        watching = self._theirs.get(entry.run_key) if self._theirs else None
        if not watching:
            return
        is_open = entry.state.is_open
        for node_id, (_, close_only) in watching.items():
            if not (close_only and is_open):
                self._send(node_id, RunChanged(entry.run_key, entry.persisted_version))
        if not is_open:
            del self._theirs[entry.run_key]

    def _forget_theirs(self, now: float) -> None:
        for run_key in list(self._theirs):
            watching = {node: until for node, until in self._theirs[run_key].items() if until[0] > now}
            if watching:
                self._theirs[run_key] = watching
            else:
                del self._theirs[run_key]
