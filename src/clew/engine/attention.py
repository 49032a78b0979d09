"""Attention: waking each run when one of its deadlines is due (design §6).

Owns: the heap of the near horizon, the one timer that wakes for its top, and the loading of what comes next.
Never: decides what a deadline means (``core.due``).

How it works: every run stores the next instant at which it needs the engine, indexed. The node keeps the runs due
within the horizon in a heap of ``(instant, run key)`` and sleeps until the earliest. The heap is not exact: an entry
may be out of date, which costs a look; `arm` adds an entry only when it is earlier than what is armed. Every half
horizon the store is asked for the next stretch, which is also the guarantee behind everything that memory might forget.
Runs that are due and not in memory are read together, each with its history if that is short, so that a worker that has
none of it can be given all at once. A run that turns out, when looked at, to be parked leaves memory; what is armed for
one that left is no reason to read it again.

In a fleet a node asks for the runs of its own shards, and every lease time, so that a deadline is found whatever became
of the node that set it. One that is due before the owner of its shard has looked is armed by the node that set it.
"""

from __future__ import annotations

import heapq
import logging
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

from clew.engine.background import Background
from clew.engine.peers import Peers
from clew.engine.runs import RunCache, RunEntry, is_behind
from clew.ports.clock import Cancellable, Clock
from clew.ports.store import DueRun, LoadedRun, Store, StoreCorrupt, StoreError, StoreUnavailable
from clew.ports.telemetry import SILENCE, Telemetry

logger = logging.getLogger("clew.engine")

HORIZON: Final = timedelta(seconds=60)
"""How far ahead runs are held in memory; farther ones are rows only."""

SCAN_ROWS: Final = 20_000
SCAN_SPACING: Final = timedelta(milliseconds=250)
"""Shortest time between two scans when more is due than one scan gives."""

RETRY_DELAY: Final = timedelta(seconds=1)
"""After a failed load or commit, the run is looked at again this much later."""

PARKED_FROM: Final = timedelta(seconds=5)
"""A run that needs nothing for so long is dropped from memory when it is looked at."""

DUE_AT_ONCE_MAX: Final = 500
"""Runs woken in one turn of the loop, so that a herd of timers does not block everything else."""

LOADED_TOGETHER: Final = 64
"""Runs read by one call of the store, one call at a time: while one is under way the runs for the next gather."""

READ_AHEAD: Final = timedelta(milliseconds=20)
"""With a run that is due come those that will be so soon: in a crowd each would be read alone otherwise."""

HISTORY_BYTES_MAX: Final = 32 * 1024
"""A history up to this comes with its run: most likely no worker has the run cached, and one will need all of it."""


