"""Hand-over of items from other threads to one event loop, a burst at a time.

Owns: `Inbox`. Never: what an item means.

How it works: a deque and a flag "a wake-up is under way". The consumer lowers the flag before it empties the deque, so
whoever finds the flag up knows that the item just put will be seen; two producers that race only wake it twice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar, final

T = TypeVar("T")


@final
class Inbox(Generic[T]):
    """Items on their way to one loop.

    Args:
        wake: Runs a callback on the consumer's loop soon; callable from any thread.
        handle: Takes one item, on the consumer's loop.
        on_error: Told when `handle` raised, which is a bug; the remaining items are still handled.
        wake_last: Likewise, for producers that do nothing else afterwards: it may run the callback before it returns.
    """

    __slots__ = ("_handle", "_is_woken", "_items", "_on_error", "_wake", "_wake_last")

    def __init__(
        self,
        wake: Callable[[Callable[[], None]], object],
        handle: Callable[[T], None],
        on_error: Callable[[BaseException], None],
        wake_last: Callable[[Callable[[], None]], object] | None = None,
    ) -> None:
        self._wake = wake
        self._wake_last = wake_last or wake
        self._handle = handle
        self._on_error = on_error
        self._items: deque[T] = deque()
        self._is_woken = False

    def put(self, item: T) -> None:
        """Hand over one item; from any thread.

        Raises:
            RuntimeError: The consumer's loop is closed.
        """
        self._items.append(item)
        if not self._is_woken:
            self._is_woken = True
            try:
                self._wake(self._drain)
            except BaseException:
                self._is_woken = False
                raise

    def put_last(self, item: T) -> None:
        """Hand over one item, and do nothing else afterwards; like `put`."""
        self._items.append(item)
        if not self._is_woken:
            self._is_woken = True
            try:
                self._wake_last(self._drain)
            except BaseException:
                self._is_woken = False
                raise

    def __len__(self) -> int:
        return len(self._items)

    def _drain(self) -> None:
        self._is_woken = False
        items, handle = self._items, self._handle
        # Only what is there now: items put meanwhile have woken the loop again, and others get their turn in between.
        for _ in range(len(items)):
            item = items.popleft()
            try:
                handle(item)
            except Exception as error:  # noqa: BLE001 - whatever it is must bring the worker down, not this loop
                self._on_error(error)
