"""A worker begins with a task whose cause is not durable yet, and keeps to itself what others could see."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from clew.replay import ActivationResult, LocalActivityRequest
from clew.service.requests import WorkflowTask
from tests.unit.worker.fakes import until, workflow_task
from tests.unit.worker.test_workflow_tasks import Bench, events


class LocalRunner:
    """Notes what it is asked to run."""

    def __init__(self) -> None:
        self.started: list[Any] = []
        self.forgotten: list[Any] = []

    def start(self, local: Any) -> None:
        self.started.append(local)

    def forget(self, local: Any) -> None:
        self.forgotten.append(local)


class EarlyBench(Bench):
    """Every type counts as quick, and the calls of the engine are made on the service loop."""

    def __init__(self) -> None:
        super().__init__()
        self.tasks._threads.lend = self._lend  # type: ignore[method-assign]
        self.is_quick = True
        self.locals = LocalRunner()
        self.tasks.local_activities = self.locals  # type: ignore[assignment]

    def _lend(self, turn: Any) -> bool:
        if self.is_quick:
            self.tasks._threads._put(turn)
        return self.is_quick

    async def on_loop(self, act: Callable[[], Any]) -> Any:
        return await self.connection.on_service_loop(act)

    async def offer_early(self, task: WorkflowTask) -> bool:
        return bool(await self.on_loop(lambda: self.tasks.offer_early(task, self._settle)))

    def ask_for_a_local_activity(self) -> None:
        """From now on machines ask for one, and leave their task open."""
        request = LocalActivityRequest(
            sequence=0,
            activity_id="l-1",
            activity_type="l",
            input=None,
            payloads=(),  # type: ignore[arg-type]
        )
        make = self.machines.make

        def make_asking(task: WorkflowTask) -> Any:
            machine = make(task)
            machine.activate = lambda task: ActivationResult(  # type: ignore[method-assign]
                completion=None, local_activities=(request,)
            )
            return machine

        self.machines.make = make_asking  # type: ignore[method-assign]


@pytest.fixture
async def bench() -> AsyncIterator[EarlyBench]:
    made = EarlyBench()
    yield made
    await made.close()
    assert made.errors == []


async def test_an_early_task_is_answered_at_once(bench: EarlyBench) -> None:
    assert await bench.offer_early(workflow_task(events=events(1, 3)))
    await until(lambda: bench.settled == 1, "the answer")
    assert len(bench.service.of("complete_workflow_task")) == 1


async def test_what_cannot_be_begun_at_once_is_left_for_later(bench: EarlyBench) -> None:
    assert not await bench.offer_early(workflow_task(events=events(4, 6), is_partial=True)), "not cached"
    await bench.offer_and_wait(workflow_task(events=events(1, 3)))
    assert not await bench.offer_early(workflow_task(events=events(5, 6), is_partial=True)), "not where it stands"
    bench.is_quick = False
    assert not await bench.offer_early(workflow_task(events=events(4, 6), is_partial=True)), "not quick"
    assert len(bench.service.of("complete_workflow_task")) == 1


async def test_local_activities_wait_for_the_word_that_the_cause_is_durable(bench: EarlyBench) -> None:
    bench.ask_for_a_local_activity()
    task = workflow_task(events=events(1, 3))
    assert await bench.offer_early(task)
    (run,) = bench.tasks._runs.values()
    await until(lambda: run.held is not None, "the turn")
    assert bench.locals.started == []
    await bench.on_loop(lambda: bench.tasks.confirm(task))
    assert len(bench.locals.started) == 1


async def test_local_activities_of_a_lost_cause_are_never_run(bench: EarlyBench) -> None:
    bench.ask_for_a_local_activity()
    task = workflow_task(events=events(1, 3))
    assert await bench.offer_early(task)
    (run,) = bench.tasks._runs.values()
    await until(lambda: run.held is not None, "the turn")
    await bench.on_loop(lambda: bench.tasks.evict(task.token.run_id))
    assert (bench.settled, bench.tasks.cached_runs_count) == (1, 0)
    await bench.on_loop(lambda: bench.tasks.confirm(task))
    assert bench.locals.started == []


async def test_the_answer_to_a_lost_task_is_not_given(bench: EarlyBench) -> None:
    evicted: list[str] = []
    answer = bench.machines.answer

    def lose_meanwhile(task: WorkflowTask) -> Any:
        bench.connection.service_loop.call_soon_threadsafe(bench.tasks.evict, task.token.run_id)
        bench.connection.service_loop.call_soon_threadsafe(evicted.append, task.token.run_id)
        return answer(task)

    bench.machines.answer = lose_meanwhile
    task = workflow_task(events=events(1, 3))
    assert await bench.offer_early(task)
    await until(lambda: bench.settled == 1 and evicted, "the slot")
    bench.machines.answer = answer
    # The next task finds nothing cached, and is the first to be answered.
    await bench.offer_and_wait(workflow_task(events=events(1, 5)))
    assert [made.cached_through_event_id for made in bench.machines.made] == [3, 5]
    assert len(bench.service.of("complete_workflow_task")) == 1
    await until(lambda: bench.machines.made[0].evicted_on, "its end")
