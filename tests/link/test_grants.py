"""Credits of a worker behind a link: those of one turn of the loop travel as one message."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from clew.link import frames as f
from clew.link.lane import Lane
from clew.link.remote import RemoteService
from clew.link.remote_worker import RemoteWorker
from clew.link.wire import Wire
from clew.service.contract import TaskSink
from clew.service.requests import WorkerHello

HELLO = WorkerHello(namespace="default", task_queue="q", identity="i", instance_id="1")


class Recorded:
    """A wire that decodes what is sent over it."""

    def __init__(self) -> None:
        self.messages: list[Any] = []

    def send(self, frame: bytes) -> None:
        data = f.FROM_CLIENT.frame(frame)
        assert isinstance(data, f.ClientData)
        self.messages += data.messages


def connect(service: RemoteService) -> tuple[Lane, Recorded]:
    """A new session."""
    wire = Recorded()
    loop = asyncio.get_running_loop()
    lane = Lane(
        loop, f.FROM_SERVER, f.OPTIONS_DEFAULT, 1_000_000, service.received, before_flush=service.send_grants
    )  # fmt: skip
    lane.bind(cast(Wire, wire), 0)
    service.connected(lane, f.OPTIONS_DEFAULT, is_new=True)
    return lane, wire


async def attached() -> tuple[RemoteService, RemoteWorker, Lane, Recorded]:
    """A worker whose node has answered."""
    service = RemoteService(1.0, lambda reason: None)
    lane, wire = connect(service)
    attaching = asyncio.ensure_future(service.attach_worker(HELLO, cast(TaskSink, None)))
    await turn()
    (attach,) = wire.messages
    assert isinstance(attach, f.Attach)
    service.received(f.Answer(attach.call_id, b'"s-1"'))
    worker = await attaching
    wire.messages.clear()
    return service, worker, lane, wire


async def turn() -> None:
    """All that this turn of the loop has begun."""
    for _ in range(3):
        await asyncio.sleep(0)


async def test_credits_of_one_turn_go_as_one() -> None:
    _, worker, _, wire = await attached()
    worker.grant(workflow_tasks=2)
    worker.grant(activity_tasks=1)
    worker.grant(workflow_tasks=1)
    assert wire.messages == []
    await turn()
    assert wire.messages == [f.Grant(worker.number, 3, 1)]
    worker.grant(activity_tasks=1)
    await turn()
    assert wire.messages[1:] == [f.Grant(worker.number, 0, 1)]


@pytest.mark.parametrize("end", ["stop_polling", "detach"])
async def test_credits_that_are_taken_back_in_the_same_turn_do_not_go(end: str) -> None:
    _, worker, _, wire = await attached()
    worker.grant(workflow_tasks=2)
    getattr(worker, end)()
    await turn()
    expected = f.StopPolling(worker.number) if end == "stop_polling" else f.Detach(worker.number)
    assert wire.messages == [expected]


async def test_credits_granted_while_the_connection_is_gone_go_over_the_next() -> None:
    _, worker, lane, _ = await attached()
    lane.unbind()
    worker.grant(workflow_tasks=1)
    worker.grant(workflow_tasks=1)
    await turn()
    wire = Recorded()
    lane.bind(cast(Wire, wire), 1)
    await turn()
    assert [message for message in wire.messages if isinstance(message, f.Grant)] == [f.Grant(worker.number, 2, 0)]


async def test_a_new_session_gets_what_is_open_once() -> None:
    service, worker, lane, _ = await attached()
    worker.grant(workflow_tasks=5, activity_tasks=1)
    await turn()
    lane.unbind()
    worker.grant(workflow_tasks=1)
    _, wire = connect(service)
    await turn()
    (attach,) = wire.messages
    assert isinstance(attach, f.Attach)
    service.received(f.Answer(attach.call_id, b'"s-2"'))
    await turn()
    assert wire.messages[1:] == [f.Grant(worker.number, 6, 1)]
