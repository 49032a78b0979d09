"""How a run leaves the cache without any of its code running again.

Owns: laying suspended coroutines and generators to rest. Never: throws anything into them.

How it works: when a suspended coroutine or generator is freed, the interpreter first resumes it with `GeneratorExit`,
so that its ``finally`` and ``except`` blocks run; then it clears the frame. Those blocks are user code: they would
log, reset context variables of another run, or await on a dead loop. The interpreter calls such a finaliser at most
once an object and notes that in the object's collector header; an object that has the note is freed without it.
`bury` sets the note on every suspended frame of a run before the last references go. So memory is freed at once and
no line of the run is executed. What holds frames is followed: the interpreter's own containers, iterators and
awaitables however far they lead, the user's objects and closures a few steps. A frame behind more of them, and
``__del__`` of the user's objects, may still run.

The note is bit 0 of the second word of the header, on CPython 3.11 to 3.14 with the global lock. Whether that holds
in the process at hand is tried once on a coroutine of our own, by `gc.is_finalized`; elsewhere buried frames are kept
for ever (memory, but still no execution), and `is_freeing` says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import functools
import gc
import itertools
import sys
import types
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, cast

_WORD: Final = ctypes.sizeof(ctypes.c_size_t)
_NOTE: Final = 1

_FRAMES: Final = (types.CoroutineType, types.GeneratorType, types.AsyncGeneratorType)
_CONTAINERS: Final = (list, tuple, dict, set, frozenset, deque)
_NONE: Final[dict[Any, Any]] = {}
_ITERATORS: Final = (
    *(kind for kind in vars(itertools).values() if isinstance(kind, type)),
    *(enumerate, zip, map, filter, reversed),
    *(type(iter(holder)) for holder in list[Iterable[Any]](([], (), set(), _NONE, _NONE.values(), _NONE.items()))),
)
_FOLLOWED: Final = (
    *_FRAMES,
    *_ITERATORS,
    types.MethodType,
    types.BuiltinMethodType,
    types.MethodWrapperType,
    types.CellType,
    asyncio.Future,
    contextlib._GeneratorContextManagerBase,
    contextlib._BaseExitStack,
    contextlib.closing,
    contextlib.aclosing,
    functools.partial,
    *_CONTAINERS,
)  # fmt: skip
"""What may hold a suspended frame of the run, and is followed however far that leads."""

HOLDERS_DEEP: Final = 3
"""Of other objects, only those of the user's classes and closures are searched, and no more than so many one behind the
other: they may lead all over the process."""

HOLDERS_MAX: Final = 200
"""So many of them are searched, those nearest to the code; what is beyond is neither kept nor marked."""

BEYOND_MAX: Final = 2_000
"""So many objects are looked at behind them."""

LENGTH_MAX: Final = 100
"""Longer containers of theirs are not looked into: they are data, or something that runs share."""

OBJECTS_MAX: Final = 1_000_000
"""Objects looked at for one run; bounds the time that an eviction takes. What is beyond is kept rather than freed."""

_FEW_ROOTS: Final = 5
"""A run that sleeps leaves its task, what its timer calls with which arguments, and its object with its attributes."""

AT_ONCE: Final = 500
"""Objects whose references are read in one call: much less work than one by one, and still no time for the loop."""

_kept_for_ever: Final[list[Any]] = []


_identity_of: Final = object.__hash__
"""Tells objects apart, as `id` does, which is an audit event each time."""

_type_of: Final = cast("Callable[[object], type[Any]]", type)

_words: Final = ctypes.cast(_WORD, ctypes.POINTER(ctypes.c_size_t))
"""All memory as words, counted from the second: half the price of an object of ctypes for each word."""


def _note_finalized(thing: Any) -> None:
    _words[id(thing) // _WORD - 2] |= _NOTE


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


def bury(
    roots: Sequence[Any],
    note_progress: Callable[[int], None] | None = None,
    loop: asyncio.AbstractEventLoop | None = None,
) -> None:
    """Make sure that no frame reachable from `roots` ever runs again.

    Args:
        roots: Tasks, coroutines, generators and callbacks of one run.
        note_progress: Told now and then how many objects have been looked at.
        loop: Of the run. Its futures let go of the tasks that wait for them: the two refer to each other, and only the
            cycle collector could free them.
    """
    if len(roots) <= _FEW_ROOTS and (_lead_nowhere(roots) or _bury_chain(roots, loop)):
        return
    holders: dict[int, Any] = {}
    waiting: deque[Any] = deque()
    for root in roots:
        if type(root) is types.FunctionType:
            waiting += root.__closure__ or ()
        else:
            waiting.append(root)
    futures: list[asyncio.Future[Any]] = []
    seen: set[int] = set()
    _follow(waiting, seen, futures, holders, note_progress, OBJECTS_MAX, sys.maxsize)
    if waiting:
        _kept_for_ever.extend(waiting)
        return
    most, searched = len(seen) + BEYOND_MAX, 0
    for _ in range(HOLDERS_DEEP):
        nearest = list(holders.values())[searched:]
        if not nearest or len(seen) > most:
            break
        searched += len(nearest)
        waiting = deque(_held_by([one for one in nearest if _identity_of(one) not in seen], holders))
        _follow(waiting, seen, futures, holders, note_progress, most, LENGTH_MAX)
    for future in futures:
        if type(future) in _PLAIN_FUTURES and future.get_loop() is loop:
            _let_go(future)


def _lead_nowhere(roots: Sequence[Any]) -> bool:
    """Whether they are the object of a run that has ended, and its attributes, none of which could hold a frame: what
    most runs leave."""
    for root in roots:
        kind = _type_of(root)
        if kind is not dict and (_leads_on[kind] == _FOLLOWS or kind is types.FunctionType):
            return False
        for held in _leading(gc.get_referents(root)):
            # The dictionary of an object is the other root, or empty.
            if held is not roots[0] and (_type_of(held) is not dict or held):
                return False
    return True


def _bury_chain(roots: Sequence[Any], loop: asyncio.AbstractEventLoop | None) -> bool:
    """Lay a task to rest whose coroutines await one another and a future, and hold nothing else that could hold one:
    what most runs leave that fall asleep. False, and nothing done, if there is anything else."""
    task: Any = roots[0]
    if _type_of(task) is not asyncio.Task or not is_freeing:
        return False
    waited_for: Any = task._fut_waiter
    if _type_of(waited_for) is not asyncio.Future or waited_for.get_loop() is not loop:
        return False
    frames: list[Any] = []
    awaited: Any = task.get_coro()
    while _type_of(awaited) is types.CoroutineType:
        frames.append(awaited)
        awaited = awaited.cr_await
    if _type_of(awaited) is not _type_of(waited_for.__await__()):
        return False
    own: list[Any] = [task, waited_for, awaited, *frames]
    for root in roots[1:]:
        kind = _type_of(root)
        if kind is types.FunctionType:
            if root.__closure__:
                return False
        elif _leads_on[kind] == _FOLLOWS and kind is not tuple and kind is not dict:
            return False
        else:
            own.append(root)
    known = set(map(_identity_of, own))
    for held in _leading(gc.get_referents(*own)):
        if _identity_of(held) in known:
            continue
        kind = _type_of(held)
        if kind is types.FunctionType:
            leads_on = bool(held.__closure__)
        elif kind in _BOUND:
            leads_on = held.__self__ is not loop and held.__self__ is not task
        else:
            leads_on = kind not in _CONTAINERS or len(held) > LENGTH_MAX or _holds_more_than_data(held)
        if leads_on:
            return False
    for frame in frames:
        _note_finalized(frame)
    _let_go(waited_for)
    return True


def _holds_more_than_data(container: Any) -> bool:
    return any(True for _ in _leading(gc.get_referents(container)))


def _follow(
    waiting: deque[Any],
    seen: set[int],
    futures: list[asyncio.Future[Any]],
    holders: dict[int, Any],
    note_progress: Callable[[int], None] | None,
    objects_max: int,
    length_max: int,
) -> None:
    """Mark the frames that `waiting` leads to, not through longer containers; what is left there was not looked at."""
    while waiting:
        if note_progress is not None and len(seen) >= AT_ONCE:
            note_progress(len(seen))
        if len(seen) > objects_max or len(waiting) > objects_max:
            return
        found: list[Any] = []
        for _ in range(min(len(waiting), AT_ONCE)):
            thing = waiting.popleft()
            identity = _identity_of(thing)
            if identity in seen:
                continue
            seen.add(identity)
            role = _roles[_type_of(thing)]
            if role == _CONTAINS:
                if not thing or len(thing) > length_max:
                    continue
            elif role == _SUSPENDS:
                if is_freeing:
                    _note_finalized(thing)
                else:
                    _kept_for_ever.append(thing)
            elif role:
                futures.append(thing)
                if role == _RUNS:
                    thing._log_destroy_pending = False
            found.append(thing)
        waiting += _sorted_out(gc.get_referents(*found), holders)


def _sorted_out(things: list[Any], holders: dict[int, Any]) -> list[Any]:
    """Give what is followed, and add to `holders` what is searched."""
    leading = list(_leading(things))
    if not leading:
        return leading
    followed = [one for one in leading if _leads_on[type(one)] == _FOLLOWS]
    if len(followed) < len(leading) and len(holders) < HOLDERS_MAX:
        for one in leading:
            if _leads_on[type(one)] == _HOLDS and (type(one) is not types.FunctionType or one.__closure__):
                holders[id(one)] = one
                if len(holders) == HOLDERS_MAX:
                    break
    return followed


def _held_by(nearest: list[Any], holders: dict[int, Any]) -> list[Any]:
    """What the user's objects and closures refer to that may lead to a frame."""
    held: list[Any] = []
    for holder in nearest:
        if type(holder) is types.FunctionType:
            held += holder.__closure__ or ()  # Its globals are no business of the run.
        else:
            held += _sorted_out(gc.get_referents(holder), holders)
    return held


