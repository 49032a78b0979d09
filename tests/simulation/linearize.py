"""Linearizability of a recorded history of calls on one register, after Wing and Gong, with memory.

Owns: `is_linearizable`. Never: knows where the history comes from.

How it works: a call may take effect at any moment between its beginning and its end. The search takes one by one the
calls that may come next (those that began before the earliest end among the rest), tries each on the register, and
remembers which sets of calls led to which value in vain (Wing and Gong 1993; Lowe 2017 for the memory).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

Moment = tuple[float, int]
NEVER: Moment = (float("inf"), 0)


class Operation(NamedTuple):
    """One call: `apply` gives the new value, or None when the call cannot have had its answer at this value."""

    name: str
    began_at: Moment
    ended_at: Moment
    apply: Callable[[Any], Any]


def is_linearizable(operations: Sequence[Operation], start: Any) -> bool:
    """Whether some order of the calls, within their bounds, explains every answer. At most some 40 calls."""
    count = len(operations)
    everything = (1 << count) - 1
    failed: set[tuple[int, Any]] = set()
    stack: list[tuple[int, Any]] = [(0, start)]
    while stack:
        done, value = stack.pop()
        if done == everything:
            return True
        if (done, value) in failed:
            continue
        failed.add((done, value))
        left = [index for index in range(count) if not done >> index & 1]
        bound = min(operations[index].ended_at for index in left)
        for index in left:
            if operations[index].began_at <= bound:
                after = operations[index].apply(value)
                if after is not None:
                    stack.append((done | 1 << index, after))
    return False
