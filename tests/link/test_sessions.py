"""Sessions: what survives a broken connection, a lost session, and a node that goes away."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from clew.adapters import SystemClock
from clew.link import Admission, Hello, LinkClient, Peer
from clew.link.calls import METHODS
from clew.link.remote import RemoteService
from clew.model.access import EVERYWHERE, Grant, Role
from clew.model.failure import ApplicationInfo, Failure
from clew.model.rejection import Rejection, RejectionCode
from clew.server.metrics.metrics import Metrics
from clew.server.metrics.service import metered
from clew.server.security.authorized import AuthorizedService, Guards
from clew.server.security.principal import Principal
from clew.service import requests as r
from clew.service.contract import Service
from clew.service.errors import RPCError
from clew.service.reply import Reply
from tests.link.service import FakeService, linked, make_server, until

TOKEN = r.TaskToken(
    namespace="n", workflow_id="w", run_id="r", shard=0, run_key=1, scheduled_event_id=5, attempt=1, lease_id=7
)


def signal(number: int, size: int = 1) -> r.SignalWorkflowRequest:
    return r.SignalWorkflowRequest(
        namespace="n",
        workflow_id=f"w{number}",
        signal_name="s",
        request_id=f"q{number}",
        input=(msgspec.Raw(b'"' + b"x" * size + b'"'),),
    )


def activity_task(number: int) -> r.ActivityTask:
    return r.ActivityTask(
        token=msgspec.structs.replace(TOKEN, lease_id=number),
        activity_id=f"a{number}",
        activity_type="a",
        workflow_type="w",
        task_queue="q",
        attempt=1,
        idempotency_key="k",
    )


class Sink:
    """A worker's end that notes what comes."""

    def __init__(self) -> None:
        self.activities: list[str] = []
        self.workflows: list[r.WorkflowTask] = []
        self.cancels: list[tuple[r.TaskToken, r.ActivityCancelReason]] = []
        self.evicted: list[str] = []

    def offer_workflow_task(self, task: r.WorkflowTask) -> None:
        self.workflows.append(task)

    def offer_activity_task(self, task: r.ActivityTask) -> None:
        self.activities.append(task.activity_id)

    def cancel_activity(self, token: r.TaskToken, reason: r.ActivityCancelReason) -> None:
        self.cancels.append((token, reason))

    def evict_workflow(self, namespace: str, run_id: str) -> None:
        self.evicted.append(run_id)


HELLO = r.WorkerHello(namespace="n", task_queue="q", identity="i", instance_id="x")


async def soon(awaitable: Any) -> Any:
    return await asyncio.wait_for(awaitable, 30)


def test_every_call_of_the_contract_can_be_made() -> None:
    made = {name for name in dir(RemoteService) if inspect.isfunction(getattr(RemoteService, name))}
    assert set(METHODS) | {"attach_worker"} == {name for name in vars(Service) if not name.startswith("_")}
    assert set(METHODS) <= made
    for method in METHODS.values():
        assert method._types, method.name


async def test_a_call_under_way_survives_a_cut_and_is_made_once() -> None:
    service = FakeService()
    service.gate.clear()
    async with linked(make_server(service)) as (client, dial):
        replies = [client.service.signal_workflow(signal(n)) for n in range(10)]
        await until(lambda: len(service.calls) == 10)
        for _ in range(3):
            before = client.connects_count
            dial.cut()
            await until(lambda before=before: client.connects_count == before + 1)  # type: ignore[misc]
        service.gate.set()
        for reply in replies:
            assert await soon(reply) is None
        assert [call.workflow_id for call in service.calls] == [f"w{n}" for n in range(10)]
        assert client.service.is_quiet


