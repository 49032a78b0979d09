"""Children with every outcome and every close policy, and runs that cancel others."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ApplicationError, ChildWorkflowError, WorkflowAlreadyStartedError


@workflow.defn
class Child:
    def __init__(self) -> None:
        self.word = ""

    @workflow.run
    async def run(self, how: str) -> str:
        if how == "fail":
            raise ApplicationError("bad child", type="Bad")
        if how == "wait":
            await workflow.wait_condition(lambda: bool(self.word))
        return self.word or how

    @workflow.signal
    def say(self, word: str) -> None:
        self.word = word


@workflow.defn
class Parent:
    """One child, and what came of it."""

    @workflow.run
    async def run(self, child_id: str, how: str, options: dict[str, Any]) -> str:
        settings: dict[str, Any] = {}
        if "run_timeout" in options:
            settings["run_timeout"] = timedelta(seconds=options["run_timeout"])
        try:
            return await workflow.execute_child_workflow(Child.run, how, id=child_id, **settings)
        except ChildWorkflowError as error:
            return type(error.cause).__name__
        except WorkflowAlreadyStartedError:
            return "already started"


@workflow.defn
class Leaves:
    """Starts a child and ends when told to, leaving it to the close policy."""

    def __init__(self) -> None:
        self.may_leave = False

    @workflow.run
    async def run(self, child_id: str, policy: str) -> str:
        await workflow.start_child_workflow(
            Child.run, "wait", id=child_id, parent_close_policy=workflow.ParentClosePolicy[policy]
        )
        await workflow.wait_condition(lambda: self.may_leave)
        return "left"

    @workflow.signal
    def leave(self) -> None:
        self.may_leave = True


@workflow.defn
class CancelsChild:
    @workflow.run
    async def run(self, child_id: str, kind: int) -> str:
        child = await workflow.start_child_workflow(
            Child.run, "wait", id=child_id, cancellation_type=workflow.ChildWorkflowCancellationType(kind)
        )
        child.cancel()
        try:
            await child
        except ChildWorkflowError as error:
            return type(error.cause).__name__
        return "ended by itself"


@workflow.defn
class TalksToChild:
    @workflow.run
    async def run(self, child_id: str) -> str:
        child = await workflow.start_child_workflow(Child.run, "wait", id=child_id)
        await child.signal(Child.say, "hello")
        return await child


@workflow.defn
class CancelsOther:
    @workflow.run
    async def run(self, target: str) -> str:
        try:
            await workflow.get_external_workflow_handle(target).cancel()
        except ApplicationError as error:
            return f"failed: {error.type}"
        return "asked"


async def parent(bench: Any, how: str, **options: Any) -> None:
    async with bench.worker([Parent, Child]):
        child = bench.watch(bench.id("child"))
        await bench.settled(await bench.start(Parent.run, child, how, options))


async def child_completes(bench: Any) -> None:
    await parent(bench, "done")


async def child_fails(bench: Any) -> None:
    await parent(bench, "fail")


async def child_times_out(bench: Any) -> None:
    await parent(bench, "wait", run_timeout=1)


async def child_is_terminated(bench: Any) -> None:
    async with bench.worker([Parent, Child]):
        child = bench.watch(bench.id("child"))
        handle = await bench.start(Parent.run, child, "wait", {})
        await bench.seen(handle.id, "WorkflowTaskCompleted", 2)
        await bench.seen(child, "WorkflowTaskCompleted")
        await bench.client.get_workflow_handle(child).terminate("enough")
        await bench.settled(handle)


async def child_is_cancelled_from_outside(bench: Any) -> None:
    async with bench.worker([Parent, Child]):
        child = bench.watch(bench.id("child"))
        handle = await bench.start(Parent.run, child, "wait", {})
        await bench.seen(handle.id, "WorkflowTaskCompleted", 2)
        await bench.seen(child, "WorkflowTaskCompleted")
        await bench.client.get_workflow_handle(child).cancel()
        await bench.settled(handle)


async def child_is_there_already(bench: Any) -> None:
    async with bench.worker([Parent, Child]):
        other = await bench.start(Child.run, "wait", name="child")
        await bench.seen(other.id, "WorkflowTaskCompleted")
        await bench.settled(await bench.start(Parent.run, other.id, "wait", {}))
        await other.signal(Child.say, "bye")
        await bench.settled(other)


async def left(bench: Any, policy: workflow.ParentClosePolicy, end: bool) -> None:
    async with bench.worker([Leaves, Child]):
        child = bench.watch(bench.id("child"))
        parent = await bench.start(Leaves.run, child, policy.name)
        await bench.seen(parent.id, "WorkflowTaskCompleted", 2)
        await bench.seen(child, "WorkflowTaskCompleted")
        await parent.signal(Leaves.leave)
        await bench.settled(parent)
        handle = bench.client.get_workflow_handle(child)
        if end:
            await handle.signal(Child.say, "alone")
        await bench.settled(handle)


async def close_policy_abandon(bench: Any) -> None:
    await left(bench, workflow.ParentClosePolicy.ABANDON, end=True)


async def close_policy_terminate(bench: Any) -> None:
    await left(bench, workflow.ParentClosePolicy.TERMINATE, end=False)


async def close_policy_request_cancel(bench: Any) -> None:
    await left(bench, workflow.ParentClosePolicy.REQUEST_CANCEL, end=False)


async def cancels(bench: Any, kind: workflow.ChildWorkflowCancellationType) -> None:
    async with bench.worker([CancelsChild, Child]):
        child = bench.watch(bench.id("child"))
        await bench.settled(await bench.start(CancelsChild.run, child, int(kind)))
        await bench.settled(bench.client.get_workflow_handle(child))


async def child_is_cancelled_and_waited_for(bench: Any) -> None:
    await cancels(bench, workflow.ChildWorkflowCancellationType.WAIT_CANCELLATION_COMPLETED)


async def child_is_signalled(bench: Any) -> None:
    async with bench.worker([TalksToChild, Child]):
        child = bench.watch(bench.id("child"))
        await bench.settled(await bench.start(TalksToChild.run, child))


async def cancel_of_another_run(bench: Any) -> None:
    async with bench.worker([CancelsOther, Child]):
        other = await bench.start(Child.run, "wait", name="other")
        await bench.seen(other.id, "WorkflowTaskCompleted")
        await bench.settled(await bench.start(CancelsOther.run, other.id))
        await bench.settled(other)


async def cancel_of_nobody(bench: Any) -> None:
    async with bench.worker([CancelsOther]):
        await bench.settled(await bench.start(CancelsOther.run, bench.id("nobody")))


PROGRAMS = [
    child_completes,
    child_fails,
    child_times_out,
    child_is_terminated,
    child_is_cancelled_from_outside,
    child_is_there_already,
    close_policy_abandon,
    close_policy_terminate,
    close_policy_request_cancel,
    child_is_cancelled_and_waited_for,
    child_is_signalled,
    cancel_of_another_run,
    cancel_of_nobody,
]
