"""C046: a signal that cannot be decoded, one nobody knows, and a handler that raises."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from clew import workflow
from clew.exceptions import ApplicationError, WorkflowFailureError
from clew.model import events as e
from clew.model.payload import Payload, to_stored
from clew.service.requests import SignalWorkflowRequest
from tests.cases.harness import QUEUE, engine, events, eventually, parked, replay_check, settled, worker


@dataclass
class Order:
    count: int


@workflow.defn
class Takes:
    def __init__(self) -> None:
        self.orders: list[int] = []
        self.late: list[str] = []

    @workflow.run
    async def run(self) -> tuple[list[int], list[str]]:
        await workflow.wait_condition(lambda: bool(self.orders))
        workflow.set_signal_handler("unheard", self.late.append)
        await workflow.wait_condition(lambda: bool(self.late))
        return self.orders, self.late

    @workflow.signal
    def order(self, order: Order) -> None:
        self.orders.append(order.count)


@workflow.defn
class Raises:
    def __init__(self) -> None:
        self.is_over = False

    @workflow.run
    async def run(self) -> None:
        await workflow.wait_condition(lambda: self.is_over)

    @workflow.signal
    def plain(self) -> None:
        raise ValueError("plain trouble")

    @workflow.signal
    def application(self) -> None:
        raise ApplicationError("business trouble", type="Trouble")


def _payload(data: bytes, encoding: bytes = b"json/plain") -> Any:
    return to_stored(Payload({"encoding": encoding}, data))


async def test_each_bad_signal_leaves_one_record_and_the_good_one_is_processed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with engine() as client, worker(client, [Takes]):
        handle = await client.start_workflow(Takes.run, id="takes", task_queue=QUEUE)
        await parked(handle)
        run_id = (await handle.describe()).run_id
        bad = [
            _payload(b'{"count": "many"}'),
            _payload(b"{not json"),
            _payload(b"\x00\x01", b"binary/unheard-of"),
        ]
        for number, payload in enumerate(bad):
            request = SignalWorkflowRequest(
                namespace="default",
                workflow_id="takes",
                signal_name="order",
                input=(payload,),
                request_id=f"bad-{number}",
            )
            await client.connection.call(client.connection.service.signal_workflow, request)
        await handle.signal("unheard", "kept for later")
        await parked(handle)
        await handle.signal(Takes.order, Order(3))
        assert await settled(handle) == ([3], ["kept for later"])
        assert len(await events(handle, e.WorkflowExecutionSignaled)) == 5
        assert not await events(handle, e.WorkflowTaskFailed)
        told = [r for r in caplog.records if "signal=order" in r.getMessage()]
        assert len(told) == 3, [record.getMessage() for record in caplog.records]
        assert all(run_id in record.getMessage() + str(record.__dict__) for record in told)
        await replay_check(handle, Takes)


async def test_a_handler_that_raises_a_failure_fails_the_run() -> None:
    async with engine() as client, worker(client, [Raises]):
        handle = await client.start_workflow(Raises.run, id="raises", task_queue=QUEUE)
        await handle.signal(Raises.application)
        error = await settled(handle)
        assert isinstance(error, WorkflowFailureError)
        assert isinstance(error.cause, ApplicationError)
        assert error.cause.type == "Trouble"
        await replay_check(handle, Raises)


async def test_a_handler_that_raises_another_exception_fails_the_task_and_describe_says_so() -> None:
    async with engine() as client, worker(client, [Raises]):
        handle = await client.start_workflow(Raises.run, id="raises", task_queue=QUEUE)
        await handle.signal(Raises.plain)
        told = await eventually(lambda: _told(handle))
        assert "plain trouble" in told
        assert (await handle.describe()).status.name == "RUNNING"
        await handle.terminate()


async def _told(handle: Any) -> str:
    text = "\n".join((await handle.describe()).waiting_for)
    return text if "ValueError" in text else ""
