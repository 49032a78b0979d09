"""What the simulation found, and what it finds too rarely, each pinned by a small test that needs no seed.

Owns: `REGRESSIONS`: by the name of the planted fault that takes its mend back, a function that fails while it is taken
back. A plan in ``found/`` shows the same in the world where it was seen, but only as long as the engine does everything
in the order of that day; these do not depend on it.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import tempfile
from collections.abc import Awaitable, Callable, Coroutine
from datetime import timedelta
from typing import Any, cast

import msgspec
import pytest

from clew import workflow
from clew.engine.ids import IdBlocks, TimedIds
from clew.engine.matching import CLAIM_LEASE, CLAIM_RETRY_SECONDS
from clew.engine.starts import shard_of
from clew.model import commands as c
from clew.model.events import WorkflowTaskFailedCause
from clew.model.failure import ApplicationInfo, Failure
from clew.model.policies import ParentClosePolicy, RetryPolicy
from clew.ports.store import Store, StoreFull, StoreUnavailable
from clew.replay import LocalActivityOutcome, LocalActivityRequest, MachineOptions
from clew.service import requests as r
from clew.service.errors import RPCError
from clew.testing import ManualClock
from tests.conformance.service.scripted import ScriptedWorker, Shop, payloads, soon
from tests.fleet.shop import SHARD_COUNT, FleetShop, Node
from tests.simulation.again_faults import AGAIN_REGRESSIONS
from tests.simulation.asking_regressions import (
    a_caller_looks_again_while_an_acceptance_is_on_its_way,
    a_node_updates_a_run_that_another_node_has_replaced,
    a_poll_asks_for_an_acceptance_that_is_not_durable_yet,
    a_question_is_asked_twice,
    a_question_is_asked_while_an_answer_is_on_its_way,
    a_question_is_refused_for_a_close_that_is_not_durable_yet,
    a_result_is_asked_for_of_a_run_whose_start_is_lost,
    a_run_closes_with_an_update_that_a_caller_knows_as_accepted,
)
from tests.simulation.early_regressions import EARLY_REGRESSIONS
from tests.simulation.far_faults import FAR_REGRESSIONS
from tests.simulation.faulty_shop import FaultyShop, in_shop, until
from tests.simulation.late_regressions import LATE_REGRESSIONS
from tests.simulation.lifecycle_regressions import LIFECYCLE_REGRESSIONS
from tests.simulation.store_regressions import STORE_REGRESSIONS
from tests.unit.replay.story import Story, WorkerDied
from tests.unit.replay.story import payloads as story_payloads

SECOND = timedelta(seconds=1)
CAUSE = WorkflowTaskFailedCause.WORKFLOW_WORKER_UNHANDLED_FAILURE


def start_request(request_id: str) -> r.StartWorkflowRequest:
    return r.StartWorkflowRequest(
        namespace="default", workflow_id="w1", workflow_type="W", task_queue="q", request_id=request_id
    )


# --- starts, signals and cancels that are sent again ------------------------------------------------------------------


async def a_signal_with_start_is_sent_again_after_its_run_has_closed(shop: Shop) -> None:
    """It had signalled a run which somebody else started; the repeat was taken for a new start."""
    started = await shop.start(request_id="other")
    request = r.SignalWithStartRequest(start=start_request("one"), signal_name="s", signal_input=payloads(1))
    told = await soon(shop.service.signal_with_start(request))
    assert told.run_id == started.run_id
    worker = await shop.worker()
    await worker.complete(await worker.workflow_task(), c.CompleteWorkflowExecution(result=payloads(1)))
    again = await soon(shop.service.signal_with_start(request))
    assert (again.run_id, again.started) == (started.run_id, False)


async def _go_on_as_new(worker: ScriptedWorker) -> None:
    command = c.ContinueAsNewWorkflowExecution(workflow_type="W", task_queue="q", input=payloads(2))
    await worker.complete(await worker.workflow_task(), command)


async def a_start_is_sent_again_after_its_run_went_on_and_closed(shop: Shop) -> None:
    """The last run of the chain did not know the start of the first."""
    worker = await shop.worker()
    await shop.start(request_id="one")
    await _go_on_as_new(worker)
    shop.advance(2)  # A run that goes on at once is made to wait a little.
    await worker.complete(await worker.workflow_task(), c.CompleteWorkflowExecution(result=payloads(1)))
    again = await shop.start(request_id="one")
    assert not again.started


async def a_cancel_is_sent_again_after_its_run_went_on(shop: Shop) -> None:
    """It reached the run after the one whose code had taken it."""
    worker = await shop.worker()
    await shop.start(request_id="one")
    task = await worker.workflow_task()
    cancel = r.RequestCancelRequest(namespace="default", workflow_id="w1", request_id="cancel", reason="enough")
    await soon(shop.service.request_cancel_workflow(cancel))
    await worker.complete(task)
    await _go_on_as_new(worker)
    task = await worker.workflow_task()
    await soon(shop.service.request_cancel_workflow(cancel))
    await worker.complete(task)
    assert "WorkflowExecutionCancelRequested" not in await shop.event_types()


# --- workflow code and signals ----------------------------------------------------------------------------------------


@workflow.defn
class EndsAfterAStep:
    """Gives what was signalled until its one step was done."""

    def __init__(self) -> None:
        self.notes: list[int] = []

    @workflow.run
    async def run(self) -> list[int]:
        await workflow.execute_local_activity("step", start_to_close_timeout=SECOND)
        return self.notes

    @workflow.signal
    def note(self, number: int) -> None:
        self.notes.append(number)


def _done(request: LocalActivityRequest) -> LocalActivityOutcome:
    return LocalActivityOutcome(sequence=request.sequence, result=story_payloads(None))


async def a_signal_comes_between_a_recorded_step_and_the_next_attempt() -> None:
    """The run came to its end before the handler of the signal had its turn."""
    story = Story(EndsAfterAStep, options=MachineOptions(runs_local_activities=True))
    story.local = _done
    story.dies_after_record = 1
    with pytest.raises(WorkerDied):
        story.run()
    story.signal("note", 7)
    story.run()
    assert story.result() == [7]
    story.replay_check()


async def a_step_that_is_recorded_is_not_run_again() -> None:
    """The next attempt goes on behind it."""
    story = Story(EndsAfterAStep, options=MachineOptions(runs_local_activities=True))
    story.local = _done
    story.dies_after_record = 1
    with pytest.raises(WorkerDied):
        story.run()
    story.run()
    assert len(story.local_runs) == 1


@workflow.defn
class EndsAfterAnActivity:
    """Gives what was signalled until its one activity was done."""

    def __init__(self) -> None:
        self.notes: list[int] = []

    @workflow.run
    async def run(self) -> list[int]:
        await workflow.execute_activity("work", start_to_close_timeout=SECOND)
        return self.notes

    @workflow.signal
    async def note(self, number: int) -> None:
        await asyncio.sleep(0)
        self.notes.append(number)


async def a_signal_comes_with_what_ends_the_run() -> None:
    """The run stands back until its handler has had its turn."""
    story = Story(EndsAfterAnActivity)
    story.run()
    story.complete_activity("work-1")
    story.signal("note", 7)
    story.run()
    assert story.result() == [7]


@workflow.defn
class EndsWhenHandlersAreDone:
    """Ends when it may and no handler is at work."""

    def __init__(self) -> None:
        self.may_end = False

    @workflow.run
    async def run(self) -> None:
        await workflow.wait_condition(lambda: self.may_end and workflow.all_handlers_finished())

    @workflow.signal
    def end(self) -> None:
        self.may_end = True

    @workflow.signal
    async def work(self) -> None:
        await workflow.execute_activity("work", start_to_close_timeout=SECOND)


async def a_condition_holds_until_the_next_signal_begins_its_handler() -> None:
    """The run went on for what the first of two signals had made true, over the handler of the second."""
    story = Story(EndsWhenHandlersAreDone)
    story.run()
    story.signal("end")
    story.signal("work")
    story.run()
    assert story.kinds()[-1] == "ActivityTaskScheduled", "the handler of the second signal is at work"
    story.complete_activity("work-1")
    story.run()
    assert story.is_closed
    story.replay_check()


# --- an engine on a store with faults ---------------------------------------------------------------------------------


async def _is_let_go(worker: ScriptedWorker, workflow_id: str) -> None:
    """The run gets a workflow task, whatever others get before."""
    while (await worker.workflow_task()).token.workflow_id != workflow_id:
        worker.grant()


async def _start_child(worker: ScriptedWorker, policy: ParentClosePolicy) -> None:
    command = c.StartChildWorkflowExecution(
        workflow_id="child", workflow_type="W", task_queue="q", parent_close_policy=policy
    )
    await worker.complete(await worker.workflow_task(), command)


def _terminate(shop: Shop) -> Awaitable[None]:
    return shop.service.terminate_workflow(r.TerminateWorkflowRequest(namespace="default", workflow_id="w1"))


async def a_parent_closes_while_its_child_is_started(shop: FaultyShop) -> None:
    """The child stood still for ever: nobody let it go, and it was not dealt with by its parent's close policy."""
    worker = await shop.worker()
    await shop.start()
    outbox: Any = shop.engine._outbox
    tell = outbox._tell

    async def close_first(*args: Any) -> None:
        outbox._tell = tell
        await soon(_terminate(shop))
        await tell(*args)

    outbox._tell = close_first
    await _start_child(worker, ParentClosePolicy.ABANDON)
    await _is_let_go(worker, "child")


