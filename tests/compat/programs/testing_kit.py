"""Tests as they are written for workflows: skipped time, mocked activities, an activity on its own."""

from __future__ import annotations

from datetime import timedelta

from temporalio import activity, workflow
from temporalio.testing import ActivityEnvironment, WorkflowEnvironment
from temporalio.worker import Worker


@activity.defn
async def remind(who: str) -> str:
    raise NotImplementedError("sends a real mail")


@activity.defn(name="remind")
async def remind_mocked(who: str) -> str:
    return f"reminded {who}"


@activity.defn
def shout(text: str) -> str:
    activity.heartbeat(len(text))
    return text.upper()


@workflow.defn
class Reminder:
    @workflow.run
    async def run(self, days: int) -> str:
        await workflow.sleep(timedelta(days=days))
        return await workflow.execute_activity(remind, "Ada", schedule_to_close_timeout=timedelta(minutes=5))


async def main(address: str) -> list[object]:
    seen: list[object] = []
    async with await WorkflowEnvironment.start_time_skipping() as env:
        async with Worker(env.client, task_queue="reminders", workflows=[Reminder], activities=[remind_mocked]):
            before = await env.get_current_time()
            seen.append(await env.client.execute_workflow(Reminder.run, 30, id="reminder", task_queue="reminders"))
            seen.append((await env.get_current_time() - before) >= timedelta(days=30))
    environment = ActivityEnvironment()
    beats: list[object] = []
    environment.on_heartbeat = lambda *details: beats.extend(details)
    seen.append(environment.run(shout, "hey"))
    seen.append(beats)
    return seen


EXPECTED = ["reminded Ada", True, "HEY", [3]]