async def test_frames_that_were_lost_come_once_and_in_order() -> None:
    """Every second frame of a connection is lost and the connection breaks, in both directions, again and again."""
    service = FakeService()
    async with linked(make_server(service)) as (client, dial):
        sink = Sink()
        worker = await soon(client.service.attach_worker(HELLO, sink))
        worker.grant(activity_tasks=1_000)
        session = service.sessions[0]
        await until(lambda: session.activity_credits == 1_000)
        sent, replies = 0, []

        def lose(wire: Any, after: int) -> None:
            def on_frame(frame: bytes) -> bytes | None:
                nonlocal after
                after -= 1
                if after > 0:
                    return frame
                asyncio.get_running_loop().call_soon(wire.abort)
                return None

            wire.on_frame = on_frame

        for turn in range(30):
            before = client.connects_count
            wire = dial.wires[-1]
            lose(wire if turn % 2 else wire.other, 1 + turn % 3)
            for _ in range(10):
                sent += 1
                session.sink.offer_activity_task(activity_task(sent))
                replies.append(client.service.signal_workflow(signal(sent)))
                await asyncio.sleep(0)
            await until(lambda before=before: client.connects_count > before)  # type: ignore[misc]
        for reply in replies:
            await soon(reply)
        await until(lambda: len(sink.activities) == sent)
        assert sink.activities == [f"a{n}" for n in range(1, sent + 1)]
        assert [call.workflow_id for call in service.calls] == [f"w{n}" for n in range(1, sent + 1)]
        assert len(service.sessions) == 1, "the worker was attached once"
        assert session.said == []


async def test_a_worker_that_cannot_be_reached_is_suspended_then_given_up() -> None:
    service = FakeService()
    server = make_server(service, release_seconds=0.05, resume_seconds=3.0)
    async with linked(server) as (client, dial):
        worker = await soon(client.service.attach_worker(HELLO, Sink()))
        worker.grant(workflow_tasks=5)
        [session] = service.sessions
        dial.is_down = True
        dial.cut()
        await until(lambda: session.said == ["suspend"])
        dial.is_down = False
        await until(lambda: session.said == ["suspend", "resume"])
        dial.is_down = True
        dial.cut()
        await until(lambda: session.said[2:] == ["suspend", "detach"])
        assert server.sessions_count == 0


async def test_another_session_gets_what_is_not_over() -> None:
    first, second = FakeService(), FakeService()
    first.gate.clear()
    one, other = make_server(first, node="one"), make_server(second, node="other")
    async with linked(one, other) as (client, dial):
        sink = Sink()
        worker = await soon(client.service.attach_worker(HELLO, sink))
        worker.grant(workflow_tasks=3, activity_tasks=4)
        await until(lambda: first.sessions[0].activity_credits == 4)
        first.sessions[0].sink.offer_activity_task(activity_task(1))
        await until(lambda: sink.activities)
        repeated = client.service.signal_workflow(signal(1))
        unrepeated = client.service.terminate_workflow(r.TerminateWorkflowRequest(namespace="n", workflow_id="w"))
        await until(lambda: len(first.calls) == 2)
        dial.servers = [other]
        dial.cut()
        assert await soon(repeated) is None
        with pytest.raises(RPCError, match="not known") as caught:
            await soon(unrepeated)
        assert caught.value.code is RejectionCode.UNAVAILABLE
        await until(lambda: second.sessions and second.sessions[0].activity_credits)
        assert (second.sessions[0].workflow_credits, second.sessions[0].activity_credits) == (3, 3)
        assert client.node == "other"
        assert worker.session_id == "s1"


NOT_NOW = RPCError(Rejection(code=RejectionCode.UNAVAILABLE, message="the store is away"))
NOT_FOUND = RPCError(Rejection(code=RejectionCode.ACTIVITY_NOT_FOUND, message="no such attempt"))
NEVER = RPCError(Rejection(code=RejectionCode.LIMIT_EXCEEDED, message="too large"))


def attempt(number: int) -> r.TaskToken:
    return activity_task(number).token


ENDS: dict[str, Callable[[Service, r.TaskToken], Awaitable[None]]] = {
    "complete": lambda service, token: service.complete_activity(r.CompleteActivityRequest(token=token)),
    "fail": lambda service, token: service.fail_activity(
        r.FailActivityRequest(token=token, failure=Failure(message="no", info=ApplicationInfo(type="E")))
    ),
    "cancel": lambda service, token: service.cancel_activity(r.CancelActivityRequest(token=token)),
    "release": lambda service, token: service.release_activity(r.ReleaseActivityRequest(token=token, reason="full")),
    "detach": lambda service, token: service.detach_activity(token),
}


