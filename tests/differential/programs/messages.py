"""Signals in every race with completion, and updates."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from temporalio import activity, common, workflow
from temporalio.client import WithStartWorkflowOperation, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError

held: dict[str, Any] = {"is_held": False, "inside": False}


@activity.defn
async def double(number: int) -> int:
    return number * 2


@workflow.defn
class Collects:
    """Takes numbers until it has as many as it wants."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    @workflow.run
    async def run(self, wanted: int) -> list[int]:
        await workflow.wait_condition(lambda: len(self.seen) >= wanted)
        return self.seen

    @workflow.signal
    def add(self, number: int) -> None:
        self.seen.append(number)

    @workflow.update
    async def put(self, number: int) -> int:
        self.seen.append(number)
        return len(self.seen)

    @put.validator
    def check(self, number: int) -> None:
        if number < 0:
            raise ApplicationError("negative", type="Negative")

    @workflow.update
    async def put_doubled(self, number: int) -> int:
        result = await workflow.execute_activity(double, number, start_to_close_timeout=timedelta(seconds=10))
        self.seen.append(result)
        return result

    @workflow.update
    async def fail(self) -> None:
        raise ApplicationError("cannot", "x", type="Cannot")


@workflow.defn
class HoldsItsTask:
    """Its task lasts until it is let go, so that what arrives meanwhile is buffered."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    @workflow.run
    async def run(self, timer: bool) -> list[int]:
        held["inside"] = True
        while held["is_held"]:
            pass
        if timer:
            await workflow.sleep(timedelta(milliseconds=50))
        return self.seen

    @workflow.signal
    def add(self, number: int) -> None:
        self.seen.append(number)


@workflow.defn
class Tells:
    @workflow.run
    async def run(self, target: str) -> str:
        try:
            await workflow.get_external_workflow_handle(target).signal("add", 5)
        except ApplicationError as error:
            return f"failed: {error.type}"
        return "told"


async def collecting(bench: Any, wanted: int) -> Any:
    handle = await bench.start(Collects.run, wanted)
    await bench.seen(handle.id, "WorkflowTaskCompleted")
    return handle


async def signals_in_sequence(bench: Any) -> None:
    async with bench.worker([Collects]):
        handle = await collecting(bench, 2)
        await handle.signal(Collects.add, 1)
        await bench.seen(handle.id, "WorkflowTaskCompleted", 2)
        await handle.signal(Collects.add, 2)
        await bench.settled(handle)


async def signals_before_the_first_task(bench: Any) -> None:
    handle = await bench.start(Collects.run, 2)
    await handle.signal(Collects.add, 1)
    await handle.signal(Collects.add, 2)
    async with bench.worker([Collects]):
        await bench.settled(handle)


async def signal_nobody_knows(bench: Any) -> None:
    async with bench.worker([Collects]):
        handle = await collecting(bench, 1)
        await handle.signal("unheard_of", 1)
        await bench.seen(handle.id, "WorkflowTaskCompleted", 2)
        await handle.signal(Collects.add, 2)
        await bench.settled(handle)


async def signal_with_start(bench: Any) -> None:
    handle = await bench.start(Collects.run, 1, start_signal="add", start_signal_args=[4])
    async with bench.worker([Collects]):
        await bench.settled(handle)


async def signal_with_start_of_a_running_one(bench: Any) -> None:
    async with bench.worker([Collects]):
        handle = await collecting(bench, 1)
        await bench.start(
            Collects.run,
            9,
            start_signal="add",
            start_signal_args=[4],
            id_conflict_policy=common.WorkflowIDConflictPolicy.USE_EXISTING,
        )
        await bench.settled(handle)


async def hold(bench: Any, timer: bool) -> Any:
    held.update(is_held=True, inside=False)
    handle = await bench.start(HoldsItsTask.run, timer)
    await bench.until(lambda: held["inside"])
    return handle


async def signal_beats_the_completion(bench: Any) -> None:
    """A signal that arrives while the last task runs: completion is refused, and a further task sees it."""
    async with bench.worker([HoldsItsTask]):
        handle = await hold(bench, timer=False)
        await handle.signal(HoldsItsTask.add, 1)
        held["is_held"] = False
        await bench.settled(handle)


async def signal_while_a_task_runs(bench: Any) -> None:
    async with bench.worker([HoldsItsTask]):
        handle = await hold(bench, timer=True)
        await handle.signal(HoldsItsTask.add, 1)
        await handle.signal(HoldsItsTask.add, 2)
        held["is_held"] = False
        await bench.settled(handle)


async def cancel_beats_the_completion(bench: Any) -> None:
    async with bench.worker([HoldsItsTask]):
        handle = await hold(bench, timer=False)
        await handle.cancel()
        held["is_held"] = False
        await bench.settled(handle)


async def terminated_while_a_task_runs(bench: Any) -> None:
    async with bench.worker([HoldsItsTask]):
        handle = await hold(bench, timer=False)
        await handle.signal(HoldsItsTask.add, 1)
        await handle.terminate("enough", "why")
        held["is_held"] = False
        await bench.settled(handle)


async def signal_from_another_run(bench: Any) -> None:
    async with bench.worker([Collects, Tells]):
        handle = await collecting(bench, 1)
        await bench.settled(await bench.start(Tells.run, handle.id, name="teller"))
        await bench.settled(handle)


async def signal_to_nobody(bench: Any) -> None:
    async with bench.worker([Tells]):
        await bench.settled(await bench.start(Tells.run, bench.id("nobody")))


async def update_completes(bench: Any) -> None:
    async with bench.worker([Collects]):
        handle = await collecting(bench, 2)
        await handle.execute_update(Collects.put, 1, id="first")
        await handle.execute_update(Collects.put, 2, id="second")
        await bench.settled(handle)


async def update_runs_an_activity(bench: Any) -> None:
    async with bench.worker([Collects], [double]):
        handle = await collecting(bench, 1)
        await handle.execute_update(Collects.put_doubled, 4, id="one")
        await bench.settled(handle)


async def update_fails(bench: Any) -> None:
    async with bench.worker([Collects]):
        handle = await collecting(bench, 1)
        await failing(handle.execute_update(Collects.fail, id="bad"))
        await handle.signal(Collects.add, 2)
        await bench.settled(handle)


async def update_is_rejected(bench: Any) -> None:
    """A rejected update leaves nothing in the history."""
    async with bench.worker([Collects]):
        handle = await collecting(bench, 1)
        await failing(handle.execute_update(Collects.put, -1, id="bad"))
        await handle.signal(Collects.add, 2)
        await bench.settled(handle)


async def update_with_start(bench: Any) -> None:
    async with bench.worker([Collects]):
        operation = WithStartWorkflowOperation(
            Collects.run,
            1,
            id=bench.id("run"),
            task_queue=bench.queue,
            id_conflict_policy=common.WorkflowIDConflictPolicy.USE_EXISTING,
        )
        bench.watch(bench.id("run"))
        await bench.client.execute_update_with_start_workflow(
            Collects.put, 7, id="one", start_workflow_operation=operation
        )
        await bench.settled(await operation.workflow_handle())


async def failing(call: Any) -> None:
    try:
        await call
    except WorkflowUpdateFailedError:
        return
    raise AssertionError("the update was meant to fail")


PROGRAMS = [
    signals_in_sequence,
    signals_before_the_first_task,
    signal_nobody_knows,
    signal_with_start,
    signal_with_start_of_a_running_one,
    signal_beats_the_completion,
    signal_while_a_task_runs,
    cancel_beats_the_completion,
    terminated_while_a_task_runs,
    signal_from_another_run,
    signal_to_nobody,
    update_completes,
    update_runs_an_activity,
    update_fails,
    update_is_rejected,
    update_with_start,
]