async def a_close_is_refused_by_the_store_while_a_child_is_started(shop: FaultyShop) -> None:
    """The start was given up for a close that then did not happen."""
    worker = await shop.worker()
    await shop.start()
    outbox: Any = shop.engine._outbox
    event_of = outbox._event
    closing: list[asyncio.Future[None]] = []

    async def close_meanwhile(parent: Any, event_id: int) -> Any:
        outbox._event = event_of
        event = await event_of(parent, event_id)
        shop.faults.fail("commit_if_current", StoreFull("no room"), times=1)
        closing.append(asyncio.ensure_future(_terminate(shop)))
        await until(lambda: not parent.state.is_open)
        return event

    outbox._event = close_meanwhile
    await _start_child(worker, ParentClosePolicy.ABANDON)
    await _is_let_go(worker, "child")
    await asyncio.gather(*closing, return_exceptions=True)


async def a_claim_is_made_and_its_answer_lost(shop: FaultyShop) -> None:
    """The task was looked for again by the loop's time, not by that of the clock by which the claim ends."""
    await shop.start()
    await shop.settle()
    shop.faults.lose_answer("claim_tasks", StoreUnavailable("the answer is lost"))
    worker = await shop.worker()
    # For activities, for the workflow task, and for that once more: it is claimed.
    await until(lambda: shop.faults.calls["claim_tasks"] >= 3)
    await shop.settle()
    shop.advance(CLAIM_LEASE.total_seconds() + 2 * CLAIM_RETRY_SECONDS)
    assert (await worker.workflow_task()).token.workflow_id == "w1"


