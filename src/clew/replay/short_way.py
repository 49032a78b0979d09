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
"""

from __future__ import annotations

import asyncio
import dis
import sys
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

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

    __slots__ = ("_local", "_loop", "_main", "_runtime")

    def __init__(self, runtime: WorkflowRuntime, loop: WorkflowLoop, local: LocalActivities) -> None:
        self._runtime = runtime
        self._loop = loop
        self._local = local
        self._main: asyncio.Task[Any] | None = None
        """The task of `run`, which is there while the short way may be taken."""

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
        frame: FrameType | None = sys._getframe(3)
        while frame is not None and frame.f_code is not _LOOP_CODE:
            code, at = frame.f_code.co_code, frame.f_lasti
            if code[at] != _AWAITS and (code[at] != _CACHE or code[at - _UNIT] != _AWAITS):
                return False
            frame = frame.f_back
        return frame is not None