class Attention:
    """See the module docstring. All methods belong to the engine's loop."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        cache: RunCache,
        *,
        peers: Peers,
        rescan: timedelta | None,
        wake: Callable[[RunEntry], bool],
        on_stale: Callable[[RunEntry], None],
        telemetry: Telemetry = SILENCE,
    ) -> None:
        self._store = store
        self._peers = peers
        self._rescan = rescan
        self._on_stale = on_stale
        self._clock = clock
        self._cache = cache
        self._wake = wake
        self._heap: list[tuple[datetime, int, int]] = []
        self._over: set[int] = set()
        """Closed runs that still have an entry in the heap."""
        self._stale: dict[int, datetime] = {}
        """Runs that left memory with this instant armed, at which nothing will be due."""
        self._again: dict[int, datetime] = {}
        """Runs with which something went wrong, and when they are looked at again: once, however much was armed."""
        self._absent: deque[tuple[int, int, datetime]] = deque()
        """Due runs to be read from the store: shard, run key, and the instant at which they were to be looked at."""
        self._is_reading = False
        self._horizon_end = datetime.min.replace(tzinfo=UTC) + HORIZON
        self._scanned_at = self._horizon_end
        self._timer: Cancellable | None = None
        self._timer_at: datetime | None = None
        self._telemetry = telemetry
        self._background = Background("attention")
        self._scan_is_running = False
        self._is_scan_wanted = False
        self._is_closed = False
        self.lag_max = timedelta(0)
        """The longest that a deadline was overdue when it was looked at."""

    async def start(self) -> None:
        """Load the first stretch."""
        await self._scan()
        self._arm_timer()

    def arm(self, entry: RunEntry) -> None:
        """The run's next deadline may have become earlier."""
        self.arm_at(entry, entry.state.next_attention())

    def arm_at(self, entry: RunEntry, when: datetime | None) -> None:
        """The same, for a caller that knows the deadline."""
        if when is None:
            return
        armed = entry.armed_at
        if armed is not None and armed <= when:
            return
        if when > self._horizon_end:
            return
        if (
            self._rescan is not None
            and when > self._scanned_at + 2 * self._rescan
            and not self._peers.owns(entry.shard)
        ):
            return
        entry.armed_at = when
        self._push(when, entry.run_key, entry.shard)

    def forget(self, entry: RunEntry) -> None:
        """The run is closed: what is armed for it wakes nobody."""
        if entry.armed_at is not None:
            self._over.add(entry.run_key)

    def release(self, entry: RunEntry) -> None:
        """The run has left memory, as nobody needs it: only what will really be due stays armed."""
        armed, due = entry.armed_at, entry.state.next_attention()
        if armed is None or (due is not None and due <= armed):
            return
        self._stale[entry.run_key] = armed
        if due is not None and due <= self._horizon_end:
            self._push(due, entry.run_key, entry.shard)

    def arm_again_later(self, shard: int, run_key: int) -> None:
        """Something went wrong with this run: look again soon."""
        if run_key not in self._again:
            self._again[run_key] = when = self._clock.now() + RETRY_DELAY
            self._push(when, run_key, shard)

    def look_soon(self) -> None:
        """Other shards are this node's now: take in their deadlines."""
        self._is_scan_wanted = True
        if not self._scan_is_running and not self._is_closed:
            self._scan_is_running = True
            self._background.spawn(self._scan_then_arm())

    async def close(self) -> None:
        """Wake no more runs."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        await self._background.cancel()

    def _push(self, when: datetime, run_key: int, shard: int) -> None:
        heapq.heappush(self._heap, (when, run_key, shard))
        if self._timer_at is None or when < self._timer_at:
            self._arm_timer()

    def _arm_timer(self) -> None:
        """Sleep until the top of the heap or the next scan is due (a scan that is under way arms again)."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = self._timer_at = None
        if self._is_closed:
            return
        wanted = [] if self._scan_is_running else [self._scan_at()]
        if self._heap:
            wanted.append(self._heap[0][0])
        if wanted:
            self._timer_at = min(wanted)
            self._timer = self._clock.call_at(self._timer_at, self._on_timer)

    def _scan_at(self) -> datetime:
        at = self._horizon_end - HORIZON / 2
        if self._rescan is not None:
            at = min(at, self._scanned_at + self._rescan)
        return max(at, self._scanned_at + SCAN_SPACING)

    def _on_timer(self) -> None:
        self._timer = self._timer_at = None
        if self._is_closed:
            return
        now = self._clock.now()
        if not self._scan_is_running and now >= self._scan_at():
            self._scan_is_running = True
            self._background.spawn(self._scan_then_arm())
        heap = self._heap
        count = 0
        while heap and heap[0][0] <= now and count < DUE_AT_ONCE_MAX:
            when, run_key, shard = heapq.heappop(heap)
            if self._again and not self._is_next_look(run_key, when):
                continue
            if run_key in self._over:
                self._over.discard(run_key)
                continue
            if self._stale and self._stale.get(run_key) == when:
                del self._stale[run_key]
                continue
            count += 1
            entry = self._cache.get(run_key)
            if entry is None:
                self._absent.append((shard, run_key, when))
            else:
                self._look(entry, when, now)
        if self._absent and not self._is_reading:
            self._is_reading = True
            self._background.spawn(self._read_absent())
        self._arm_timer()

    def _is_next_look(self, run_key: int, when: datetime) -> bool:
        """Whether a run is looked at now; not if something has just gone wrong with it, for then it soon is anyway.

        What went wrong left what had been armed behind, each time: every look would fail as the first did.
        """
        again = self._again.get(run_key)
        if again is None:
            return True
        if again == when:
            del self._again[run_key]
            return True
        entry = self._cache.get(run_key)
        if entry is not None and entry.armed_at is not None and entry.armed_at <= when:
            entry.armed_at = None
        return False

    def _look(self, entry: RunEntry, when: datetime, now: datetime) -> None:
        if entry.armed_at is not None and entry.armed_at <= when:
            entry.armed_at = None
        due = entry.state.next_attention()
        if due is not None and due <= now:
            self.lag_max = max(self.lag_max, now - due)
            self._telemetry.deadline_was_due(now - due)
            if not self._wake(entry):
                return  # Whoever reads what is missing arms it then; it would only be found due again and again.
        self.arm(entry)
        if (due is None or due > now + PARKED_FROM) and not (entry.is_needed or entry.is_discarded):
            self._cache.drop_unneeded(entry)

    async def _read_absent(self) -> None:
        try:
            while self._absent and not self._is_closed:
                await self._load_and_look(self._take_absent())
        finally:
            self._is_reading = False

    def _take_absent(self) -> list[tuple[int, int, datetime]]:
        """What is read next; if that is less than comes together, also what is due soon."""
        absent, heap, soon = self._absent, self._heap, self._clock.now() + READ_AHEAD
        taken = [absent.popleft() for _ in range(min(len(absent), LOADED_TOGETHER))]
        while len(taken) < LOADED_TOGETHER and heap and heap[0][0] <= soon:
            when, run_key, shard = heap[0]
            if run_key in self._over or run_key in self._stale or self._cache.get(run_key) is not None:
                break
            heapq.heappop(heap)
            if self._again.get(run_key) == when:
                del self._again[run_key]
            taken.append((shard, run_key, when))
        return taken

    async def _load_and_look(self, runs: list[tuple[int, int, datetime]]) -> None:
        """Look at runs that are not in memory, given with the instants at which they were to be looked at."""
        instants = {run_key: when for _, run_key, when in runs}
        with self._cache.reading() as left:
            try:
                found = await self._store.load_runs([run[:2] for run in runs], HISTORY_BYTES_MAX)
            except StoreError as error:
                failed = error
            else:
                for loaded in found:
                    self._adopt_and_look(loaded, left, instants[loaded.row.run_key])
                return
        if len(runs) > 1 and not isinstance(failed, StoreUnavailable):
            # It may be about one of them, for which the others must not wait: it will fail whenever it is read.
            for run in runs:
                if not self._is_closed:
                    await self._load_and_look([run])
        elif isinstance(failed, StoreCorrupt):
            logger.error("attention.run_unreadable run_keys=%s error=%s", list(instants), failed)
        else:
            logger.warning("attention.load_failed run_keys=%s error=%s", list(instants), failed)
            for shard, run_key, _ in runs:
                self.arm_again_later(shard, run_key)

    def _adopt_and_look(self, loaded: LoadedRun, left: set[int], when: datetime) -> None:
        row = loaded.row
        try:
            entry = self._cache.adopt(row, left, loaded.history)
        except StoreCorrupt as error:
            logger.error("attention.run_unreadable run_key=%s error=%s", row.run_key, error)
            return
        if entry is None:
            self._absent.append((row.shard, row.run_key, when))
        elif not self._is_closed:
            self._look(entry, when, self._clock.now())

    async def _scan_then_arm(self) -> None:
        await self._scan()
        while self._is_scan_wanted and not self._is_closed:
            await self._scan()
        self._arm_timer()

    async def _scan(self) -> None:
        """Take the next stretch of the horizon into memory."""
        self._scan_is_running = True
        self._is_scan_wanted = False
        now = self._scanned_at = self._clock.now()
        shards = self._peers.own_shards()
        try:
            rows = await self._store.find_due_runs(shards, now + HORIZON, SCAN_ROWS) if shards != [] else []
            await self._drop_stale(rows)
        except StoreError as error:
            logger.warning("attention.scan_failed error=%s", error)
            self._horizon_end = now + HORIZON / 2 + RETRY_DELAY
            return
        finally:
            self._scan_is_running = False
        self._horizon_end = now + HORIZON if len(rows) < SCAN_ROWS else rows[-1].attention_at
        for row in rows:
            entry = self._cache.get(row.run_key)
            if entry is None:
                heapq.heappush(self._heap, (row.attention_at, row.run_key, row.shard))
            else:
                self.arm(entry)

    async def _drop_stale(self, rows: list[DueRun]) -> None:
        """Forget what is in memory of runs that another node has changed since.

        One that has a later deadline in memory than in the store may be such a run (a busy run may also be stored with
        an earlier deadline than it has, see `RunEntry.attention_to_persist`).
        """
        if self._peers.is_alone:
            return
        doubtful: list[RunEntry] = []
        for row in rows:
            entry = self._cache.get(row.run_key)
            if entry is not None and not entry.unsettled_count:
                due = entry.state.next_attention()
                if due is None or due > row.attention_at:
                    doubtful.append(entry)
        if not doubtful:
            return
        versions = await self._store.find_versions([(entry.shard, entry.run_key) for entry in doubtful])
        for entry in doubtful:
            if not entry.is_discarded and is_behind(entry, versions.get(entry.run_key)):
                self._on_stale(entry)
