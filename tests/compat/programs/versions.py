"""Code that changes under running workflows: patches, and replay of a recorded history."""

from __future__ import annotations

from datetime import timedelta

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner, Worker

with workflow.unsafe.imports_passed_through():
    import json


@activity.defn
async def old_step() -> str:
    return "old"


@activity.defn
async def new_step() -> str:
    return "new"


STEP = timedelta(seconds=5)


@workflow.defn(name="Job")
class Before:
    @workflow.run
    async def run(self) -> str:
        return json.dumps(await workflow.execute_activity(old_step, start_to_close_timeout=STEP))


@workflow.defn(name="Job", sandboxed=False)
class After:
    @workflow.run
    async def run(self) -> str:
        if workflow.patched("new-step"):
            return json.dumps(await workflow.execute_activity(new_step, start_to_close_timeout=STEP))
        return json.dumps(await workflow.execute_activity(old_step, start_to_close_timeout=STEP))


@workflow.defn(name="Job")
class Broken:
    @workflow.run
    async def run(self) -> str:
        return json.dumps(await workflow.execute_activity(new_step, start_to_close_timeout=STEP))


async def main(address: str) -> list[object]:
    client = await Client.connect(address)
    async with Worker(client, task_queue="jobs", workflows=[Before], activities=[old_step]):
        handle = await client.start_workflow("Job", id="job-1", task_queue="jobs", result_type=str)
        seen: list[object] = [await handle.result()]
        history = await handle.fetch_history()
    await Replayer(workflows=[After]).replay_workflow(history)
    try:
        await Replayer(workflows=[Broken]).replay_workflow(history)
    except workflow.NondeterminismError:
        seen.append("does not fit")
    results = await Replayer(workflows=[After]).replay_workflows(
        client.list_workflows("WorkflowType = 'Job'").map_histories()
    )
    seen.append(len(results.replay_failures))
    async with Worker(
        client,
        task_queue="jobs",
        workflows=[After],
        activities=[old_step, new_step],
        workflow_runner=UnsandboxedWorkflowRunner(),
    ):
        seen.append(await client.execute_workflow(After.run, id="job-2", task_queue="jobs"))
    return seen


EXPECTED = ['"old"', "does not fit", 0, '"new"']
