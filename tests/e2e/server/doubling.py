"""A workflow that waits between its steps, so that nodes can be killed amid them; a worker of its own can run it."""

from __future__ import annotations

from datetime import timedelta

from clew import activity, workflow


@activity.defn
async def double(number: int) -> int:
    return 2 * number


@workflow.defn
class Doubling:
    @workflow.run
    async def run(self, number: int) -> int:
        for _ in range(3):
            number = await workflow.execute_activity(
                double, number, start_to_close_timeout=timedelta(seconds=5), heartbeat_timeout=timedelta(seconds=5)
            )
            await workflow.sleep(0.5)
        return number