_BOUND: Final = (types.MethodType, types.BuiltinMethodType)

_PLAIN_FUTURES: Final = (asyncio.Future, asyncio.Task, asyncio.tasks._GatheringFuture)  # type: ignore[attr-defined]
"""Of other types it is not known what their methods do."""


def _let_go(future: asyncio.Future[Any]) -> None:
    """Forget the one task that waits for a future.

    One alone is found by its identity. To find it among others it would be compared with them, which may be the user's.
    """
    callbacks = future._callbacks
    if callbacks and len(callbacks) == 1 and type(callbacks[0][0]) is types.BuiltinMethodType:
        future.remove_done_callback(callbacks[0][0])


_CONTAINS: Final = 1
_SUSPENDS: Final = 2
_WAITS: Final = 3
_RUNS: Final = 4


class _Roles(dict[type, int]):
    """What is done with objects of a type that are followed; found out once for each type, as in `_Kinds`."""

    def __missing__(self, kind: type) -> int:
        if kind in _CONTAINERS:
            role = _CONTAINS
        elif kind in _FRAMES:
            role = _SUSPENDS
        elif issubclass(kind, asyncio.Future):
            role = _RUNS if issubclass(kind, asyncio.Task) else _WAITS
        else:
            role = 0
        if len(self) < _KINDS_MAX:
            self[kind] = role
        return role


