"""Workflow tasks that go over a link before their cause is durable: numbers, answers, and what becomes of the lost."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from clew.link import frames as f
from clew.link.codes import CutCode
from clew.link.early import LOST_MAX, EarlyNumbers, first_number
from clew.model.events import WorkflowTaskFailedCause
from clew.model.failure import Failure
from clew.model.rejection import RejectionCode
from clew.service import requests as r
from clew.service.contract import EarlyTaskSink
from clew.service.errors import RPCError
from tests.link.service import FakeService, Raw, linked, make_server, until
from tests.link.test_sessions import HELLO, TOKEN, Sink, soon


def workflow_task(run_id: str = "r") -> r.WorkflowTask:
    token = msgspec.structs.replace(TOKEN, run_id=run_id)
    return r.WorkflowTask(token=token, workflow_type="w", task_queue="q")


def answer(task: r.WorkflowTask) -> r.CompleteWorkflowTaskRequest:
    return r.CompleteWorkflowTaskRequest(token=task.token, identity="w")


class EarlySink(Sink):
    """Begins with what it gets, unless it is told not to."""

    def __init__(self) -> None:
        super().__init__()
        self.is_willing = True
        self.begun: list[r.WorkflowTask] = []
        self.confirmed: list[r.WorkflowTask] = []

    def offer_early_workflow_task(self, task: r.WorkflowTask) -> bool:
        if self.is_willing:
            self.begun.append(task)
        return self.is_willing

    def confirm_workflow_task(self, task: r.WorkflowTask) -> None:
        self.confirmed.append(task)


async def attached(client: Any, service: FakeService, sink: Sink) -> Any:
    """What the node has of a worker: its session."""
    worker = await soon(client.service.attach_worker(HELLO, sink))
    worker.grant(workflow_tasks=3)
    session = service.sessions[-1]
    await until(lambda: session.workflow_credits == 3)
    return session


async def test_an_answer_brings_the_number_of_its_task() -> None:
    service, sink = FakeService(), EarlySink()
    async with linked(make_server(service)) as (client, _):
        session = await attached(client, service, sink)
        assert session.hello.takes_early_tasks
        assert isinstance(session.sink, EarlyTaskSink)
        assert session.sink.offer_early_workflow_task(workflow_task())
        await until(lambda: sink.begun)
        await soon(client.service.complete_workflow_task(answer(sink.begun[0])))
        assert service.calls[0].token.early == sink.begun[0].token.early > 0
        session.sink.confirm_workflow_task(workflow_task())
        session.sink.offer_workflow_task(workflow_task("other"))
        await until(lambda: sink.workflows)
        assert sink.confirmed == [], "an answered task needs no word"
        assert sink.workflows[0].token.early == 0


async def test_a_task_without_an_answer_is_confirmed() -> None:
    service, sink = FakeService(), EarlySink()
    async with linked(make_server(service)) as (client, _):
        session = await attached(client, service, sink)
        session.sink.offer_early_workflow_task(workflow_task())
        session.sink.confirm_workflow_task(workflow_task())
        await until(lambda: sink.confirmed)
        assert sink.confirmed[0] is sink.begun[0]
        await soon(client.service.complete_workflow_task(answer(sink.begun[0])))


async def test_the_answer_to_a_lost_task_never_reaches_the_service() -> None:
    service, sink = FakeService(), EarlySink()
    async with linked(make_server(service)) as (client, _):
        session = await attached(client, service, sink)
        session.sink.offer_early_workflow_task(workflow_task())
        await until(lambda: sink.begun)
        session.sink.evict_workflow("n", "r")
        # Another gets the very numbers by which the engine knows a task, at once.
        session.sink.offer_early_workflow_task(workflow_task())
        completion = client.service.complete_workflow_task(answer(sink.begun[0]))
        failure = r.FailWorkflowTaskRequest(
            token=sink.begun[0].token, failure=Failure(message="no"), cause=WorkflowTaskFailedCause.UNHANDLED_COMMAND
        )
        for call in (completion, client.service.fail_workflow_task(failure)):
            with pytest.raises(RPCError, match="given out again") as caught:
                await soon(call)
            assert caught.value.code is RejectionCode.WORKFLOW_TASK_NOT_FOUND
        assert service.calls == []
        assert sink.evicted == ["r"]
        await until(lambda: len(sink.begun) == 2)
        await soon(client.service.complete_workflow_task(answer(sink.begun[1])))
        assert len(service.calls) == 1


async def test_a_new_session_voids_what_was_not_confirmed() -> None:
    first, second, sink = FakeService(), FakeService(), EarlySink()
    first.gate.clear()
    one, other = make_server(first, node="one"), make_server(second, node="other")
    async with linked(one, other) as (client, dial):
        session = await attached(client, first, sink)
        for run_id in ("sent", "open"):
            session.sink.offer_early_workflow_task(workflow_task(run_id))
        await until(lambda: len(sink.begun) == 2)
        sink.is_willing = False
        session.sink.offer_early_workflow_task(workflow_task("kept"))
        under_way = client.service.complete_workflow_task(answer(sink.begun[0]))
        await until(lambda: first.calls)
        dial.servers = [other]
        dial.cut()
        with pytest.raises(RPCError) as caught:
            await soon(under_way)
        assert caught.value.code is RejectionCode.WORKFLOW_TASK_NOT_FOUND
        assert sink.evicted == ["open"], "what is answered is refused, and what was never begun is given back"
        with pytest.raises(RPCError) as caught:
            await soon(client.service.complete_workflow_task(answer(sink.begun[1])))
        assert caught.value.code is RejectionCode.WORKFLOW_TASK_NOT_FOUND
        await until(lambda: second.sessions and second.sessions[0].workflow_credits)
        assert second.sessions[0].workflow_credits == 1
        assert second.calls == []


async def test_a_session_that_is_gone_on_with_keeps_what_it_has() -> None:
    service, sink = FakeService(), EarlySink()
    async with linked(make_server(service)) as (client, dial):
        session = await attached(client, service, sink)
        session.sink.offer_early_workflow_task(workflow_task())
        await until(lambda: sink.begun)
        before = client.connects_count
        dial.cut()
        await until(lambda: client.connects_count > before)
        await soon(client.service.complete_workflow_task(answer(sink.begun[0])))
        assert sink.evicted == []
        assert len(service.calls) == 1


async def test_a_task_that_cannot_be_begun_at_once_waits_for_its_cause() -> None:
    service, sink = FakeService(), EarlySink()
    sink.is_willing = False
    async with linked(make_server(service)) as (client, _):
        session = await attached(client, service, sink)
        unanswered: list[r.TaskToken] = []
        session.note_unanswered = unanswered.append
        session.sink.offer_early_workflow_task(workflow_task())
        await until(lambda: unanswered)
        assert unanswered[0].early > 0
        assert sink.workflows == []
        session.sink.confirm_workflow_task(workflow_task())
        await until(lambda: sink.workflows)
        session.sink.offer_early_workflow_task(workflow_task("lost"))
        session.sink.evict_workflow("n", "lost")
        await until(lambda: session.workflow_credits == 4)
        assert len(sink.workflows) == 1


async def test_a_worker_that_takes_none_early_is_offered_none() -> None:
    service = FakeService()
    async with linked(make_server(service)) as (client, _):
        session = await attached(client, service, Sink())
        assert not session.hello.takes_early_tasks
        assert not isinstance(session.sink, EarlyTaskSink)


async def test_while_there_is_no_connection_nothing_is_given_out_early() -> None:
    service = FakeService()
    async with linked(make_server(service)) as (client, dial):
        session = await attached(client, service, EarlySink())
        dial.is_down = True
        dial.cut()
        await until(lambda: not session.sink.offer_early_workflow_task(workflow_task()))


async def test_a_token_that_is_none_cuts_the_link() -> None:
    service = FakeService()
    raw = Raw(make_server(service))
    await raw.hello()
    raw.say(f.Attach(1, 1, msgspec.json.encode(HELLO)))
    await until(lambda: service.sessions)
    raw.say(f.Unanswered(1, b"{"), first=2)
    assert await raw.cut() is CutCode.MALFORMED


def test_numbers_of_other_sessions_and_of_lost_causes_are_worthless() -> None:
    one, other = EarlyNumbers(first_number("one")), EarlyNumbers(first_number("other"))
    mine, theirs = one.number(workflow_task()).token, other.number(workflow_task()).token
    assert not one.is_worthless(mine.early)
    assert one.is_worthless(theirs.early)
    assert one.is_worthless(mine.early + 1)
    assert one.durable("r") == mine.early
    one.lost("r")
    assert not one.is_worthless(mine.early), "it was durable by then"
    again = one.number(workflow_task()).token
    one.lost("r")
    assert one.is_worthless(again.early)
    assert one.durable("r") == 0


def test_an_answered_task_is_forgotten() -> None:
    numbers = EarlyNumbers(1)
    first = numbers.number(workflow_task()).token
    second = numbers.number(workflow_task()).token
    numbers.answered(first)
    assert numbers.durable("r") == second.early, "that is another task of the run"


def test_who_has_lost_too_much_gets_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clew.link.early.LOST_MAX", 2)
    assert LOST_MAX > 2
    numbers = EarlyNumbers(1)
    for _ in range(3):
        assert not numbers.is_full
        numbers.number(workflow_task())
        numbers.lost("r")
    assert numbers.is_full