@asynccontextmanager
async def holding(*numbers: int) -> AsyncIterator[tuple[LinkClient, FakeService, Callable[[], Any]]]:
    """A client with a worker that has these attempts, its node, and what makes it move and say what it has then."""
    first, second = FakeService(), FakeService()
    one, other = make_server(first, node="one"), make_server(second, node="other")
    async with linked(one, other) as (client, dial):
        sink = Sink()
        worker = await soon(client.service.attach_worker(HELLO, sink))
        worker.grant(activity_tasks=len(numbers))
        await until(lambda: first.sessions[0].activity_credits == len(numbers))
        for number in numbers:
            first.sessions[0].sink.offer_activity_task(activity_task(number))
        await until(lambda: len(sink.activities) == len(numbers))

        async def move() -> list[int]:
            dial.servers = [other]
            dial.cut()
            await until(lambda: second.sessions, "the worker is attached to the other node")
            return [token.lease_id for token in second.sessions[0].hello.held_attempts]

        yield client, first, move


@pytest.mark.parametrize("end", ENDS)
async def test_an_attempt_whose_report_is_under_way_is_named_to_the_next_node(end: str) -> None:
    async with holding(1) as (client, node, move):
        node.gate.clear()
        report = ENDS[end](client.service, attempt(1))
        await until(lambda: node.calls, "the first node has it, and does not answer")
        assert await move() == [1]
        assert await soon(report) is None


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize(("answer", "named"), [(None, []), (NOT_NOW, [1]), (NOT_FOUND, []), (NEVER, [])])
async def test_an_attempt_is_named_until_the_verdict_on_it_is_final(
    end: str, answer: RPCError | None, named: list[int]
) -> None:
    async with holding(1) as (client, node, move):
        node.answer = lambda request: answer
        outcome = await asyncio.gather(ENDS[end](client.service, attempt(1)), return_exceptions=True)
        assert [type(outcome[0]), str(outcome[0])] == [type(answer), str(answer)]
        assert await move() == named


async def test_an_attempt_of_which_something_else_is_said_instead_is_still_named() -> None:
    async with holding(1) as (client, node, move):
        node.answer = lambda request: NEVER
        reports: list[Reply[None]] = []

        def say_that(_: Reply[None]) -> None:
            node.gate.clear()
            reports.append(ENDS["fail"](client.service, attempt(1)))  # type: ignore[arg-type]

        ENDS["complete"](client.service, attempt(1)).listen(say_that)  # type: ignore[attr-defined]
        await until(lambda: len(node.calls) == 2)
        assert await move() == [1]
        assert await soon(reports[0]) is None


async def test_an_attempt_that_the_engine_gave_up_is_not_named() -> None:
    async with holding(1, 2, 3, 4) as (client, node, move):
        sink = node.sessions[0].sink
        sink.cancel_activity(attempt(1), r.ActivityCancelReason.TIMED_OUT)
        sink.cancel_activity(attempt(2), r.ActivityCancelReason.CANCEL_REQUESTED)
        node.answer = lambda request: NOT_FOUND if request.token.lease_id == 3 else NEVER
        for number in (3, 4):
            with pytest.raises(RPCError):
                await soon(client.service.heartbeat_activity(r.HeartbeatActivityRequest(token=attempt(number))))
        assert await move() == [2, 4]