_roles: Final = _Roles()


class _Kinds(dict[type, int]):
    """Which types are followed. What is found out about types is kept; some live as long as the process then."""

    def __missing__(self, kind: type) -> int:
        if issubclass(kind, _FOLLOWED) or kind.__name__ in _AWAITABLE_WRAPPERS:
            leads_on = _FOLLOWS
        else:
            leads_on = _HOLDS if kind is types.FunctionType or _is_users(kind) else 0
        if len(self) < _KINDS_MAX:
            self[kind] = leads_on
        return leads_on


def _is_users(kind: type) -> bool:
    """Whether a type was made by a class statement, outside of the standard library and of this one."""
    package = str(kind.__module__).partition(".")[0]
    is_made = bool(kind.__flags__ & _HEAP_TYPE) and not issubclass(kind, (type, types.ModuleType))
    return is_made and package != "clew" and package not in sys.stdlib_module_names


_FOLLOWS: Final = 1
_HOLDS: Final = 2
_HEAP_TYPE: Final = 1 << 9
_leads_on: Final = _Kinds()
_how_leads_on: Final = _leads_on.__getitem__


def _leading(things: list[Any]) -> Iterable[Any]:
    """Those that are followed or searched: few of many, so they are picked without a bytecode for each."""
    return itertools.compress(things, map(_how_leads_on, map(_type_of, things)))


_KINDS_MAX: Final = 1_000

_AWAITABLE_WRAPPERS: Final = frozenset(
    ("coroutine_wrapper", "async_generator_asend", "async_generator_athrow", "FutureIter", "TaskStepMethWrapper")
)
"""Types of the interpreter's own that stand between an await and what it awaits; they have no public names."""
