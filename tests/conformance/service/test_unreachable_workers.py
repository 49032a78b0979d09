"""Workers that cannot be reached, and workers that outlive the node they were attached to."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

from clew.engine.recovery import CAME_BACK_SECONDS
from clew.model.commands import CompleteWorkflowExecution, RequestCancelActivityTask, ScheduleActivityTask
from clew.model.rejection import RejectionCode
from clew.service import operations as o
from clew.service import requests as r
from clew.service.errors import RPCError
from tests.conformance.service.scripted import ONE_ATTEMPT, ScriptedWorker, Shop, soon


def activity(activity_id: str = "a") -> ScheduleActivityTask:
    return ScheduleActivityTask(
        activity_id=activity_id,
        activity_type="A",
        task_queue="q",
        start_to_close_timeout=timedelta(hours=1),
        retry_policy=ONE_ATTEMPT,
    )


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Shop]:
    """An engine whose workers are in this process, and say that they are not."""
    shop = Shop(str(tmp_path / "shop.db"))
    await shop.open()
    yield shop
    await shop.close()


async def busy_worker(shop: Shop) -> tuple[ScriptedWorker, r.ActivityTask]:
    """A remote worker with an attempt at the one activity of `w1`."""
    worker = await shop.worker(is_remote=True)
    await shop.start()
    await worker.complete(await worker.workflow_task(), activity())
    return worker, await worker.activity_task()


async def test_a_suspended_worker_gives_up_its_workflow_task_but_no_activity(node: Shop) -> None:
    worker, attempt = await busy_worker(node)
    await node.start("w2")
    task = await worker.workflow_task()
    assert worker.session is not None
    worker.session.suspend()
    await node.start("w3")
    other = await node.worker(instance_id="w-2")
    tasks = {(await other.workflow_task()).token.workflow_id, (await other.workflow_task()).token.workflow_id}
    assert tasks == {"w2", "w3"}, "what it had, and what came while it could not be reached"
    with pytest.raises(RPCError) as caught:
        await worker.complete(task, CompleteWorkflowExecution())
    assert caught.value.code is RejectionCode.WORKFLOW_TASK_NOT_FOUND
    await worker.complete_activity(attempt, "done")
    assert other.activity_tasks.empty()
    assert "ActivityTaskCompleted" in await node.event_types()


async def test_a_resumed_worker_is_offered_tasks_by_the_credits_it_had(node: Shop) -> None:
    worker = await node.worker(credits=2)
    assert worker.session is not None
    worker.session.suspend()
    worker.session.grant(workflow_tasks=1)
    for number in range(3):
        await node.start(f"w{number}")
    await node.settle()
    assert worker.workflow_tasks.empty()
    worker.session.resume()
    found = {(await worker.workflow_task()).token.workflow_id for _ in range(3)}
    assert found == {"w0", "w1", "w2"}


async def test_a_worker_that_stopped_polling_while_suspended_gets_nothing(node: Shop) -> None:
    worker = await node.worker()
    assert worker.session is not None
    worker.session.suspend()
    worker.session.stop_polling()
    worker.session.resume()
    await node.start()
    await node.settle()
    assert worker.workflow_tasks.empty()


async def test_an_attempt_goes_on_when_its_worker_comes_back_to_a_restarted_node(node: Shop) -> None:
    _, attempt = await busy_worker(node)
    await node.restart()
    again = await node.worker(is_remote=True, held_attempts=(attempt.token,))
    await node.settle()
    node.advance(60)
    await node.settle()
    assert again.activity_tasks.empty()
    assert again.cancels.empty()
    await again.complete_activity(attempt, "done")
    assert "ActivityTaskCompleted" in await node.event_types()


async def test_an_attempt_whose_worker_does_not_come_back_is_lost_after_a_while(node: Shop) -> None:
    await busy_worker(node)
    await node.restart()
    other = await node.worker(is_remote=True)
    node.advance(29)
    await node.settle()
    assert "ActivityTaskTimedOut" not in await node.event_types()
    node.advance(2)
    await other.workflow_task()
    assert "ActivityTaskTimedOut" in await node.event_types()


async def test_an_attempt_of_a_worker_in_the_nodes_own_process_is_lost_with_it(node: Shop) -> None:
    worker = await node.worker()
    await node.start()
    await worker.complete(await worker.workflow_task(), activity())
    await worker.activity_task()
    await node.restart()
    assert "ActivityTaskTimedOut" in await node.event_types()


async def test_a_worker_is_told_to_stop_what_is_not_its_own_any_more(node: Shop) -> None:
    worker, attempt = await busy_worker(node)
    assert worker.session is not None
    worker.session.detach()
    others = msgspec.structs.replace(attempt.token, namespace="other")
    again = await node.worker(is_remote=True, held_attempts=(attempt.token, others))
    cancels = {(await soon(again.cancels.get()))[1] for _ in range(2)}
    assert cancels == {r.ActivityCancelReason.NOT_FOUND}


async def test_a_cancel_that_came_meanwhile_reaches_the_worker(node: Shop) -> None:
    worker, attempt = await busy_worker(node)
    await node.signal("s")
    task = await worker.workflow_task()
    scheduled = attempt.token.scheduled_event_id
    assert worker.session is not None
    await worker.complete(task, RequestCancelActivityTask(scheduled_event_id=scheduled))
    await node.restart()
    again = await node.worker(is_remote=True, held_attempts=(attempt.token,))
    token, reason = await soon(again.cancels.get())
    assert (token, reason) == (attempt.token, r.ActivityCancelReason.CANCEL_REQUESTED)


async def test_what_a_worker_does_not_have_when_it_comes_back_is_given_to_others_at_once(node: Shop) -> None:
    """The node died between the commit of the start and the offer. Found by the crash sweep: it waited for 30 s."""
    worker, _ = await busy_worker(node)
    assert worker.session is not None
    former = worker.session.session_id
    await node.restart()
    again = await node.worker(is_remote=True, former_sessions=(former,))
    await node.settle()
    node.advance(CAME_BACK_SECONDS)
    await again.workflow_task()
    assert "ActivityTaskTimedOut" in await node.event_types()


async def test_what_a_worker_has_when_it_comes_back_is_not_given_to_others(node: Shop) -> None:
    worker, attempt = await busy_worker(node)
    assert worker.session is not None
    former = worker.session.session_id
    await node.restart()
    again = await node.worker(is_remote=True, held_attempts=(attempt.token,), former_sessions=(former,))
    await node.settle()
    node.advance(60)
    await node.settle()
    await again.complete_activity(attempt, "done")
    assert "ActivityTaskCompleted" in await node.event_types()


async def test_a_worker_speaks_for_its_own_namespace_only(node: Shop) -> None:
    worker, _ = await busy_worker(node)
    assert worker.session is not None
    former = worker.session.session_id
    await node.restart()
    await node.service.create_namespace(o.CreateNamespaceRequest(name="other"))
    await node.worker(namespace="other", is_remote=True, former_sessions=(former, "n-never/1r", ""))
    await node.settle()
    node.advance(CAME_BACK_SECONDS)
    await node.settle()
    assert "ActivityTaskTimedOut" not in await node.event_types()
