"""Workflow tasks meet machines: caching, order, answers, refusals, blocked threads."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from clew.model.commands import CompleteWorkflowExecution, StartTimer
from clew.model.events import WorkflowExecutionSignaled, WorkflowTaskFailedCause
from clew.model.failure import ApplicationInfo, Failure
from clew.model.inputs import CompleteWorkflowTaskRequest, FailWorkflowTaskRequest, QueryResult
from clew.model.rejection import RejectionCode
from clew.replay import ActivationResult
from clew.service.requests import AnswerQueryRequest, QueryTask, WorkflowTask
from clew.worker._workflow_tasks import WorkflowTasks
from tests.unit.worker.fakes import NOW, FakeConnection, refusal, token, until, workflow_task


def events(first: int, last: int) -> tuple[Any, ...]:
    return tuple(WorkflowExecutionSignaled(event_id=n, event_time=NOW, signal_name="s") for n in range(first, last + 1))


@dataclass
class FakeMachine:
    """Answers every task with a timer, or as its test says."""

    run_id: str
    answer: Callable[[WorkflowTask], Any]
    tasks: list[WorkflowTask] = field(default_factory=list)
    threads: list[str] = field(default_factory=list)
    evicted_on: str | None = None
    cached_through_event_id: int = 0
    applied_event_id: int = 0
    tasks_count: int = 0
    buried_count: int = 0
    is_closing: bool = False

    def activate(self, task: WorkflowTask) -> Any:
        self.tasks.append(task)
        self.threads.append(threading.current_thread().name)
        if task.events:
            self.cached_through_event_id = task.events[-1].event_id
        return ActivationResult(completion=self.answer(task), is_closed=self.is_closing)

    def evict(self) -> None:
        self.evicted_on = threading.current_thread().name


def wait_on_timer(task: WorkflowTask) -> Any:
    if task.query is not None:
        return AnswerQueryRequest(token=task.token, result=QueryResult(query_id=task.query.query_id))
    return CompleteWorkflowTaskRequest(
        token=task.token, commands=(StartTimer(timer_id="1", start_to_fire_timeout=timedelta(seconds=1)),)
    )


class FakeMachines:
    def __init__(self) -> None:
        self.made: list[FakeMachine] = []
        self.answer: Callable[[WorkflowTask], Any] = wait_on_timer
        self.are_closing = False

    def make(self, task: WorkflowTask) -> FakeMachine:
        machine = FakeMachine(task.token.run_id, lambda task: self.answer(task), is_closing=self.are_closing)
        self.made.append(machine)
        return machine

    def sign(self, completion: Any, *, is_sticky: bool) -> Any:
        return msgspec.structs.replace(completion, identity="me", is_sticky=is_sticky)


class Bench:
    """Workflow tasks over a fake service, all calls on its service loop."""

    def __init__(self, cache: int = 10, timeout: float | None = 0.3) -> None:
        self.connection = FakeConnection()
        self.service = self.connection.service
        self.machines = FakeMachines()
        self.errors: list[BaseException] = []
        self.settled = 0
        self.tasks = WorkflowTasks(
            self.connection.service_loop,
            self.service,  # type: ignore[arg-type]
            self.machines,
            identity="me",
            cached_runs_max=cache,
            blocked_timeout=None if timeout is None else timedelta(seconds=timeout),
            post=self.connection.post,
            on_error=self.errors.append,
        )

    def _settle(self) -> None:
        self.settled += 1

    async def offer(self, *tasks: WorkflowTask) -> None:
        await self.connection.on_service_loop(lambda: [self.tasks.offer(task, self._settle) for task in tasks])

    async def offer_and_wait(self, *tasks: WorkflowTask) -> None:
        before = self.settled
        await self.offer(*tasks)
        await until(lambda: self.settled >= before + len(tasks), "the answers")

    async def close(self) -> None:
        work = self.tasks.close(1.0)
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self.connection.service_loop))
        self.connection.stop()


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    yield made
    await made.close()
    assert made.errors == []


async def make_bench(**options: Any) -> Bench:
    return Bench(**options)


async def test_a_task_is_answered_signed_and_its_slot_given_back(bench: Bench) -> None:
    await bench.offer_and_wait(workflow_task(events=events(1, 3)))
    (request,) = bench.service.of("complete_workflow_task")
    assert (request.identity, request.is_sticky, len(request.commands)) == ("me", True, 1)
    assert bench.settled == 1


async def test_the_next_task_goes_to_the_cached_machine(bench: Bench) -> None:
    await bench.offer_and_wait(workflow_task(events=events(1, 3)))
    await bench.offer_and_wait(workflow_task(events=events(4, 6), is_partial=True))
    (machine,) = bench.machines.made
    assert [len(task.events) for task in machine.tasks] == [3, 3]
    assert machine.threads[0] == machine.threads[1]
    assert bench.service.of("get_history") == []


async def test_a_partial_task_of_an_unknown_run_gets_the_whole_history(bench: Bench) -> None:
    bench.service.histories["run-1"] = events(1, 2500)
    await bench.offer_and_wait(workflow_task(events=events(2501, 2502), is_partial=True))
    (machine,) = bench.machines.made
    (task,) = machine.tasks
    assert [event.event_id for event in task.events] == list(range(1, 2503))
    assert not task.is_partial


async def test_a_gap_between_cache_and_task_leads_to_a_replay(bench: Bench) -> None:
    bench.service.histories["run-1"] = events(1, 9)
    await bench.offer_and_wait(workflow_task(events=events(1, 3)))
    await bench.offer_and_wait(workflow_task(events=events(6, 9), is_partial=True))
    first, second = bench.machines.made
    await until(lambda: first.evicted_on, "the eviction")
    assert [event.event_id for event in second.tasks[0].events] == list(range(1, 10))


async def test_tasks_that_wait_for_a_turn_are_all_answered_though_the_machine_does_not_continue_them(
    bench: Bench,
) -> None:
    """The engine gives a run anew when it has failed the task that is out: whole histories queue behind one turn."""
    gate = threading.Event()

    def slow(task: WorkflowTask) -> Any:
        assert gate.wait(30)
        return wait_on_timer(task)

    bench.machines.answer = slow
    for last in (3, 5, 7, 9):
        await bench.offer(workflow_task(events=events(1, last)))
    gate.set()
    await until(lambda: bench.settled == 4, "all four answers")
    assert len(bench.service.of("complete_workflow_task")) == 4
    assert [machine.tasks[0].events[-1].event_id for machine in bench.machines.made] == [3, 5, 7, 9]


async def test_a_closing_answer_drops_the_run(bench: Bench) -> None:
    bench.machines.are_closing = True
    bench.machines.answer = lambda task: CompleteWorkflowTaskRequest(
        token=task.token, commands=(CompleteWorkflowExecution(),)
    )
    await bench.offer_and_wait(workflow_task(events=events(1, 3)))
    assert bench.tasks.cached_runs_count == 0
    await until(lambda: bench.machines.made[0].evicted_on, "the eviction")
    assert bench.service.of("complete_workflow_task")[0].is_sticky is False


async def test_eviction_happens_on_a_workflow_thread(bench: Bench) -> None:
    await bench.offer_and_wait(workflow_task(events=events(1, 3)))
    await bench.connection.on_service_loop(lambda: bench.tasks.evict("run-1"))
    evicted_on = await until(lambda: bench.machines.made[0].evicted_on, "the eviction")
    assert evicted_on.startswith("clew-workflow-")


async def test_the_least_recently_used_run_is_dropped_first() -> None:
    bench = await make_bench(cache=2)
    for run in ("a", "b"):
        await bench.offer_and_wait(workflow_task(run, events=events(1, 3)))
    await bench.offer_and_wait(workflow_task("a", events=events(4, 5), is_partial=True))
    await bench.offer_and_wait(workflow_task("c", events=events(1, 3)))
    a, b, c = bench.machines.made
    await until(lambda: b.evicted_on, "the eviction of b")
    assert (a.evicted_on, c.evicted_on) == (None, None)
    await bench.close()


async def test_without_a_cache_every_task_is_replayed_and_none_is_sticky() -> None:
    bench = await make_bench(cache=0)
    for _ in range(2):
        await bench.offer_and_wait(workflow_task(events=events(1, 3)))
    assert len(bench.machines.made) == 2
    assert [request.is_sticky for request in bench.service.of("complete_workflow_task")] == [False, False]
    assert bench.tasks.cached_runs_count == 0
    await bench.close()


async def test_a_query_waits_for_the_turn_of_its_run(bench: Bench) -> None:
    gate = threading.Event()

    def slow(task: WorkflowTask) -> Any:
        if task.query is None:
            assert gate.wait(5)
        return wait_on_timer(task)

    bench.machines.answer = slow
    await bench.offer(workflow_task(events=events(1, 3)))
    query = QueryTask(query_id="q", query_type="state")
    await bench.offer(workflow_task(query=query, is_partial=True, previous_started_event_id=3))
    gate.set()
    await until(lambda: bench.settled == 2, "both answers")
    (machine,) = bench.machines.made
    assert [task.query is None for task in machine.tasks] == [True, False]
    assert len(bench.service.of("answer_query")) == 1


async def test_a_failed_task_is_reported_and_the_run_dropped(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.machines.answer = lambda task: FailWorkflowTaskRequest(
        token=task.token, cause=WorkflowTaskFailedCause.NON_DETERMINISTIC_ERROR
    )
    await bench.offer_and_wait(workflow_task(events=events(1, 3)))
    (request,) = bench.service.of("fail_workflow_task")
    assert request.cause is WorkflowTaskFailedCause.NON_DETERMINISTIC_ERROR
    assert bench.tasks.cached_runs_count == 0
    lines = [record.getMessage() for record in caplog.records if "task_failed" in record.getMessage()]
    assert len(lines) == 1
    assert "run_id=run-1" in lines[0]


async def test_the_stack_of_a_failed_task_is_told_at_its_first_attempt(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    failure = Failure(message="no", stack_trace="  File claims.py, line 7", info=ApplicationInfo(type="KeyError"))
    bench.machines.answer = lambda task: FailWorkflowTaskRequest(
        token=task.token, cause=WorkflowTaskFailedCause.WORKFLOW_WORKER_UNHANDLED_FAILURE, failure=failure
    )
    for attempt in (1, 2, 3):
        await bench.offer_and_wait(workflow_task(events=events(1, 3), attempt=attempt))

    def told() -> list[str]:
        return [record.getMessage() for record in caplog.records if "task_failed" in record.getMessage()]

    # The slot is given back before the line is written.
    await until(lambda: len(told()) == 3, "a line for each attempt")
    lines = told()
    assert ["claims.py" in line for line in lines] == [True, False, False]
    assert all("KeyError: no" in line for line in lines)


async def test_an_error_of_the_machine_itself_fails_the_task(bench: Bench) -> None:
    def broken(task: WorkflowTask) -> Any:
        raise ZeroDivisionError("machine")

    bench.machines.answer = broken
    await bench.offer_and_wait(workflow_task(events=events(1, 3)))
    (request,) = bench.service.of("fail_workflow_task")
    assert "ZeroDivisionError: machine" in request.failure.message


async def test_a_refused_completion_drops_the_run(bench: Bench) -> None:
    bench.service.faults["complete_workflow_task"] = [refusal(RejectionCode.UNHANDLED_COMMAND)]
    await bench.offer_and_wait(workflow_task(events=events(1, 3)))
    await until(lambda: bench.machines.made[0].evicted_on, "the eviction")
    assert bench.tasks.cached_runs_count == 0


async def test_a_completion_is_sent_again_through_a_passing_fault(bench: Bench) -> None:
    bench.service.faults["complete_workflow_task"] = [refusal(RejectionCode.UNAVAILABLE)] * 3
    await bench.offer_and_wait(workflow_task(events=events(1, 3)))
    await until(lambda: bench.service.of("complete_workflow_task"), "the completion")
    assert bench.tasks.cached_runs_count == 1


async def test_a_long_replay_that_gets_on_is_not_called_blocked() -> None:
    """Each of the tasks in the history takes far less than the time-out, all together take more."""
    bench = await make_bench(timeout=1.0)

    def replay(task: WorkflowTask) -> Any:
        (machine,) = bench.machines.made
        for event_id in range(1, 31):
            time.sleep(0.06)
            machine.applied_event_id = event_id
        return wait_on_timer(task)

    bench.machines.answer = replay
    await bench.offer_and_wait(workflow_task(events=events(1, 30)))
    assert not bench.service.of("fail_workflow_task")
    assert bench.service.of("complete_workflow_task")
    await bench.close()


async def test_a_blocked_turn_is_failed_with_its_line_and_others_go_on(bench: Bench) -> None:
    release = threading.Event()

    def block(task: WorkflowTask) -> Any:
        if task.token.run_id == "bad":
            release.wait(20)  # the blocked line
        return wait_on_timer(task)

    bench.machines.answer = block
    began = time.monotonic()
    await bench.offer(workflow_task("bad", events=events(1, 3)), workflow_task("good", events=events(1, 3)))
    await until(lambda: bench.service.of("complete_workflow_task"), "the healthy run")
    assert time.monotonic() - began < 0.3, "the healthy run had to wait for the blocked one to be given up"
    (failed,) = await until(lambda: bench.service.of("fail_workflow_task"), "the failure of the blocked run")
    assert failed.token == token("bad")
    assert "did not yield for 0.3 s" in failed.failure.message
    assert "test_workflow_tasks.py" in failed.failure.message
    assert "# the blocked line" in failed.failure.stack_trace
    assert "/worker/_threads.py" not in failed.failure.stack_trace
    release.set()
    bad = next(machine for machine in bench.machines.made if machine.run_id == "bad")
    await until(lambda: bad.evicted_on, "the eviction on the abandoned thread")
    await until(lambda: bench.settled == 2, "both slots")


async def test_an_endless_loop_is_broken_and_its_thread_ends(bench: Bench) -> None:
    threads: list[threading.Thread] = []

    def spin(task: WorkflowTask) -> Any:
        threads.append(threading.current_thread())
        while True:
            pass

    bench.machines.answer = spin
    await bench.offer(workflow_task("bad", events=events(1, 3)))
    await until(lambda: bench.service.of("fail_workflow_task"), "the failure")
    await until(lambda: not threads[0].is_alive(), "the end of the thread")


async def test_without_a_timeout_a_slow_turn_is_waited_for() -> None:
    bench = await make_bench(timeout=None)
    gate = threading.Event()

    def slow(task: WorkflowTask) -> Any:
        assert gate.wait(5)
        return wait_on_timer(task)

    bench.machines.answer = slow
    await bench.offer(workflow_task(events=events(1, 3)))
    asyncio.get_running_loop().call_later(0.5, gate.set)
    await until(lambda: bench.service.of("complete_workflow_task"), "the answer")
    assert bench.service.of("fail_workflow_task") == []
    await bench.close()


async def test_close_evicts_all_and_ends_the_threads() -> None:
    bench = await make_bench()
    for n in range(20):
        await bench.offer(workflow_task(f"run-{n}", events=events(1, 3)))
    await until(lambda: bench.settled == 20, "all answers")
    await bench.close()
    assert all(machine.evicted_on for machine in bench.machines.made)
    assert not [thread for thread in threading.enumerate() if thread.name in bench.machines.made[0].threads]
