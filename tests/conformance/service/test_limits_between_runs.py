"""What runs do to each other is decided under the limits of the namespace of the run that is changed."""

from __future__ import annotations

import asyncio

from clew.model import events as e
from clew.model.commands import SignalExternalWorkflowExecution, StartChildWorkflowExecution
from clew.model.events import ExecutionRef, ExternalFailedCause
from clew.service import operations as o
from clew.service import requests as r
from tests.conformance.service.scripted import Shop, soon


async def history(shop: Shop, workflow_id: str) -> list[e.Event]:
    response = await soon(
        shop.service.get_history(r.GetHistoryRequest(namespace="narrow", workflow_id=workflow_id, run_id=""))
    )
    return list(response.events)


async def test_signals_of_other_runs_count_under_the_limit_of_the_receiver(shop: Shop) -> None:
    await soon(shop.engine.create_namespace(o.CreateNamespaceRequest(name="narrow", limits={"signals_per_run_max": 2})))
    worker = await shop.worker(namespace="narrow")
    await shop.start("receiver", namespace="narrow")
    await worker.complete(await worker.workflow_task())
    await shop.start("sender", namespace="narrow")
    poke = SignalExternalWorkflowExecution(workflow_execution=ExecutionRef("receiver"), signal_name="poke")
    task = await worker.workflow_task()
    await worker.complete(task, poke, poke, poke)
    answered: list[e.Event] = []
    while len(answered) < 3:
        task = await worker.workflow_task()
        await worker.complete(task)
        kinds = (e.ExternalWorkflowExecutionSignaled, e.SignalExternalWorkflowExecutionFailed)
        answered = [event for event in await history(shop, "sender") if isinstance(event, kinds)]
    [failed] = [event for event in answered if isinstance(event, e.SignalExternalWorkflowExecutionFailed)]
    assert failed.cause is ExternalFailedCause.SIGNAL_COUNT_LIMIT_EXCEEDED
    received = [event for event in await history(shop, "receiver") if isinstance(event, e.WorkflowExecutionSignaled)]
    assert len(received) == 2


async def test_what_children_tell_their_parent_counts_under_its_limit(shop: Shop) -> None:
    await soon(shop.engine.create_namespace(o.CreateNamespaceRequest(name="narrow", limits={"history_events_max": 8})))
    worker = await shop.worker(namespace="narrow", credits=1)
    await shop.start("parent", namespace="narrow")
    kids = tuple(StartChildWorkflowExecution(workflow_id=f"kid-{n}", workflow_type="Kid") for n in range(4))
    task = await worker.workflow_task()
    # Eight events. The first child that begins makes one more, and no worker is there to take the task for it.
    await soon(
        shop.service.complete_workflow_task(
            r.CompleteWorkflowTaskRequest(token=task.token, commands=kids, identity="w")
        )
    )

    async def until_over() -> e.Event:
        while not isinstance(last := (await history(shop, "parent"))[-1], e.WorkflowExecutionTerminated):
            await asyncio.sleep(0.01)
        return last

    last = await soon(until_over())
    assert "History limit" in last.reason