async def a_signal_with_start_is_sent_twice_at_once(shop: FaultyShop) -> None:
    """The second was answered when the first was decided, and not yet durable."""
    await shop.start(request_id="other")
    held = shop.faults.hold("commit_if_current", times=1)
    first, second = (asyncio.ensure_future(shop.service.signal_with_start(_signal_with_start())) for _ in range(2))
    await until(lambda: held.held_count == 1)
    for _ in range(50):
        await asyncio.sleep(0)
    is_early = first.done() or second.done()
    held.release()
    answers = await soon(asyncio.gather(first, second))
    assert not is_early
    assert len({answer.run_id for answer in answers}) == 1


def _signal_with_start() -> r.SignalWithStartRequest:
    return r.SignalWithStartRequest(start=start_request("one"), signal_name="s", signal_input=payloads(1))


async def the_store_refuses_a_commit_while_an_engine_starts() -> None:
    """A date was counted back from the first that there is, and the start waited for ever."""
    with tempfile.TemporaryDirectory() as folder:
        shop = FaultyShop(f"sqlite:{folder}/shop.db")
        await shop.open()
        worker = await shop.worker()
        await shop.start()
        await worker.workflow_task()
        await shop.close()
        # The worker is gone, so its task is given back while the engine starts; if that fails, so does the start.
        shop.faults.fail("commit_if_current", StoreUnavailable("away"))
        with pytest.raises(RPCError, match="away"):
            await soon(shop.open())
        await shop.close()


async def _fail_next_task(shop: FleetShop, node: Node) -> None:
    """A worker of this node comes, fails a workflow task and goes; the next attempt is queued."""
    worker = await shop.worker(node)
    task = await worker.workflow_task()
    failure = Failure(message="not yet", info=ApplicationInfo(type="NotYet"))
    await soon(
        node.engine.fail_workflow_task(r.FailWorkflowTaskRequest(token=task.token, cause=CAUSE, failure=failure))
    )
    assert worker.session is not None
    worker.session.detach()
    await shop.settle()
    shop.advance(20)
    await shop.settle()


