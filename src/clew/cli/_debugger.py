"""A debugger that walks along a history.

Owns: the prompt, its commands for moving in time, and how stacks look. Never: rebuilds a run (the caller does).

How it works: it is Python's own debugger, set on the frames of suspended coroutines: everything that looks works as
ever (``where``, ``up``, ``p``, ``pp``, ``list``, ``interact``), and what would let code run is replaced by moving along
the history: each move rebuilds the run at another event.
"""

from __future__ import annotations

import linecache
import pdb
import reprlib
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, Final, cast, final

from clew.model import events as e
from clew.model.history import WorkflowHistory
from clew.worker import RebuiltRun

_EVENTS_AROUND: Final = 5

_HELP: Final = """\
next, n          to the next workflow task          prev      to the one before
at EVENT         to an event                        events    the events around this one
tasks            the waiting coroutines             task N    look at another of them
where, up, down, p, pp, list, args, interact, …     as in pdb
quit, q          leave"""

_repr: Final = reprlib.Repr()
_repr.maxstring = _repr.maxother = 200
_repr.maxdict = _repr.maxlist = _repr.maxtuple = 10


@final
class HistoryDebugger(pdb.Pdb):
    """One stop at one event.

    Args:
        run: The run as it stands there.
    """

    def __init__(self, run: RebuiltRun) -> None:
        # With stdin from elsewhere than a terminal the lines are read plainly, so that a script can drive it.
        is_terminal = sys.stdin.isatty()
        super().__init__(
            stdin=None if is_terminal else sys.stdin, stdout=None if is_terminal else sys.stdout, nosigint=True
        )
        self.prompt = "(clew) "
        self._run = run
        self._task = 0
        self.wanted: int | None = None
        """The event to go to next; None to leave."""

    def stop(self) -> int | None:
        """Let the user look; gives the event to go to next, or None."""
        frame = self._frames()[-1][0] if self._run.stacks else sys._getframe()
        self.interaction(frame, None)
        return self.wanted

    def get_stack(self, f: FrameType | None, t: Any) -> tuple[list[tuple[FrameType, int]], int]:
        """Give the frames of the chosen coroutine in place of those that run."""
        if not self._run.stacks:
            return super().get_stack(f, t)
        frames = list(self._frames())
        return frames, len(frames) - 1

    def _frames(self) -> list[tuple[FrameType, int]]:
        return list(self._run.stacks[self._task].frames)

    def _go(self, event_id: int | None) -> bool | None:
        if event_id is None:
            self.message("There is no workflow task in that direction.")
            return False
        self.wanted = event_id
        return True

    # --- commands; the names are pdb's way of finding them -------------------------------------------------

    def do_next(self, arg: str) -> bool | None:
        """next: go to the next workflow task."""
        del arg
        return self._go(next((at for at in task_ends(self._run.history) if at > self._run.event_id), None))

    do_n = do_next

    def do_prev(self, arg: str) -> bool | None:
        """prev: go to the workflow task before."""
        del arg
        before = [at for at in task_ends(self._run.history) if at < self._run.event_id]
        return self._go(before[-1] if before else None)

    def do_at(self, arg: str) -> bool | None:
        """at EVENT: go to an event."""
        if not arg.isdigit() or not 1 <= int(arg) <= len(self._run.history):
            self.message(f"at wants the number of an event, from 1 to {len(self._run.history)}.")
            return False
        return self._go(int(arg))

    def do_events(self, arg: str) -> bool | None:
        """events: print the events around this one."""
        del arg
        first = max(self._run.event_id - _EVENTS_AROUND - 1, 0)
        for event in self._run.history.events[first : self._run.event_id + _EVENTS_AROUND]:
            mark = "->" if event.event_id == self._run.event_id else "  "
            self.message(f"{mark} {event_text(event)}")
        return False

    def do_tasks(self, arg: str) -> bool | None:
        """tasks: list the waiting coroutines."""
        del arg
        for number, stack in enumerate(self._run.stacks):
            frame, line = stack.frames[-1]
            mark = "->" if number == self._task else "  "
            self.message(
                f"{mark} {number}  {stack.name}: {frame.f_code.co_filename}:{line} in {frame.f_code.co_qualname}"
            )
        return False

    def do_task(self, arg: str) -> bool | None:
        """task N: look at another coroutine."""
        if not arg.isdigit() or int(arg) >= len(self._run.stacks):
            self.message(f"task wants a number from 0 to {len(self._run.stacks) - 1}; see `tasks`.")
            return False
        self._task = int(arg)
        self.setup(self._frames()[-1][0], None)
        self.print_stack_entry(self.stack[self.curindex])
        return False

    def do_help(self, arg: str) -> bool | None:
        """help: print the commands."""
        if arg:
            super().do_help(arg)
        else:
            self.message(_HELP)
        return False

    do_h = do_help

    def do_quit(self, arg: str) -> bool | None:
        """quit: leave."""
        del arg
        self.wanted = None
        return True

    do_q = do_exit = do_EOF = do_quit  # noqa: N815 (what pdb calls the end of the input)

    def _does_not_run(self, arg: str) -> bool | None:
        """Not here: nothing of the run is executed."""
        del arg
        self.message("Nothing runs here: the code stands as it stood. `next` goes to the next workflow task.")
        return False

    do_step = do_s = do_return = do_r = do_until = do_unt = do_jump = do_j = do_run = do_restart = _does_not_run
    do_continue = do_c = do_cont = _does_not_run


