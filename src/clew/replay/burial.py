"""How a run leaves the cache without any of its code running again.

Owns: laying suspended coroutines and generators to rest. Never: throws anything into them.

How it works: when a suspended coroutine or generator is freed, the interpreter first resumes it with `GeneratorExit`,
so that its ``finally`` and ``except`` blocks run; then it clears the frame. Those blocks are user code: they would
log, reset context variables of another run, or await on a dead loop. The interpreter calls such a finaliser at most
once an object and notes that in the object's collector header; an object that has the note is freed without it.
`bury` sets the note on every suspended frame of a run before the last references go. So memory is freed at once and
no line of the run is executed.

The note is bit 0 of the second word of the header, on CPython 3.11 to 3.14 with the global lock. Whether that holds
in the process at hand is tried once on a coroutine of our own, by `gc.is_finalized`; elsewhere buried frames are kept
for ever (memory, but still no execution), and `is_freeing` says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import sys
import types
from collections import deque
from collections.abc import Iterable
from typing import Any, Final

_WORD: Final = ctypes.sizeof(ctypes.c_size_t)
_NOTE: Final = 1

_FRAMES: Final = (types.CoroutineType, types.GeneratorType, types.AsyncGeneratorType)
_FOLLOWED: Final = (
    *_FRAMES,
    types.MethodType,
    types.BuiltinMethodType,
    types.CellType,
    asyncio.Future,
    contextlib._GeneratorContextManagerBase,
    contextlib._BaseExitStack,
    list,
    tuple,
    dict,
    deque,
)  # fmt: skip
"""What may hold a suspended frame of the run. Other objects are not searched: they lead all over the process."""

OBJECTS_MAX: Final = 100_000
"""Objects looked at for one run; bounds the time that an eviction takes."""

_kept_for_ever: Final[list[Any]] = []


def _note_finalized(thing: Any) -> None:
    ctypes.c_size_t.from_address(id(thing) - _WORD).value |= _NOTE


async def _suspended_for_ever() -> None:
    await asyncio.sleep(0)


def _try_note() -> bool:
    if sys.implementation.name != "cpython" or not getattr(sys, "_is_gil_enabled", lambda: True)():
        return False
    trial = _suspended_for_ever()
    if gc.is_finalized(trial) or not gc.is_tracked(trial):
        trial.close()
        return False
    _note_finalized(trial)
    if gc.is_finalized(trial):
        return True
    trial.close()
    return False


is_freeing: Final = _try_note()
"""Whether buried frames are freed in this process, rather than kept."""


def bury(roots: Iterable[Any]) -> None:
    """Make sure that no frame reachable from `roots` ever runs again.

    Args:
        roots: Tasks, coroutines, generators and callbacks of one run.
    """
    seen: set[int] = set()
    queue: deque[Any] = deque(roots)
    while queue and len(seen) < OBJECTS_MAX:
        thing = queue.popleft()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, _FRAMES):
            if is_freeing:
                _note_finalized(thing)
            else:
                _kept_for_ever.append(thing)
        elif isinstance(thing, asyncio.Task):
            thing._log_destroy_pending = False  # type: ignore[attr-defined]
        referents = gc.get_referents(thing)
        queue.extend(r for r in referents if _leads_on(r))


def _leads_on(thing: object) -> bool:
    kind = type(thing)
    leads_on = _kinds.get(kind)
    if leads_on is None:
        leads_on = issubclass(kind, _FOLLOWED) or kind.__name__ in _AWAITABLE_WRAPPERS
        if len(_kinds) < _KINDS_MAX:
            _kinds[kind] = leads_on
    return leads_on


_kinds: Final[dict[type, bool]] = {}
"""What was found out about types; some live as long as the process then."""

_KINDS_MAX: Final = 1_000


_AWAITABLE_WRAPPERS: Final = frozenset(
    ("coroutine_wrapper", "async_generator_asend", "async_generator_athrow", "FutureIter", "TaskStepMethWrapper")
)
"""Types of the interpreter's own that stand between an await and what it awaits; they have no public names."""
