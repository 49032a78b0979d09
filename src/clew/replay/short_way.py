"""Whether an `await` may be answered without stopping at it, as nobody could notice.

Owns: `ShortWay`, what the short ways through recorded steps have in common. Never: what is recorded, or what is given
as the answer (``recorded_steps`` and ``recorded_activities``).

How it works: code that awaits a step stops, the loop finds that nothing else can go on, the next event is applied, and
the code goes on. When that event is the outcome of the very step, and nothing but that coroutine could go on in
between, stopping changes nothing that anybody could see. Then the outcome is given at once, which saves the way through
a future, the loop and the machine.

That nothing else could go on has two sides. The loop tells of callbacks, conditions and cancellations that wait. And
somebody between the loop and the coroutine may run it by hand (``coroutine.send(None)``, or a task that starts at
once) and mean to do more when it has stopped. So every frame between must be one that awaits the next. What is not
written in Python has no frame: code that a `map` around ``coroutine.__await__()`` calls at each stop is not seen, nor
called where nothing stops.

Looking at frames is what the interpreter reports to audit hooks, and the guard's hook is one: `sys._getframe` and each
``frame.f_code`` would cost more than the step. Nothing is reported of ``f_back`` and ``f_lasti``. So the topmost frame
is had from a generator that knows its own (`_asking`), and of the two frames that are always there, that of the loop
and that of `run`, the code is asked for once a row.
"""

from __future__ import annotations

import asyncio
import dis
from collections.abc import Generator
from types import FrameType, GeneratorType
from typing import TYPE_CHECKING, Any, Final, cast

from clew.replay.local_activities import LocalActivities
from clew.replay.loop import WorkflowLoop

if TYPE_CHECKING:
    from clew.replay.runtime import WorkflowRuntime

_LOOP_CODE: Final = WorkflowLoop.run_until_idle.__code__
_AWAITS: Final = dis.opmap["SEND"]
"""The instruction at which a frame stands that awaits another; Python 3.12 shows the cache that follows it."""
_CACHE: Final = dis.opmap.get("CACHE", 0)
_UNIT: Final = 2


class ShortWay:
    """Looks at one run.

    Args:
        runtime: Of the run.
        loop: Of the run.
        local: Its local activities.
    """

    __slots__ = ("_asking", "_local", "_loop", "_loop_frame", "_main", "_main_awaits", "_main_frame", "_runtime")

    def __init__(self, runtime: WorkflowRuntime, loop: WorkflowLoop, local: LocalActivities) -> None:
        self._runtime = runtime
        self._loop = loop
        self._local = local
        self._main: asyncio.Task[Any] | None = None
        """The task of `run`, which is there while the short way may be taken."""
        self._asking: Generator[FrameType | None, FrameType | None, None] | None = None
        self._loop_frame: FrameType | None = None
        self._main_frame: FrameType | None = None
        """Known of this row. No other is kept: what its coroutine held would end later than when it was live."""
        self._main_awaits: set[int] = set()
        """Where that of `run` was seen to stand at an `await`."""

    def _is_alone(self) -> bool:
        """Whether, if the coroutine that asks stopped, nothing would run before the next event is applied.

        It is for a method that was called by the coroutine: of the frames, the third is the first that is looked at.
        """
        loop, runtime = self._loop, self._runtime
        if (
            loop.ready
            or runtime.conditions
            or runtime.is_stirred
            or runtime.read_only_reason
            or self._local.abandoned
            or loop.held_task is not None
        ):
            return False
        task: Any = asyncio.current_task(loop)
        if task is None or task._must_cancel or (task is not self._main and self._main.done()):  # type: ignore[union-attr]
            return False
        asking = self._asking
        if asking is None:
            asking = self._asking = _asking()
        frame: FrameType | None = next(asking).f_back.f_back.f_back  # type: ignore[union-attr]
        if (
            frame is not None
            and frame is self._main_frame
            and frame.f_back is self._loop_frame
            and frame.f_lasti in self._main_awaits
        ):
            return True
        return self._is_awaited_throughout(frame, task)

    def _is_awaited_throughout(self, frame: FrameType | None, task: asyncio.Task[Any]) -> bool:
        """Whether this frame and all between it and the loop stand at an `await`."""
        outermost: FrameType | None = None
        while frame is not None and frame is not self._loop_frame:
            if frame is not self._main_frame or frame.f_lasti not in self._main_awaits:
                code = frame.f_code
                if code is _LOOP_CODE:
                    self._loop_frame = frame
                    break
                if not _is_await(code.co_code, frame.f_lasti):
                    return False
            outermost, frame = frame, frame.f_back
        if frame is None:
            return False
        if outermost is not None and task is self._main:
            if outermost is not self._main_frame:
                self._main_frame, self._main_awaits = outermost, set()
            self._main_awaits.add(outermost.f_lasti)
        return True


def _is_await(instructions: bytes, at: int) -> bool:
    return instructions[at] == _AWAITS or (instructions[at] == _CACHE and instructions[at - _UNIT] == _AWAITS)


def _asking() -> Generator[FrameType | None, FrameType | None, None]:
    """Make a generator that gives, each time, the frame of whoever asks."""
    generator = _callers()
    next(generator)
    generator.send(cast("GeneratorType[Any, Any, Any]", generator).gi_frame)
    return generator


def _callers() -> Generator[FrameType | None, FrameType | None, None]:
    own = yield None
    assert own is not None, "it is told its own frame first"
    while True:
        yield own.f_back