def task_ends(history: WorkflowHistory) -> list[int]:
    """The events at which the code has taken a step: those that end a workflow task."""
    kinds = (e.WorkflowTaskCompleted, e.WorkflowTaskFailed)
    return [event.event_id for event in history if isinstance(event, kinds)]


def event_text(event: e.Event) -> str:
    """One event on one line."""
    names = ("activity_type", "signal_name", "timer_id", "workflow_type", "marker_name")
    name = next((str(getattr(event, name)) for name in names if getattr(event, name, "")), "")
    return f"{event.event_id:>5}  {event.event_time:%Y-%m-%d %H:%M:%S}  {type(event).__name__} {name}".rstrip()


def stack_lines(run: RebuiltRun, *, shows_locals: bool, emit: Callable[[str], None] = print) -> None:
    """Print the stacks of all that waits, with source lines, and with local variables if asked for."""
    for stack in run.stacks:
        emit(f"{stack.name} (most recent call last):")
        for frame, line in stack.frames:
            emit(f'  File "{frame.f_code.co_filename}", line {line}, in {frame.f_code.co_qualname}')
            source = linecache.getline(frame.f_code.co_filename, line, frame.f_globals).strip()
            if source:
                emit(f"    {source}")
            if shows_locals:
                for name, text in local_texts(frame).items():
                    emit(f"      {name} = {text}")


def local_texts(frame: FrameType) -> dict[str, str]:
    """The local variables of a frame, each as a short text."""
    return {name: _text_of(value) for name, value in frame.f_locals.items() if not name.startswith("@")}


def _text_of(value: Any) -> str:
    kind: type[Any] = cast(Any, type(value))
    held: dict[str, Any] = getattr(value, "__dict__", None) or {}
    if held and not any("__repr__" in vars(base) for base in kind.__mro__[:-1]):
        # Most workflows have no text of their own; what they hold is what people look for.
        inner = ", ".join(f"{name}={_safe_repr(one)}" for name, one in list(held.items())[:20])
        return f"<{kind.__qualname__} {inner}>"
    return _safe_repr(value)


def _safe_repr(value: Any) -> str:
    try:
        return _repr.repr(value)
    except Exception as error:  # noqa: BLE001 (the repr is user code; that it fails is what there is to tell)
        return f"<no repr: {type(error).__name__}>"
