"""The workflows and the one activity that are measured; all of them do nothing, durably."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import Final

from clew import activity, workflow

TIMEOUT: Final = timedelta(minutes=5)

step_times: Final[list[float]] = []
"""When each step ran (`time.perf_counter`); the measurements read and clear it."""


@activity.defn
async def no_op(value: int) -> int:
    """Give back what it was given."""
    step_times.append(time.perf_counter())
    return value


@workflow.defn
class Sequence:
    """Steps one after another."""

    @workflow.run
    async def run(self, count: int) -> int:
        for number in range(count):
            await workflow.execute_activity(no_op, number, start_to_close_timeout=TIMEOUT)
        return count


@workflow.defn
class LocalSequence:
    """Local steps one after another."""

    @workflow.run
    async def run(self, count: int) -> int:
        for number in range(count):
            await workflow.execute_local_activity(no_op, number, start_to_close_timeout=TIMEOUT)
        return count


@workflow.defn
class FanOut:
    """Steps all at once."""

    @workflow.run
    async def run(self, count: int) -> int:
        steps = [workflow.execute_activity(no_op, number, start_to_close_timeout=TIMEOUT) for number in range(count)]
        return len(await asyncio.gather(*steps))


@workflow.defn
class Resumed:
    """Steps, then a wait for a signal, then one more step."""

    def __init__(self) -> None:
        self._is_told = False

    @workflow.run
    async def run(self, count: int) -> int:
        for number in range(count):
            await workflow.execute_activity(no_op, number, start_to_close_timeout=TIMEOUT)
        await workflow.wait_condition(lambda: self._is_told)
        return await workflow.execute_activity(no_op, count, start_to_close_timeout=TIMEOUT)

    @workflow.signal
    def go_on(self) -> None:
        """End the wait."""
        self._is_told = True


@workflow.defn
class LocalResumed:
    """Local steps, then a wait for a signal, then one more step."""

    def __init__(self) -> None:
        self._is_told = False

    @workflow.run
    async def run(self, count: int) -> int:
        for number in range(count):
            await workflow.execute_local_activity(no_op, number, start_to_close_timeout=TIMEOUT)
        await workflow.wait_condition(lambda: self._is_told)
        return await workflow.execute_local_activity(no_op, count, start_to_close_timeout=TIMEOUT)

    @workflow.signal
    def go_on(self) -> None:
        """End the wait."""
        self._is_told = True


@workflow.defn
class Echo:
    """Counts signals until it is told to stop."""

    def __init__(self) -> None:
        self._count = 0
        self._is_over = False

    @workflow.run
    async def run(self) -> int:
        await workflow.wait_condition(lambda: self._is_over)
        return self._count

    @workflow.signal
    def add(self, number: int) -> None:
        """Count."""
        self._count += number

    @workflow.signal
    def stop(self) -> None:
        """End the run."""
        self._is_over = True

    @workflow.query
    def count(self) -> int:
        """What was counted so far."""
        return self._count


@workflow.defn
class Asked:
    """Answers updates until it is told to stop."""

    def __init__(self) -> None:
        self._is_over = False

    @workflow.run
    async def run(self) -> None:
        await workflow.wait_condition(lambda: self._is_over)

    @workflow.update
    async def ask(self, number: int) -> int:
        """Give back what was given."""
        return number

    @workflow.signal
    def stop(self) -> None:
        """End the run."""
        self._is_over = True


@workflow.defn
class Sleeper:
    """Sleeps for an hour."""

    @workflow.run
    async def run(self) -> None:
        await workflow.sleep(timedelta(hours=1))


ALL: Final = [Sequence, LocalSequence, FanOut, Resumed, LocalResumed, Echo, Asked, Sleeper]
