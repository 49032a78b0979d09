"""Sagas: undo what was done when a later step fails (semantics 0.6).

Owns: `saga` and its order of compensation. Never: runs a compensation other than as an activity.

How it works: an async context manager keeps the compensations that steps added. If its block raises, they run as
activities, last first, in a task of their own that the run's cancellation does not reach; then the error goes on,
with the errors of compensations that failed for good attached as notes and in `compensation_errors`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any, Final, Self, Unpack, final

from clew.common import RetryPolicy
from clew.workflow._activities import UNSET, ActivityConfig, activity_input
from clew.workflow._interceptor import StartActivityInput
from clew.workflow._runtime import ContinueAsNewError, current

COMPENSATION_TIMEOUT: Final = timedelta(minutes=1)
"""For each attempt of a compensation that names no timeout; attempts are unlimited."""

_SUMMARY: Final = "Compensation"


@final
class Saga:
    """Collects compensations; see `saga`."""

    def __init__(self, *, parallel: bool = False) -> None:
        self._parallel = parallel
        self._compensations: list[StartActivityInput] = []
        self.compensation_errors: list[Exception] = []
        """What went wrong while compensating."""

    def add(
        self,
        compensation: str | Callable[..., Any],
        *args: Any,
        before: bool = False,
        **options: Unpack[ActivityConfig],
    ) -> None:
        """Note how to undo a step.

        Args:
            compensation: The activity that undoes it, as function or name.
            *args: Its arguments.
            before: It is added ahead of the step, so it must bear being run although the step did not happen. The order
                of compensation is the order of adding, either way; the flag says so to readers of history.
            **options: Options of the activity. By default each attempt may take `COMPENSATION_TIMEOUT` and attempts are
                unlimited.
        """
        if options.get("start_to_close_timeout") is None and options.get("schedule_to_close_timeout") is None:
            options["start_to_close_timeout"] = COMPENSATION_TIMEOUT
        if options.get("retry_policy") is None:
            options["retry_policy"] = RetryPolicy()
        if options.get("summary") is None:
            options["summary"] = f"{_SUMMARY} (added before its step)" if before else _SUMMARY
        prepared = activity_input(compensation, UNSET, args, None, **options)
        self._compensations.append(prepared)

    async def compensate(self) -> Sequence[Exception]:
        """Run what was added, last first, and forget it. Called by the block's end; rarely needed otherwise.

        Returns:
            The errors of compensations that failed for good; they do not stop the others.
        """
        pending, self._compensations = self._compensations[::-1], []
        if self._parallel:
            tasks = [asyncio.ensure_future(_outcome(p)) for p in pending]
            outcomes = [await task for task in tasks]
        else:
            outcomes = [await _outcome(p) for p in pending]
        errors = [error for error in outcomes if error is not None]
        self.compensation_errors.extend(errors)
        return errors

    async def __aenter__(self) -> Self:
        current()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None or isinstance(error, (ContinueAsNewError, GeneratorExit)) or not self._compensations:
            return
        await _shielded(self.compensate())
        for failed in self.compensation_errors:
            error.add_note(f"A compensation failed: {failed!r} (caused by {failed.__cause__!r})")


def saga(*, parallel: bool = False) -> Saga:
    """Undo finished steps when a later one fails: ``async with workflow.saga() as saga: …; saga.add(undo, arg)``.

    Args:
        parallel: Run the compensations together rather than one after the other, last first.
    """
    return Saga(parallel=parallel)


async def _outcome(prepared: StartActivityInput) -> Exception | None:
    try:
        await current().execute_activity(prepared)
    except Exception as error:  # noqa: BLE001 (kept, attached to the error that started the compensation)
        return error
    return None


async def _shielded(work: Any) -> None:
    """Wait for `work` through any number of cancellations; the error on its way tells of them already."""
    task = asyncio.ensure_future(work)
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise
    task.result()
