"""A cancelled order: children, a shielded step, races of timers, a saga of which one compensation fails. Never edited."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from clew import activity, workflow
from clew.common import RetryPolicy
from clew.exceptions import ActivityError, ApplicationError, ChildWorkflowError

LIMIT = timedelta(seconds=30)
ONCE = RetryPolicy(maximum_attempts=1)


class Steps:
    """Names and types alone: a replay runs no activity."""

    @activity.defn
    def book(self, what: str) -> str:
        raise NotImplementedError

    @activity.defn
    def undo(self, what: str) -> None:
        raise NotImplementedError

    @activity.defn
    async def wait_for_ever(self) -> None:
        raise NotImplementedError


@workflow.defn
class Delivery:
    @workflow.run
    async def run(self, what: str) -> str:
        if what == "nothing":
            raise ApplicationError("there is nothing to deliver", non_retryable=True)
        await workflow.wait_condition(lambda: False)
        return what


@workflow.defn
class Order:
    def __init__(self) -> None:
        self.losses: list[str] = []

    @workflow.run
    async def run(self, rooms: int) -> str:
        async with workflow.saga() as saga:
            for n in range(rooms):
                saga.add(Steps.undo, f"room {n}", start_to_close_timeout=LIMIT, retry_policy=ONCE, before=True)
                await workflow.execute_activity_method(Steps.book, f"room {n}", start_to_close_timeout=LIMIT)
            try:
                await workflow.execute_child_workflow(Delivery.run, "nothing", id="order-none")
            except ChildWorkflowError as error:
                self.losses.append(type(error.cause).__name__)
            delivery = await workflow.start_child_workflow(
                Delivery.run,
                "flowers",
                id="order-flowers",
                cancellation_type=workflow.ChildWorkflowCancellationType.WAIT_CANCELLATION_COMPLETED,
            )
            winner = await self.race()
            self.losses.append(winner)
            try:
                await delivery
            except asyncio.CancelledError:
                await asyncio.shield(self.tidy())
                raise
            except ChildWorkflowError:
                await self.tidy()
                raise
        return ", ".join(self.losses)

    async def race(self) -> str:
        try:
            await workflow.execute_activity_method(
                Steps.wait_for_ever,
                start_to_close_timeout=LIMIT,
                schedule_to_close_timeout=timedelta(milliseconds=50),
                retry_policy=ONCE,
            )
        except ActivityError as error:
            first = type(error.cause).__name__
        slow, quick = asyncio.create_task(asyncio.sleep(60)), asyncio.create_task(asyncio.sleep(0.01))
        done, pending = await workflow.wait([slow, quick], return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        return f"{first}, {len(done)} of {len(done) + len(pending)}"

    async def tidy(self) -> None:
        await workflow.execute_activity_method(Steps.undo, "flowers", start_to_close_timeout=LIMIT)

    @workflow.query
    def state(self) -> list[str]:
        return self.losses


WORKFLOWS = [Order, Delivery]
