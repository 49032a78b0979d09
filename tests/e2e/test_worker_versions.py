"""A rolling deployment as programs see it: workers of two versions, runs that stay and runs that move on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from typing import Any

import pytest

from clew import activity, workflow
from clew.client import Client, RPCError, WorkerDeploymentVersionStatus, WorkflowHandle
from clew.common import (
    AutoUpgradeVersioningOverride,
    PinnedVersioningOverride,
    VersioningBehavior,
    WorkerDeploymentVersion,
)
from clew.testing import WorkflowEnvironment
from clew.worker import Worker, WorkerDeploymentConfig

QUEUE = "orders"
Status = WorkerDeploymentVersionStatus


def build(build_id: str) -> WorkerDeploymentVersion:
    return WorkerDeploymentVersion("shop", build_id)


@activity.defn
async def pack() -> str:
    return "packed"


def order(behavior: VersioningBehavior, build_id: str) -> type[Any]:
    """The workflow as that build has it: it tells which build each of its steps ran on."""

    @workflow.defn(name=f"Order{behavior.value}", versioning_behavior=behavior)
    class Order:
        def __init__(self) -> None:
            self.steps: list[str] = []
            self.is_wanted = 0
            self.is_done = False

        @workflow.run
        async def run(self, rounds: int = 0) -> list[str]:
            while not self.is_done:
                await workflow.wait_condition(lambda: self.is_done or self.is_wanted > len(self.steps))
                if not self.is_done:
                    await workflow.execute_activity(pack, start_to_close_timeout=timedelta(seconds=30))
                    self.steps.append(f"step {len(self.steps) + 1}")
            if rounds:
                workflow.continue_as_new(rounds - 1)
            return self.steps

        @workflow.update
        async def step(self) -> str:
            self.is_wanted += 1
            await workflow.wait_condition(lambda: self.is_wanted <= len(self.steps))
            return build_id

        @workflow.update
        def where(self) -> str:
            return build_id

        @workflow.signal
        def finish(self) -> None:
            self.is_done = True

    return Order


def worker(client: Client, build_id: str) -> Worker:
    return Worker(
        client,
        task_queue=QUEUE,
        activities=[pack],
        workflows=[order(VersioningBehavior.PINNED, build_id), order(VersioningBehavior.AUTO_UPGRADE, build_id)],
        deployment_config=WorkerDeploymentConfig(version=build(build_id), use_worker_versioning=True),
        identity=f"worker of {build_id}",
    )


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with await WorkflowEnvironment.start_local() as environment:
        yield environment.client


async def start(
    client: Client, kind: str, workflow_id: str, rounds: int = 0, **options: Any
) -> WorkflowHandle[Any, Any]:
    return await client.start_workflow(f"Order{kind}", rounds, id=workflow_id, task_queue=QUEUE, **options)


async def where(*handles: WorkflowHandle[Any, Any]) -> Sequence[str]:
    return [await handle.execute_update("where", result_type=str) for handle in handles]


async def test_a_rolling_deployment(client: Client) -> None:
    deployment = client.get_worker_deployment_handle("shop")
    async with worker(client, "v1"):
        await deployment.set_current_version("v1")
        pinned, follows = await start(client, "Pinned", "p"), await start(client, "AutoUpgrade", "a")
        assert await pinned.execute_update("step") == await follows.execute_update("step") == "v1"
        async with worker(client, "v2"):
            assert await where(pinned, follows, await start(client, "Pinned", "p-before")) == ["v1"] * 3
            await deployment.set_current_version("v2")
            assert await where(pinned, follows, await start(client, "Pinned", "p-after")) == ["v1", "v2", "v2"]
            assert await follows.execute_update("step") == "v2"
            described = await deployment.describe()
            assert {one.build_id: one.status for one in described.versions} == {
                "v1": Status.DRAINING,
                "v2": Status.CURRENT,
            }
            for workflow_id in ("p", "p-before"):
                await client.get_workflow_handle(workflow_id).signal("finish")
            assert await pinned.result() == ["step 1"]
            await client.get_workflow_handle("p-before").result()
            described = await deployment.describe()
            assert described.versions[-1].status is Status.DRAINED
            assert [info.current_build_id for info in await client.list_worker_deployments()] == ["v2"]


async def test_a_run_is_moved_by_hand_and_given_back(client: Client) -> None:
    deployment = client.get_worker_deployment_handle("shop")
    async with worker(client, "v1"), worker(client, "v2"):
        await deployment.set_current_version("v1")
        handle = await start(client, "Pinned", "p")
        assert await where(handle) == ["v1"]
        await handle.update_options(versioning_override=PinnedVersioningOverride(build("v2")))
        assert await where(handle) == ["v2"]
        versioning = (await handle.describe()).versioning
        assert versioning is not None
        assert versioning.override == PinnedVersioningOverride(build("v2"))
        await handle.update_options(versioning_override=AutoUpgradeVersioningOverride())
        assert await where(handle) == ["v1"]
        await handle.update_options(versioning_override=None)
        assert await where(handle) == ["v1"]
        other = await start(client, "Pinned", "o", versioning_override=PinnedVersioningOverride(build("v2")))
        assert await where(other) == ["v2"]


async def test_a_pinned_run_without_its_workers_says_so(client: Client) -> None:
    deployment = client.get_worker_deployment_handle("shop")
    async with worker(client, "v1"):
        await deployment.set_current_version("v1")
        handle = await start(client, "Pinned", "p")
        assert await where(handle) == ["v1"]
    async with worker(client, "v2"):
        await deployment.set_current_version("v2")
        await handle.signal("finish")
        waiting = (await handle.describe()).waiting_for
        assert "no worker of version shop.v1 polls task queue 'orders'" in waiting[0]
        async with worker(client, "v1"):
            assert await handle.result() == []


async def test_a_chain_goes_on_where_it_is_pinned(client: Client) -> None:
    deployment = client.get_worker_deployment_handle("shop")
    async with worker(client, "v1"), worker(client, "v2"):
        await deployment.set_current_version("v1")
        handle = await start(client, "Pinned", "p", rounds=1)
        await handle.execute_update("step")
        await deployment.set_current_version("v2")
        await handle.signal("finish")
        current = client.get_workflow_handle("p")
        assert await where(current) == ["v1"]
        assert (await current.describe()).run_id != handle.result_run_id


@workflow.defn(versioning_behavior=VersioningBehavior.AUTO_UPGRADE)
class Log:
    """Notes which build it is told to run on."""

    def __init__(self) -> None:
        self.builds: list[str] = [workflow.info().get_current_build_id()]

    @workflow.run
    async def run(self) -> list[str]:
        await workflow.wait_condition(lambda: len(self.builds) == 3)
        return self.builds

    @workflow.update
    def note(self) -> int:
        self.builds.append(workflow.info().get_current_build_id())
        return len(self.builds)


async def test_code_is_told_the_version_that_each_task_had_also_when_replayed(client: Client) -> None:
    def logger(build_id: str) -> Worker:
        config = WorkerDeploymentConfig(version=build(build_id), use_worker_versioning=True)
        return Worker(client, task_queue=QUEUE, workflows=[Log], deployment_config=config, max_cached_workflows=0)

    deployment = client.get_worker_deployment_handle("shop")
    async with logger("v1"), logger("v2"):
        await deployment.set_current_version("v1")
        handle = await client.start_workflow(Log.run, id="log", task_queue=QUEUE)
        assert await handle.execute_update(Log.note) == 2
        await deployment.set_current_version("v2")
        assert await handle.execute_update(Log.note) == 3
        assert await handle.result() == ["v1", "v1", "v2"]


async def test_a_version_that_is_not_there_is_refused(client: Client) -> None:
    with pytest.raises(RPCError, match="deployment 'shop' does not exist"):
        await client.get_worker_deployment_handle("shop").set_current_version("v1")


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (WorkerDeploymentConfig(build("v1"), use_worker_versioning=True), "does not say whether its runs stay"),
        (WorkerDeploymentConfig(build(""), use_worker_versioning=True), "needs a deployment name"),
        (WorkerDeploymentConfig(WorkerDeploymentVersion("a.b", "1"), use_worker_versioning=True), "without dots"),
    ],
)
async def test_a_worker_with_versioning_says_all_that_routing_needs(
    client: Client, config: WorkerDeploymentConfig, says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        Worker(
            client,
            task_queue=QUEUE,
            workflows=[order(VersioningBehavior.UNSPECIFIED, "v1")],
            deployment_config=config,
        )