async def a_node_claims_a_task_that_it_remembers_otherwise() -> None:
    """It was refused the start of an attempt it did not know of, and removed the task."""
    shop = FleetShop(nodes=2)
    await shop.open()
    try:
        first, second = shop.nodes
        # A run whose deadlines the second node sees to, and which the first remembers.
        workflow_id = next(f"w{n}" for n in range(100) if shard_of("default", f"w{n}", SHARD_COUNT) in second.shards)
        await soon(first.engine.start_workflow(msgspec.structs.replace(start_request("one"), workflow_id=workflow_id)))
        await _fail_next_task(shop, first)
        # From the second attempt on a task has no events of its own, and so the id of the one before.
        shop.exchange.is_lossy = True
        await _fail_next_task(shop, second)
        third = await shop.worker(first)
        assert (await third.workflow_task()).attempt == 3
    finally:
        await shop.close()


# --- faults that a bounded search for a seed did not show -------------------------------------------------------------


async def a_task_is_claimed_and_its_start_not_durable_yet() -> None:
    """The row is all that is known of the task until then, should the node die."""
    with tempfile.TemporaryDirectory() as folder:
        shop = FaultyShop(f"sqlite:{folder}/shop.db")
        await shop.open()
        try:
            await shop.start()
            await shop.settle()
            held = shop.faults.hold("commit_if_current", times=1)
            await shop.worker()
            await until(lambda: held.held_count == 1)
            with contextlib.closing(sqlite3.connect(f"{folder}/shop.db")) as store:
                rows = store.execute("SELECT count(*) FROM tasks").fetchone()
            held.release()
            assert rows == (1,)
        finally:
            await shop.close()


async def a_call_is_refused_for_a_close_that_is_not_durable_yet(shop: FaultyShop) -> None:
    """The refusal has to wait for the commit that it rests on."""
    await shop.start()
    held = shop.faults.hold("commit_if_current", times=1)
    closing = asyncio.ensure_future(_terminate(shop))
    await until(lambda: held.held_count == 1)
    signal = asyncio.ensure_future(shop.signal("late"))
    for _ in range(50):
        await asyncio.sleep(0)
    is_early = signal.done()
    held.release()
    await soon(closing)
    with pytest.raises(RPCError, match=r"closed|completed"):
        await signal
    assert not is_early


async def a_run_goes_on_as_new(shop: FaultyShop) -> None:
    """Its close and the run that follows are one unit of the store."""
    units: list[int] = []
    store: Any = shop.engine._pipeline._store
    commit = store.commit_if_current

    def commit_if_current(rows: Any) -> Any:
        units.extend(len(unit) for unit in rows)
        return commit(rows)

    worker = await shop.worker()
    await shop.start()
    task = await worker.workflow_task()
    store.commit_if_current = commit_if_current
    await worker.complete(task, c.ContinueAsNewWorkflowExecution(workflow_type="W", task_queue="q", input=payloads(2)))
    assert 2 in units


async def a_worker_answers_a_task_that_it_lost(shop: FaultyShop) -> None:
    """The attempt is the same, the lease is not."""
    worker = await shop.worker()
    await shop.start()
    task = await worker.workflow_task()
    stale = msgspec.structs.replace(task.token, lease_id=task.token.lease_id + 1)
    with pytest.raises(RPCError):
        await soon(shop.service.complete_workflow_task(r.CompleteWorkflowTaskRequest(token=stale)))


async def a_signal_is_sent_again_after_its_run_went_on(shop: FaultyShop) -> None:
    """The chain knows what it has taken."""
    worker = await shop.worker()
    await shop.start(request_id="one")
    task = await worker.workflow_task()
    await shop.signal("s", request_id="signal")
    await worker.complete(task)
    await _go_on_as_new(worker)
    shop.advance(2)
    task = await worker.workflow_task()
    await shop.signal("s", request_id="signal")
    await worker.complete(task)
    assert "WorkflowExecutionSignaled" not in await shop.event_types()


async def an_attempt_reports_that_is_not_the_last(shop: FaultyShop) -> None:
    """Its outcome came after it had failed, and another one was begun."""
    worker = await shop.worker()
    await shop.start()
    command = c.ScheduleActivityTask(
        activity_id="a", activity_type="A", task_queue="q", start_to_close_timeout=60 * SECOND,
        retry_policy=RetryPolicy(initial_interval=SECOND),
    )  # fmt: skip
    await worker.complete(await worker.workflow_task(), command)
    first = await worker.activity_task()
    failure = Failure(message="not yet", info=ApplicationInfo(type="NotYet"))
    await soon(shop.service.fail_activity(r.FailActivityRequest(token=first.token, failure=failure)))
    worker.grant()
    shop.advance(2)
    assert (await worker.activity_task()).attempt == 2
    with pytest.raises(RPCError):
        await soon(shop.service.complete_activity(r.CompleteActivityRequest(token=first.token)))


