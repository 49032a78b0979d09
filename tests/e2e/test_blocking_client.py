"""The blocking client does what the async one does, from any thread, and stops when it is told to."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from clew import activity, workflow
from clew.client import (
    AsyncActivityHandle,
    BlockingAsyncActivityHandle,
    BlockingClient,
    BlockingWorkerDeploymentHandle,
    BlockingWorkflowHandle,
    BlockingWorkflowUpdateHandle,
    Client,
    Interceptor,
    OutboundInterceptor,
    StartWorkflowInput,
    WithStartWorkflowOperation,
    WorkerDeploymentHandle,
    WorkflowFailureError,
    WorkflowHandle,
    WorkflowUpdateHandle,
    WorkflowUpdateStage,
)
from clew.common import WorkflowIDConflictPolicy
from clew.exceptions import ApplicationError
from clew.model.rejection import RejectionCode
from clew.service.errors import RPCError
from clew.worker import Worker

QUEUE = "blocking"


@activity.defn
async def left_open() -> str:
    activity.raise_complete_async()


@workflow.defn
class Counter:
    def __init__(self) -> None:
        self.total = 0
        self.is_over = False

    @workflow.run
    async def run(self, start: int) -> int:
        self.total += start
        await workflow.wait_condition(lambda: self.is_over)
        return self.total

    @workflow.signal
    def add(self, amount: int) -> None:
        self.total += amount

    @workflow.signal
    def end(self) -> None:
        self.is_over = True

    @workflow.query
    def current(self) -> int:
        return self.total

    @workflow.update
    def add_and_tell(self, amount: int) -> int:
        self.total += amount
        return self.total


@workflow.defn
class Fails:
    @workflow.run
    async def run(self) -> None:
        raise ApplicationError("no", type="Refused", non_retryable=True)


@workflow.defn
class Outside:
    @workflow.run
    async def run(self) -> str:
        return await workflow.execute_activity(
            left_open, activity_id="a", start_to_close_timeout=timedelta(seconds=60), result_type=str
        )


async def _serve(target: str, started: threading.Event, stop: asyncio.Event) -> None:
    async with (
        await Client.connect(target) as client,
        Worker(client, task_queue=QUEUE, workflows=[Counter, Fails, Outside], activities=[left_open]),
    ):
        started.set()
        await stop.wait()


@pytest.fixture
def target(tmp_path: Path) -> Iterator[str]:
    """A store with a worker, in a thread with a loop of its own, as in a real program."""
    target = f"sqlite:{tmp_path}/clew.db"
    started = threading.Event()
    loop, stop = asyncio.new_event_loop(), asyncio.Event()
    thread = threading.Thread(target=loop.run_until_complete, args=(_serve(target, started, stop),))
    thread.start()
    assert started.wait(30)
    yield target
    loop.call_soon_threadsafe(stop.set)
    thread.join(30)
    loop.close()


@pytest.fixture
def client(target: str) -> Iterator[BlockingClient]:
    with BlockingClient.connect(target) as client:
        yield client


def test_a_run_from_start_to_result(client: BlockingClient) -> None:
    handle = client.start_workflow(Counter.run, 1, id="c", task_queue=QUEUE)
    handle.signal(Counter.add, 2)
    assert handle.query(Counter.current) == 3
    assert handle.execute_update(Counter.add_and_tell, 4) == 7
    update = handle.start_update(Counter.add_and_tell, 1, wait_for_stage=WorkflowUpdateStage.ACCEPTED, id="u")
    assert update.result() == 8
    assert handle.get_update_handle_for(Counter.add_and_tell, "u").result() == 8
    handle.signal("end")
    assert handle.result() == 8
    assert client.get_workflow_handle_for(Counter.run, "c").result() == 8
    assert handle.describe().status.name == "COMPLETED"
    assert handle.fetch_history().events[0].event_id == 1
    assert handle.id == "c"
    assert handle.first_execution_run_id is not None
    assert repr(handle).startswith("<BlockingWorkflowHandle 'c'")


def test_an_update_starts_its_run(client: BlockingClient) -> None:
    def operation() -> WithStartWorkflowOperation[Counter, int]:
        return WithStartWorkflowOperation(
            Counter.run,
            1,
            id="c",
            task_queue=QUEUE,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        )

    first = operation()
    total = client.execute_update_with_start_workflow(Counter.add_and_tell, 2, start_workflow_operation=first)
    assert total == 2
    assert client.wait(first.workflow_handle()).id == "c"
    update = client.start_update_with_start_workflow(
        Counter.add_and_tell, 4, start_workflow_operation=operation(), wait_for_stage=WorkflowUpdateStage.COMPLETED
    )
    assert update.result() == 7


def test_errors_are_those_of_the_async_client(client: BlockingClient) -> None:
    with pytest.raises(WorkflowFailureError) as caught:
        client.execute_workflow(Fails.run, id="f", task_queue=QUEUE)
    assert isinstance(caught.value.cause, ApplicationError)
    with pytest.raises(RPCError, match="nobody"):
        client.get_workflow_handle("nobody").cancel()
    with pytest.raises(TypeError, match="needs task_queue="):
        client.start_workflow("Counter", id="x")  # type: ignore[call-overload]


def test_lists_are_iterated_over_page_by_page(client: BlockingClient) -> None:
    for number in range(5):
        client.start_workflow(Counter.run, number, id=f"c{number}", task_queue=QUEUE, memo={"n": number})
    found = list(client.list_workflows(page_size=2))
    assert {execution.id for execution in found} == {f"c{number}" for number in range(5)}
    assert client.count_workflows("WorkflowType = 'Counter'").count == 5
    assert len(list(client.list_workflows(limit=3, page_size=2))) == 3
    assert list(client.list_workflows("WorkflowId = 'nobody'")) == []
    assert sorted(client.wait(execution.memo())["n"] for execution in found) == [0, 1, 2, 3, 4]
    for execution in found:
        client.get_workflow_handle(execution.id).terminate(reason="over")


def test_a_closed_run_is_deleted_and_an_open_one_is_not(client: BlockingClient) -> None:
    handle = client.start_workflow(Counter.run, 1, id="c", task_queue=QUEUE)
    with pytest.raises(RPCError) as open_run:
        handle.delete()
    assert open_run.value.code is RejectionCode.WORKFLOW_NOT_CLOSED
    handle.terminate()
    assert handle.delete() == handle.result_run_id
    with pytest.raises(RPCError) as gone:
        handle.delete()
    assert gone.value.code is RejectionCode.WORKFLOW_NOT_FOUND
    assert list(client.list_workflows("WorkflowId = 'c'")) == []


def test_the_run_of_the_handle_is_deleted_not_what_took_its_id(client: BlockingClient) -> None:
    earlier = client.start_workflow(Counter.run, 1, id="c", task_queue=QUEUE)
    earlier.terminate()
    later = client.start_workflow(Counter.run, 2, id="c", task_queue=QUEUE)
    later.terminate()
    assert earlier.delete() == earlier.result_run_id
    assert client.get_workflow_handle("c").describe().run_id == later.result_run_id
    assert client.get_workflow_handle("c").delete() == later.result_run_id
    assert client.count_workflows().count == 0


def test_events_are_given_as_they_come(client: BlockingClient) -> None:
    handle = client.start_workflow(Counter.run, 1, id="c", task_queue=QUEUE)
    events = handle.fetch_history_events(wait_new_event=True)
    assert type(next(events)).__name__ == "WorkflowExecutionStarted"
    handle.signal(Counter.end)
    assert type(list(events)[-1]).__name__ == "WorkflowExecutionCompleted"


def test_an_activity_is_completed_from_outside(client: BlockingClient) -> None:
    handle = client.start_workflow(Outside.run, id="o", task_queue=QUEUE)
    _until_taken(client, "o")
    one = client.get_async_activity_handle(workflow_id="o", run_id=None, activity_id="a")
    one.heartbeat("half")
    one.complete("done")
    assert handle.result(timeout=timedelta(seconds=30)) == "done"


def _until_taken(client: BlockingClient, id: str) -> None:
    handle = client.client.get_workflow_handle(id)

    async def taken() -> None:
        async with asyncio.timeout(30):
            while not any(one.state == "Started" for one in (await handle.describe()).pending_activities):
                await asyncio.sleep(0.01)

    client.wait(taken())


def test_many_threads_share_one_client(client: BlockingClient) -> None:
    def one(number: int) -> int:
        handle = client.start_workflow(Counter.run, number, id=f"c{number}", task_queue=QUEUE)
        handle.signal(Counter.end)
        return handle.result()

    with ThreadPoolExecutor(16) as threads:
        assert sorted(threads.map(one, range(48))) == list(range(48))


def test_waiting_can_be_bounded_and_the_run_goes_on(client: BlockingClient) -> None:
    handle = client.start_workflow(Counter.run, 5, id="c", task_queue=QUEUE)
    with pytest.raises(TimeoutError):
        handle.result(timeout=timedelta(milliseconds=20))
    handle.signal(Counter.end)
    assert handle.result(timeout=timedelta(seconds=30)) == 5


def test_closing_gives_up_the_calls_of_other_threads(target: str) -> None:
    client = BlockingClient.connect(target)
    handle = client.start_workflow(Counter.run, 5, id="c", task_queue=QUEUE)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(handle.result)
        handle.describe()
        client.close()
        with pytest.raises(RPCError, match="closed"):
            waiting.result(30)
    with pytest.raises(RPCError, match=r"This BlockingClient is closed. Make a new one"):
        handle.describe()
    client.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "clew-blocking-client"]


async def test_in_async_code_it_refuses_and_names_the_other_client(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"use clew.client.Client and await its methods"):
        BlockingClient.connect(f"sqlite:{tmp_path}/clew.db")
    lazy = BlockingClient.connect(f"sqlite:{tmp_path}/clew.db", lazy=True)

    async def never() -> None: ...

    with pytest.raises(RuntimeError, match="runs an event loop"):
        lazy.wait(never())
    lazy.close()


def test_a_store_that_cannot_be_opened_is_told_and_tried_again(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    with pytest.raises(RPCError, match="does not exist"):
        BlockingClient.connect(f"sqlite:{missing}/clew.db")
    lazy = BlockingClient.connect(f"sqlite:{missing}/clew.db", lazy=True)
    with pytest.raises(RPCError, match="does not exist"):
        lazy.count_workflows()
    missing.mkdir()
    assert lazy.count_workflows().count == 0
    lazy.close()


def test_context_variables_of_the_caller_reach_interceptors(target: str) -> None:
    user: ContextVar[str] = ContextVar("user")
    seen: list[str] = []

    class Outbound(OutboundInterceptor):
        async def start_workflow(self, input: StartWorkflowInput) -> WorkflowHandle[Any, Any]:
            seen.append(user.get())
            return await super().start_workflow(input)

    class Notes(Interceptor):
        def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:
            return Outbound(next)

    user.set("kim")
    with BlockingClient.connect(target, interceptors=[Notes()]) as client:
        client.start_workflow(Counter.run, 1, id="c", task_queue=QUEUE)
    assert seen == ["kim"]


PAIRS: list[tuple[type[Any], type[Any], set[str]]] = [
    # Settings are those of the async client behind: `BlockingClient.client.config()`.
    (Client, BlockingClient, {"connection", "connect", "config"}),
    (WorkflowHandle, BlockingWorkflowHandle, {"result"}),
    (WorkflowUpdateHandle, BlockingWorkflowUpdateHandle, set()),
    (AsyncActivityHandle, BlockingAsyncActivityHandle, set()),
    (WorkerDeploymentHandle, BlockingWorkerDeploymentHandle, set()),
]


@pytest.mark.parametrize(("model", "blocking", "different"), PAIRS, ids=lambda value: getattr(value, "__name__", ""))
def test_every_method_is_there_with_the_same_parameters(
    model: type[Any], blocking: type[Any], different: set[str]
) -> None:
    names = [name for name in dir(model) if not name.startswith("_")]
    assert names
    assert [name for name in names if not hasattr(blocking, name) and name != "config"] == []
    for name in set(names) - different:
        one, other = inspect.getattr_static(model, name), inspect.getattr_static(blocking, name)
        if inspect.isfunction(one):
            assert not inspect.iscoroutinefunction(other), name
            assert inspect.signature(one).parameters == inspect.signature(other).parameters, name