async def test_a_node_that_drains_is_left_for_another() -> None:
    first, second = FakeService(), FakeService()
    one, other = make_server(first, node="one"), make_server(second, node="other")
    async with linked(one, other) as (client, _):
        worker = await soon(client.service.attach_worker(HELLO, Sink()))
        worker.grant(activity_tasks=2)
        first.gate.clear()
        report = client.service.complete_activity(r.CompleteActivityRequest(token=TOKEN))
        await until(lambda: len(first.calls) == 1)
        one.drain()
        waiting = client.service.signal_workflow(signal(1))
        await until(lambda: "stop_polling" in first.sessions[0].said)
        assert client.node == "one", "it waits for the verdict on what was reported"
        first.gate.set()
        assert await soon(report) is None
        assert await soon(waiting) is None
        await until(lambda: client.node == "other" and second.sessions and second.sessions[0].activity_credits == 2)
        assert await soon(one.wait_drained(5))
        assert second.calls == [signal(1)] or first.calls[1:] == [signal(1)]


async def test_the_end_of_a_client_detaches_its_workers() -> None:
    service = FakeService()
    server = make_server(service)
    async with linked(server) as (client, _):
        await soon(client.service.attach_worker(HELLO, Sink()))
        [session] = service.sessions
    await until(lambda: "detach" in session.said)
    assert session.said == ["detach"]
    assert server.sessions_count == 0


async def test_calls_wait_for_a_connection_but_not_for_ever() -> None:
    service = FakeService()
    async with linked(make_server(service), patience_seconds=0.3) as (client, dial):
        dial.is_down = True
        dial.cut()
        reply = client.service.signal_workflow(signal(1))
        with pytest.raises(RPCError, match="No node can be reached") as caught:
            await soon(reply)
        assert caught.value.is_retryable
        await until(lambda: client.service.refuses_at_once)
        with pytest.raises(RPCError, match="No node can be reached"):
            client.service.signal_workflow(signal(2))
        dial.is_down = False
        await until(lambda: not client.service.refuses_at_once)
        assert await soon(client.service.signal_workflow(signal(3))) is None
        # The first was under way when the connection broke: nobody knows, so it may be made after all.
        assert [call.workflow_id for call in service.calls] in (["w3"], ["w1", "w3"])


async def test_an_abandoned_wait_is_taken_back_at_the_node() -> None:
    service = FakeService()
    service.gate.clear()
    async with linked(make_server(service)) as (client, _):
        request = r.GetHistoryRequest(namespace="n", workflow_id="w", wait_new_event=True)
        waiting = asyncio.create_task(client.service.get_history(request))
        await until(lambda: service.calls)
        waiting.cancel()
        await until(lambda: service.cancelled == [request])
        assert client.service.is_quiet


async def test_a_call_that_takes_too_long_is_given_up() -> None:
    service = FakeService()
    service.gate.clear()
    async with linked(make_server(service, call_seconds=0.05)) as (client, _):
        with pytest.raises(RPCError, match="not answered within") as caught:
            await soon(client.service.signal_workflow(signal(1)))
        assert caught.value.code is RejectionCode.DEADLINE_EXCEEDED


async def test_refusals_and_bugs_cross_as_what_they_are() -> None:
    service = FakeService()
    refusal = Rejection(code=RejectionCode.WORKFLOW_NOT_FOUND, message="no such run", details={"run_id": "r"})
    async with linked(make_server(service)) as (client, _):
        service.answer = lambda request: RPCError(refusal)
        with pytest.raises(RPCError) as caught:
            await soon(client.service.signal_workflow(signal(1)))
        assert caught.value.rejection == refusal
        service.answer = lambda request: KeyError("oops")
        with pytest.raises(RPCError, match="bug in Clew") as caught:
            await soon(client.service.signal_workflow(signal(1)))
        assert caught.value.code is RejectionCode.INTERNAL


async def test_long_messages_let_short_ones_through() -> None:
    service = FakeService()
    async with linked(make_server(service)) as (client, _):
        long = client.service.signal_workflow(signal(1, 3_000_000))
        short = client.service.signal_workflow(signal(2))
        await soon(long)
        await soon(short)
        assert service.calls == [signal(1, 3_000_000), signal(2)]


async def test_a_message_above_the_limit_is_refused_before_it_is_sent() -> None:
    async with linked(make_server(FakeService(), message_bytes_max=100_000)) as (client, _):
        with pytest.raises(RPCError, match="at most") as caught:
            client.service.signal_workflow(signal(1, 100_000))
        assert caught.value.code is RejectionCode.LIMIT_EXCEEDED
        assert client.connects_count == 1


