"""Waiting for the close of a run without a task: the close answers, the long poll ends, or the general way looks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from benchmarks.hot_path import QUEUE, FixedWorker, HotPath
from clew.engine import close_waits
from clew.engine.close_waits import CloseWait
from clew.model.events import WorkflowExecutionCompleted, WorkflowExecutionTerminated
from clew.model.inputs import StartWorkflowRequest, TerminateWorkflowRequest
from clew.service.requests import GetHistoryRequest


class IdleWorker(FixedWorker):
    """Takes tasks, and answers none."""

    def _answer_all(self) -> None:
        """Nothing."""


@asynccontextmanager
async def open_run(*, worker: type[FixedWorker] = IdleWorker) -> AsyncIterator[HotPath]:
    async with HotPath(worker=worker) as path:
        await path.engine.start_workflow(
            StartWorkflowRequest(
                namespace="default", workflow_id="w", workflow_type="Sequence", task_queue=QUEUE, request_id="1"
            )
        )
        yield path


def wait_request(run_id: str = "") -> GetHistoryRequest:
    return GetHistoryRequest(
        namespace="default", workflow_id="w", run_id=run_id, wait_new_event=True, close_event_only=True
    )


async def test_the_close_of_the_run_answers() -> None:
    async with open_run(worker=FixedWorker) as path:
        reply = path.engine.get_history(wait_request())
        assert isinstance(reply, CloseWait)
        page = await asyncio.wait_for(reply, 10)
        assert [type(event) for event in page.events] == [WorkflowExecutionCompleted]
        assert page.next_event_id == 0


async def test_a_close_that_takes_the_general_way_answers_as_well() -> None:
    async with open_run() as path:
        reply = path.engine.get_history(wait_request())
        await path.engine.terminate_workflow(TerminateWorkflowRequest(namespace="default", workflow_id="w"))
        page = await asyncio.wait_for(reply, 10)
        assert [type(event) for event in page.events] == [WorkflowExecutionTerminated]


async def test_the_end_of_the_long_poll_answers_all_that_are_overdue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(close_waits, "LONG_POLL_SECONDS", 0.01)
    async with open_run() as path:
        replies = [path.engine.get_history(wait_request()) for _ in range(3)]
        pages = await asyncio.wait_for(asyncio.gather(*[_page(reply) for reply in replies]), 10)
        assert [(page.events, page.next_event_id) for page in pages] == [((), 4)] * 3


async def test_a_wait_that_nobody_waits_for_leaves_nothing() -> None:
    async with open_run() as path:
        reply = path.engine.get_history(wait_request())
        assert isinstance(reply, CloseWait)
        reply.abandon()
        await path.engine.terminate_workflow(TerminateWorkflowRequest(namespace="default", workflow_id="w"))
        assert not reply.done()
        assert not path.engine._close_waits._waiting
        assert not path.engine._waiters._calls


async def test_another_run_than_the_one_in_memory_goes_the_general_way() -> None:
    async with open_run() as path:
        assert path.engine._close_waits.wait(wait_request(run_id="another")) is None
        assert path.engine._close_waits.wait(GetHistoryRequest(namespace="default", workflow_id="w")) is None


async def _page(reply: Any) -> Any:
    return await reply
