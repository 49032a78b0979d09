"""Replaying many histories, here and in other processes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from clew import workflow
from clew.client import WorkflowHistory
from clew.exceptions import NondeterminismError
from clew.worker import Replayer
from tests.replay.golden_replay import load_module

GOLDEN = Path(__file__).parents[2] / "replay" / "golden"
RECORDED = Path(__file__).with_name("recorded_waiting.json")


@workflow.defn
class Waiting:
    @workflow.run
    async def run(self, name: str) -> str:
        await workflow.sleep(timedelta(hours=1))
        return name


@workflow.defn(name="Waiting")
class Hasty:
    @workflow.run
    async def run(self, name: str) -> str:
        return name


def waiting(name: str) -> WorkflowHistory:
    """The history of a run that waits for its timer."""
    text = RECORDED.read_text(encoding="utf-8").replace("RUN", f"run-{name}").replace("NAME", name)
    return WorkflowHistory.from_json(name, text)


async def several(*names: str) -> AsyncIterator[WorkflowHistory]:
    for name in names:
        yield waiting(name)


@pytest.mark.parametrize("processes", [0, 2])
async def test_results_come_in_the_order_of_the_histories(processes: int) -> None:
    names = [f"w{n}" for n in range(12)]
    replayer = Replayer(workflows=[Waiting], processes=processes)
    async with replayer.workflow_replay_iterator(several(*names)) as results:
        found = [(result.history.workflow_id, result.replay_failure) async for result in results]
    assert found == [(name, None) for name in names]


@pytest.mark.parametrize("processes", [0, 2])
async def test_failures_are_given_by_run(processes: int) -> None:
    replayer = Replayer(workflows=[Hasty], processes=processes)
    results = await replayer.replay_workflows(several("one", "two"), raise_on_replay_failure=False)
    assert set(results.replay_failures) == {"run-one", "run-two"}
    failure = results.replay_failures["run-one"]
    assert isinstance(failure, NondeterminismError)
    assert failure.event_id == 5
    assert "TimerStarted" in failure.recorded
    assert "CompleteWorkflowExecution" in failure.attempted
    assert failure.source_line.startswith(__file__), "also from another process"


@pytest.mark.parametrize("processes", [0, 2])
async def test_the_first_failure_is_raised_if_asked_for(processes: int) -> None:
    with pytest.raises(NondeterminismError):
        await Replayer(workflows=[Hasty], processes=processes).replay_workflows(several("one", "two"))


async def test_what_cannot_go_to_another_process_is_named() -> None:
    @workflow.defn(name="Waiting")
    class Local:
        @workflow.run
        async def run(self, name: str) -> str:
            return name

    with pytest.raises(TypeError, match=r"Replayer\(workflows=…\) cannot be handed to another process"):
        await Replayer(workflows=[Local], processes=1).replay_workflows(several("one"))


async def test_a_type_without_code_is_a_failure_of_its_own() -> None:
    @workflow.defn
    class Other:
        @workflow.run
        async def run(self) -> None: ...

    result = await Replayer(workflows=[Other]).replay_workflow(waiting("one"), raise_on_replay_failure=False)
    assert "history of workflow 'Waiting', but the replayer has: Other" in str(result.replay_failure)


async def test_a_golden_history_is_whole() -> None:
    module: Any = load_module(GOLDEN / "claims_paid_by_assessor.py")

    async def histories() -> AsyncIterator[WorkflowHistory]:
        yield WorkflowHistory.from_json("golden", (GOLDEN / "claims_paid_by_assessor.json").read_text("utf-8"))

    replayer = Replayer(workflows=module.WORKFLOWS)
    assert (await replayer.replay_workflows(histories(), is_whole=True)).replay_failures == {}


def test_a_negative_number_of_processes_is_refused() -> None:
    with pytest.raises(ValueError, match="processes"):
        Replayer(workflows=[Waiting], processes=-1)