# --- versions ---------------------------------------------------------------------------------------------------------


class _Blocks:
    """The part of a store that gives blocks of ids."""

    async def reserve_run_keys(self, count: int) -> int:
        return 1

    reserve_task_ids = reserve_run_keys


async def two_writes_are_decided_on_the_same_version() -> None:
    """Both got the same version, so that a third found what it expected, of another write."""
    blocks = IdBlocks(cast("Store", cast("Any", _Blocks())))
    versions = [blocks.version_after(version) for version in (3, 3, 2)]
    assert len(set(versions)) == 3
    assert all(new > old for new, old in zip(versions, (3, 3, 2), strict=True))


async def two_nodes_decide_on_the_same_version() -> None:
    """Both gave what follows it the same one, and each took the write of the other for its own."""
    clock = ManualClock().attach(asyncio.get_running_loop())
    nodes = [TimedIds(clock), TimedIds(clock)]
    for number, node in enumerate(nodes):
        node.renumber(number)
    assert len({node.version_after(3) for node in nodes}) == 2


def _shop(check: Callable[[FaultyShop], Awaitable[None]]) -> Callable[[], Coroutine[Any, Any, None]]:
    return lambda: in_shop(check)


FAILURES: tuple[type[BaseException], ...] = (AssertionError, TimeoutError, OverflowError, pytest.fail.Exception)
"""How a regression fails."""

REGRESSIONS: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
    "once-repeat-tried-for-ever": _shop(a_signal_with_start_is_sent_again_after_its_run_has_closed),
    "chain-forgets-starts": _shop(a_start_is_sent_again_after_its_run_went_on_and_closed),
    "once-cancel-reaches-the-next-run": _shop(a_cancel_is_sent_again_after_its_run_went_on),
    "once-end-over-signals": a_signal_comes_between_a_recorded_step_and_the_next_attempt,
    "once-condition-over-handler": a_condition_holds_until_the_next_signal_begins_its_handler,
    "once-child-left-behind": _shop(a_parent_closes_while_its_child_is_started),
    "once-close-believed-too-early": _shop(a_close_is_refused_by_the_store_while_a_child_is_started),
    "once-lost-claim-by-the-wrong-clock": _shop(a_claim_is_made_and_its_answer_lost),
    "once-answered-when-decided": _shop(a_signal_with_start_is_sent_twice_at_once),
    "once-start-fails-for-ever": the_store_refuses_a_commit_while_an_engine_starts,
    "once-task-dropped-for-a-stale-memory": a_node_claims_a_task_that_it_remembers_otherwise,
    "once-versions-counted": two_writes_are_decided_on_the_same_version,
    "once-another-nodes-version": two_nodes_decide_on_the_same_version,
    "refusal-before-commit": _shop(a_call_is_refused_for_a_close_that_is_not_durable_yet),
    "close-and-successor-apart": _shop(a_run_goes_on_as_new),
    "once-abandoned-though-done": _shop(a_run_closes_with_an_update_that_a_caller_knows_as_accepted),
    "row-lost-with-its-claim": a_task_is_claimed_and_its_start_not_durable_yet,
    "recorded-step-runs-again": a_step_that_is_recorded_is_not_run_again,
    "signals-after-the-end": a_signal_comes_with_what_ends_the_run,
    "stale-read": _shop(a_question_is_asked_twice),
    "poll-told-before-durable": _shop(a_poll_asks_for_an_acceptance_that_is_not_durable_yet),
    "once-woken-before-durable": _shop(a_caller_looks_again_while_an_acceptance_is_on_its_way),
    "once-asked-before-durable": _shop(a_question_is_asked_while_an_answer_is_on_its_way),
    "question-refused-before-durable": _shop(a_question_is_refused_for_a_close_that_is_not_durable_yet),
    "once-update-refused-for-a-replaced-run": a_node_updates_a_run_that_another_node_has_replaced,
    "once-waited-for-a-lost-start": _shop(a_result_is_asked_for_of_a_run_whose_start_is_lost),
    "chain-forgets-signals": _shop(a_signal_is_sent_again_after_its_run_went_on),
    "any-attempt-may-report": _shop(an_attempt_reports_that_is_not_the_last),
    "any-worker-may-answer": _shop(a_worker_answers_a_task_that_it_lost),
    **AGAIN_REGRESSIONS,
    **EARLY_REGRESSIONS,
    **FAR_REGRESSIONS,
    **LATE_REGRESSIONS,
    **LIFECYCLE_REGRESSIONS,
    **STORE_REGRESSIONS,
}
