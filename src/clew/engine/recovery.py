"""Recovery: taking up what was out at workers when the store was last let go of.

Owns: the look at busy runs at start-up. Never: looks at parked or closed runs (they are found by their deadlines, or
not at all).

How it works: a worker session lives no longer than the engine process it is attached to. So when an engine takes over a
store, every session that a busy run names is lost: its workflow task goes back to the queue, its activity attempts
count as lost. Tasks that waited for a worker lie in queued rows, written with the transition that made them, and need
nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Final

from clew.core.decisions import decide_sessions_lost
from clew.core.state import ExecutionState
from clew.core.transition import Transition
from clew.engine.funnel import Funnel, Operation
from clew.engine.runs import RunCache, RunEntry
from clew.model.limits import Limits
from clew.ports.store import RunRow, Store, StoreCorrupt

logger = logging.getLogger("clew.engine")

PAGE_ROWS: Final = 500


@dataclass(frozen=True)
class Lost:
    """Which sessions are lost, and how far.

    Args:
        is_lost: Asked with the id of a session.
        keeps_attempts: Their workers may live on: attempts at activities stay theirs.
    """

    is_lost: Callable[[str], bool]
    keeps_attempts: bool = False


async def recover(
    store: Store,
    cache: RunCache,
    funnel: Funnel,
    *,
    limits_of: Callable[[str], Limits],
    lost: Lost | None = None,
) -> int:
    """Release what lost sessions hold, and answer how many runs that concerned.

    Raises:
        StoreError: The store cannot be read or written.
    """
    lost = lost or Lost(lambda session: True)
    recovered = 0
    after = 0
    while True:
        with cache.reading() as left:
            rows = await store.find_busy_runs(None, after, PAGE_ROWS)
            entries = [entry for row in rows if (entry := _adopt(cache, row, left)) is not None]
        if not rows:
            return recovered
        after = rows[-1].run_key
        answers: list[asyncio.Future[Any]] = []
        for entry in entries:
            answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            answers.append(answer)
            limits = limits_of(entry.state.namespace)
            funnel.apply(entry, Operation(partial(release_lost, lost, limits), answer))
        await asyncio.gather(*answers)
        recovered += len(rows)


def _adopt(cache: RunCache, row: RunRow, left: set[int]) -> RunEntry | None:
    """The run's entry; None when it cannot be read, or is being worked on by this very engine."""
    try:
        return cache.adopt(row, left)
    except StoreCorrupt as error:
        logger.error("recovery.run_unreadable run_id=%s error=%s", row.run_id, error)
        return None


def release_lost(lost: Lost, limits: Limits, state: ExecutionState, now: datetime) -> Transition | None:
    return decide_sessions_lost(state, lost.is_lost, now, limits=limits, keeps_attempts=lost.keeps_attempts)
