"""C022: the replayer reports every change of the code that matters, and nothing else, wherever the history is cut.

The documented rule for results: what a run returns is not compared, since no later step can depend on it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from clew import activity, workflow
from clew.client import WorkflowHistory
from clew.exceptions import NondeterminismError
from clew.model import events as e
from clew.worker import Replayer
from tests.cases.harness import ACTIVITY, QUEUE, engine, settled, worker


@activity.defn
async def a() -> str:
    return "a"


@activity.defn
async def b() -> str:
    return "b"


@activity.defn
async def c() -> str:
    return "c"


@workflow.defn
class Child:
    @workflow.run
    async def run(self) -> str:
        return "child"


async def call(function: Any) -> str:
    result: str = await workflow.execute_activity(function, **ACTIVITY)
    return result


async def ending() -> None:
    await workflow.execute_child_workflow(Child.run, id="c022-child")
    workflow.patched("a-patch")


async def timer() -> None:
    await workflow.sleep(timedelta(milliseconds=10))


@workflow.defn(name="C022")
class Recorded:
    @workflow.run
    async def run(self) -> str:
        await call(a)
        await call(b)
        await timer()
        await ending()
        return "done"


@workflow.defn(name="C022")
class Swapped:
    @workflow.run
    async def run(self) -> str:
        await call(b)
        await call(a)
        await timer()
        await ending()
        return "done"


@workflow.defn(name="C022")
class Replaced:
    @workflow.run
    async def run(self) -> str:
        await call(a)
        await call(c)
        await timer()
        await ending()
        return "done"


@workflow.defn(name="C022")
class Removed:
    @workflow.run
    async def run(self) -> str:
        await call(a)
        await timer()
        await ending()
        return "done"


@workflow.defn(name="C022")
class Extra:
    @workflow.run
    async def run(self) -> str:
        await call(a)
        await call(b)
        await timer()
        await ending()
        await call(c)
        return "done"


@workflow.defn(name="C022")
class NoTimer:
    @workflow.run
    async def run(self) -> str:
        await call(a)
        await call(b)
        await ending()
        return "done"


@workflow.defn(name="C022")
class OtherResult:
    @workflow.run
    async def run(self) -> str:
        await call(a)
        await call(b)
        await timer()
        await ending()
        return "something else"


@workflow.defn(name="C022")
class Early:
    @workflow.run
    async def run(self) -> str:
        await call(a)
        await call(b)
        return "done"


@workflow.defn(name="C022")
class Beside:
    """A request more, beside the last one that is recorded of an open run."""

    @workflow.run
    async def run(self) -> str:
        first, second = workflow.start_activity(a, **ACTIVITY), workflow.start_activity(c, **ACTIVITY)
        return await first + await second


@pytest.fixture
async def history() -> AsyncIterator[WorkflowHistory]:
    async with engine() as client, worker(client, [Recorded, Child], [a, b, c]):
        handle = await client.start_workflow(Recorded.run, id="c022", task_queue=QUEUE)
        assert await settled(handle) == "done"
        yield await handle.fetch_history()


def first(history: WorkflowHistory, kind: type[Any], number: int = 1) -> int:
    return [event.event_id for event in history if isinstance(event, kind)][number - 1]


async def mismatch(history: WorkflowHistory, code: type[Any]) -> NondeterminismError:
    result = await Replayer(workflows=[code]).replay_workflow(history, raise_on_replay_failure=False)
    assert isinstance(result.replay_failure, NondeterminismError), result.replay_failure
    return result.replay_failure


async def test_every_change_is_reported_at_its_first_event(history: WorkflowHistory) -> None:
    expected = {
        Swapped: (first(history, e.ActivityTaskScheduled), "'a'", "'b'"),
        Replaced: (first(history, e.ActivityTaskScheduled, 2), "'b'", "'c'"),
        Removed: (first(history, e.ActivityTaskScheduled, 2), "'b'", "timer"),
        Extra: (first(history, e.WorkflowExecutionCompleted), "WorkflowExecutionCompleted", "'c'"),
        NoTimer: (first(history, e.TimerStarted), "TimerStarted", "child"),
        Early: (first(history, e.TimerStarted), "TimerStarted", "complete"),
    }
    for code, (event_id, recorded, attempted) in expected.items():
        error = await mismatch(history, code)
        assert error.event_id == event_id, (code.__name__, str(error))
        assert recorded in error.recorded, (code.__name__, error.recorded)
        assert attempted.lower() in error.attempted.lower(), (code.__name__, error.attempted)
        assert error.source_line.split(":")[0] == __file__, (code.__name__, error.source_line)


async def test_another_result_alone_is_no_mismatch(history: WorkflowHistory) -> None:
    await Replayer(workflows=[OtherResult]).replay_workflow(history)


async def test_the_same_code_fits_at_every_cut(history: WorkflowHistory) -> None:
    replayer = Replayer(workflows=[Recorded])
    started_cuts = 0
    for end in range(1, len(history) + 1):
        await replayer.replay_workflow(WorkflowHistory("c022", history.events[:end]))
        started_cuts += isinstance(history.events[end - 1], e.WorkflowTaskStarted)
    assert started_cuts >= 5, "the cuts include histories that end in a started task"


async def test_the_end_of_a_whole_history_is_compared_too(history: WorkflowHistory) -> None:
    """Only who knows that nothing is cut off can tell that a request more has no event."""
    end = first(history, e.ActivityTaskScheduled)
    open_run = WorkflowHistory("c022", history.events[:end])
    code = Replayer(workflows=[Recorded])
    await code.replay_workflow(open_run, is_whole=True)
    with pytest.raises(NondeterminismError, match="'c'"):
        await Replayer(workflows=[Beside]).replay_workflow(open_run, is_whole=True)
