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

Thousands of steps are passed here in a row, so who answers is a generator that is sent each of them (`_answers`): what
does not change from one to the next stays in its variables. It never raises: where anything is unusual, nothing has
been changed, and the general way finds what there is to say.

Looking at frames is what the interpreter reports to audit hooks, and the guard's hook is one: `sys._getframe` and each
``frame.f_code`` would cost more than the step. Nothing is reported of ``f_back`` and ``f_lasti``. So the generator
starts from its own frame, whose ``f_back`` is that of whoever sent to it; and of the two frames that are always there,
that of the loop and that of `run`, the code is asked for once a row. Other frames are not kept, because what they hold
would end later than it did when it was live.
"""

from __future__ import annotations

import asyncio
import dis
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from types import CodeType, FrameType, GeneratorType
from typing import TYPE_CHECKING, Any, Final, cast

from clew.replay.local_activities import LocalActivities
from clew.replay.loop import WorkflowLoop
from clew.workflow._runtime import AwaitedCall

if TYPE_CHECKING:
    from clew.replay.runtime import WorkflowRuntime

_LOOP_CODE: Final = WorkflowLoop.run_until_idle.__code__
_AWAITS: Final = dis.opmap["SEND"]
"""The instruction at which a frame stands that awaits another; Python 3.12 shows the cache that follows it."""
_CACHE: Final = dis.opmap.get("CACHE", 0)
_UNIT: Final = 2

_CODES_MAX: Final = 8
"""Of coroutines that are looked through one by one; most rows have one or two."""

KNOWN_MAX: Final = 100
"""Of different activities whose calls are remembered; code may make new functions without end."""


class ShortWay(ABC):
    """Looks at one run.

    Args:
        runtime: Of the run.
        loop: Of the run.
        local: Its local activities.
    """

    __slots__ = (
        "_awaits", "_generator", "_local", "_loop", "_loop_frame", "_main", "_main_awaits", "_main_frame", "_own_frame",
        "_runtime", "index",
    )  # fmt: skip

    def __init__(self, runtime: WorkflowRuntime, loop: WorkflowLoop, local: LocalActivities) -> None:
        self._runtime = runtime
        self._loop = loop
        self._local = local
        self._generator: Generator[Any, AwaitedCall, None] | None = None
        self._main: asyncio.Task[Any] | None = None
        """The task of `run`, which is there while the short way may be taken."""
        self._own_frame: FrameType | None = None
        self._loop_frame: FrameType | None = None
        self._main_frame: FrameType | None = None
        """Known of this row. No other is kept: what its coroutine held would end later than when it was live."""
        self._main_awaits: set[int] = set()
        """Where that of `run` was seen to stand at an `await`."""
        self._awaits: list[tuple[CodeType, set[int]]] = []
        """The same of other coroutines, by their code."""
        self.index = 0
        """Of the event at hand."""

    def taker(self) -> Callable[[AwaitedCall], Any]:
        """Give what a coroutine calls that is about to await a step.

        It gives the result if history tells it next; else `UNSET`, with nothing changed.
        """
        self._generator = generator = self._answers()
        next(generator)
        return generator.send

    @abstractmethod
    def _answers(self) -> Generator[Any, AwaitedCall, None]: ...

    def _begin_row(self, main: asyncio.Task[Any]) -> None:
        self._main = main
        # Not from within: a frame that one of its own variables holds is freed by the collector alone.
        self._own_frame = cast("GeneratorType[Any, Any, Any]", self._generator).gi_frame

    def _end_row(self) -> None:
        self._main = self._own_frame = self._loop_frame = self._main_frame = None

    def let_go(self) -> None:
        """Forget the run, so that it is freed without the collector."""
        self._end_row()
        self._generator = None

    def _is_alone(self, frame: FrameType | None) -> bool:
        """Whether, if the coroutine with this frame stopped, nothing would run before the next event is applied."""
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
        at, main = frame, self._main_frame
        while at is not None and at is not main:
            code = at.f_code
            for known, places in self._awaits:
                if known is code and at.f_lasti in places:
                    break
            else:
                break
            at = at.f_back
        if at is not None and at is main and at.f_back is self._loop_frame and at.f_lasti in self._main_awaits:
            return not self._main._must_cancel  # type: ignore[union-attr]
        task: Any = asyncio.current_task(loop)
        if task is None or task._must_cancel or (task is not self._main and self._main.done()):  # type: ignore[union-attr]
            return False
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
                self._note(code, frame.f_lasti)
            outermost, frame = frame, frame.f_back
        if frame is None:
            return False
        if outermost is not None and task is self._main:
            if outermost is not self._main_frame:
                self._main_frame, self._main_awaits = outermost, set()
            self._main_awaits.add(outermost.f_lasti)
        return True

    def _note(self, code: CodeType, place: int) -> None:
        for known, places in self._awaits:
            if known is code:
                places.add(place)
                return
        if len(self._awaits) >= _CODES_MAX:
            self._awaits.clear()
        self._awaits.append((code, {place}))


def _is_await(instructions: bytes, at: int) -> bool:
    return instructions[at] == _AWAITS or (instructions[at] == _CACHE and instructions[at - _UNIT] == _AWAITS)
