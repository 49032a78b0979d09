"""When a run next needs attention, in O(log n).

Owns: the heap of deadlines of one run. Never: says what a deadline means or acts on it (``core.due`` does).

How it works: the heap is *lazily cleaned*. For every item that has a deadline there is at least one entry that is not
later than it, so moving a deadline later (a heartbeat) costs nothing; an earlier one, or a new one, pushes an entry.
Whoever looks at the top asks for the item's present deadline and drops or moves the entry when it is out of date. The
heap is rebuilt from the items after a load, and never stored.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Final, TypeAlias

KIND_WORKFLOW_TASK: Final = 10
KIND_FIRST_TASK: Final = 11
KIND_RUN_TIMEOUT: Final = 12
KIND_EXECUTION_TIMEOUT: Final = 13
"""Kinds of entries beside the kinds of pending items (``core.transition``); their item id is 0."""

Entry: TypeAlias = tuple[datetime, int, int]
"""``(when, kind, item id)``."""

Lookup: TypeAlias = Callable[[int, int], datetime | None]
"""Gives the present deadline of ``(kind, item id)``; None when it has none or is gone."""


class DeadlineHeap:
    """See the module docstring."""

    __slots__ = ("_heap",)

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self._heap: list[Entry] = list(entries)
        heapq.heapify(self._heap)

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, when: datetime, kind: int, item_id: int) -> None:
        """Note a new or an earlier deadline."""
        heapq.heappush(self._heap, (when, kind, item_id))

    def peek(self, lookup: Lookup) -> datetime | None:
        """The earliest present deadline."""
        heap = self._heap
        while heap:
            when, kind, item_id = heap[0]
            present = lookup(kind, item_id)
            if present == when:
                return when
            if present is None:
                heapq.heappop(heap)
            else:
                heapq.heapreplace(heap, (present, kind, item_id))
        return None

    def take_due(self, now: datetime, lookup: Lookup) -> list[Entry]:
        """Remove and give the entries that are due by `now`, earliest first, each item once."""
        due: list[Entry] = []
        seen: set[tuple[int, int]] = set()
        while (when := self.peek(lookup)) is not None and when <= now:
            entry = heapq.heappop(self._heap)
            if entry[1:] not in seen:
                seen.add(entry[1:])
                due.append(entry)
        return due