async def test_cancellation_and_eviction_reach_the_worker() -> None:
    service = FakeService()
    async with linked(make_server(service)) as (client, _):
        sink = Sink()
        await soon(client.service.attach_worker(HELLO, sink))
        service.sessions[0].sink.cancel_activity(TOKEN, r.ActivityCancelReason.CANCEL_REQUESTED)
        service.sessions[0].sink.evict_workflow("n", "r")
        await until(lambda: sink.cancels and sink.evicted)
        assert sink.cancels == [(TOKEN, r.ActivityCancelReason.CANCEL_REQUESTED)]


async def test_who_is_refused_meets_the_refusal() -> None:
    async def admit(hello: Hello, peer: Peer) -> Admission:
        if hello.token != "good":
            raise RPCError(Rejection(code=RejectionCode.WORKFLOW_NOT_READY, message="not with this token"))
        raise AssertionError("nobody has it here")

    with pytest.raises(RPCError, match="not with this token") as caught:
        async with linked(make_server(FakeService(), admit=admit)):
            pass
    assert caught.value.code is RejectionCode.WORKFLOW_NOT_READY


async def test_the_silence_of_an_idle_link_is_broken_by_pings() -> None:
    server = make_server(FakeService(), ping_seconds=0.05, silence_seconds=2.0)
    async with linked(server) as (client, dial):
        wire = dial.wires[-1]
        await until(lambda: wire.frames_count > 45, "pings go out for longer than the silence that is allowed")
        assert client.connects_count == 1
        assert client.now_ns(asyncio.get_running_loop().time()) >= 1
        # Nothing comes through any more, though the connection stands.
        wire.on_frame = lambda frame: None
        assert wire.other is not None
        wire.other.on_frame = lambda frame: None
        await until(lambda: client.connects_count == 2, "the silent connection is given up for another")


async def test_time_limits_of_a_suspended_worker_stay_with_it() -> None:
    """A task that was offered while the connection was broken arrives with the next one."""
    service = FakeService()
    async with linked(make_server(service, release_seconds=5.0)) as (client, dial):
        sink = Sink()
        worker = await soon(client.service.attach_worker(HELLO, sink))
        worker.grant(workflow_tasks=1)
        dial.is_down = True
        dial.cut()
        await asyncio.sleep(0)
        task = r.WorkflowTask(
            token=TOKEN, workflow_type="w", task_queue="q", workflow_task_timeout=timedelta(seconds=3)
        )
        service.sessions[0].sink.offer_workflow_task(task)
        dial.is_down = False
        await until(lambda: sink.workflows == [task])


class Waiting(Reply[Any], eq=False):
    """An answer of the engine that does not come, and notes that nobody waits for it any more."""

    is_abandoned: bool = False

    def abandon(self) -> None:
        self.is_abandoned = True


class WaitingService(FakeService):
    """Answers a call for history with such an answer."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[Waiting] = []

    def get_history(self, request: r.GetHistoryRequest) -> Waiting:
        self.waits.append(Waiting())
        return self.waits[-1]


async def test_an_abandoned_wait_is_taken_back_behind_what_measures_and_authorizes() -> None:
    service: Any = WaitingService()
    guards = Guards(clock=SystemClock(asyncio.get_running_loop()))
    caller = Principal(principal_id="p", grants=(Grant(EVERYWHERE, Role.ADMIN.value),))
    guarded = AuthorizedService(metered(service, Metrics()), caller, guards)
    async with linked(make_server(guarded)) as (client, _):
        request = r.GetHistoryRequest(namespace="n", workflow_id="w", wait_new_event=True)
        waiting = asyncio.create_task(client.service.get_history(request))
        await until(lambda: service.waits)
        assert not service.waits[0].is_abandoned
        waiting.cancel()
        await until(lambda: service.waits[0].is_abandoned)
        await until(lambda: client.service.is_quiet)
