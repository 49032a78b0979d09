"""Signals, updates, queries and patches in the order of history (cases B, C, F of the design)."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from clew import workflow
from clew.exceptions import ApplicationError, NondeterminismError
from clew.model import commands as c
from clew.model import events as e
from clew.model.failure import Failure
from clew.replay import MachineOptions
from clew.service.requests import QueryTask
from tests.unit.replay.story import Story, payloads, value_of

SECOND = timedelta(seconds=1)


async def act(name: str, *args: Any, **options: Any) -> Any:
    return await workflow.execute_activity(name, args=args, start_to_close_timeout=SECOND, **options)


# --- C018: what a handler sees is what had happened -----------------------------------------------


@workflow.defn
class Interleaved:
    def __init__(self) -> None:
        self.running = 0
        self.main_saw = False
        self.finished = False

    @workflow.run
    async def run(self) -> None:
        await act("main")
        self.main_saw = True
        await workflow.wait_condition(lambda: self.finished)

    @workflow.signal
    async def start(self) -> None:
        self.running += 1
        await act("one")
        self.running -= 1

    @workflow.update
    async def resume(self) -> list[Any]:
        seen = [self.running, self.main_saw]
        if self.running == 0:
            await act("two")
        return seen

    @workflow.signal
    def finish(self) -> None:
        self.finished = True


@pytest.mark.parametrize("update_first", [True, False])
@pytest.mark.parametrize("is_one_task", [True, False])
def test_c018_updates_and_results_interleave_as_in_history(update_first: bool, is_one_task: bool) -> None:
    story = Story(Interleaved)
    story.signal("start")
    story.run()
    if update_first:
        story.update("resume", id="u")
        if not is_one_task:
            story.run()
    story.complete_activity("one-1")
    story.complete_activity("main-1")
    if not update_first:
        if not is_one_task:
            story.run()
        story.update("resume", id="u")
    story.run()
    twos = story.find(e.ActivityTaskScheduled, activity_type="two")
    assert len(twos) == (0 if update_first else 1)
    if twos:
        story.complete_activity("two-1")
    story.signal("finish")
    story.run(is_cold=True)
    assert value_of(story.updates["u"].result) == ([1, False] if update_first else [0, True])
    assert story.is_closed
    story.replay_check()


# --- signals are never overtaken by the end of the run --------------------------------------------


@workflow.defn
class Draining:
    def __init__(self) -> None:
        self.queue: list[int] = []

    @workflow.run
    async def run(self, carried: list[int]) -> None:
        self.queue.extend(carried)
        await act("step")
        workflow.continue_as_new(self.queue)

    @workflow.signal
    def put(self, n: int) -> None:
        self.queue.append(n)


def test_c045_run_does_not_end_over_a_signal_of_its_task() -> None:
    story = Story(Draining, [1])
    story.signal("put", 2)
    story.run()
    story.complete_activity("step-1")
    story.signal("put", 3)
    [closed] = story.run()
    assert isinstance(closed, c.ContinueAsNewWorkflowExecution)
    assert sorted(value_of(closed.input)) == [1, 2, 3]
    story.replay_check()


def test_c045_nor_over_one_that_came_while_it_tried_to_end() -> None:
    story = Story(Draining, [1])
    story.run()
    story.complete_activity("step-1")
    started = story.add(e.WorkflowTaskStarted, scheduled_event_id=len(story.events))
    story.add(
        e.WorkflowTaskFailed,
        scheduled_event_id=started.event_id - 1,
        started_event_id=started.event_id,
        cause=e.WorkflowTaskFailedCause.UNHANDLED_COMMAND,
    )
    story.signal("put", 3)
    [closed] = story.run(is_cold=True)
    assert value_of(closed.input) == [1, 3]
    story.replay_check()


# --- C020, C022: patches, mismatches ----------------------------------------------------------------


def rounds(is_new: bool) -> type[Any]:
    @workflow.defn(name="Rounds")
    class Rounds:
        @workflow.run
        async def run(self) -> list[Any]:
            took: list[Any] = []
            for _ in range(6):
                name = "new" if is_new and workflow.patched("p") else "old"
                took.append(name)
                await act(name)
            return [*took, workflow.patched("p") if is_new else None]

    return Rounds


@pytest.mark.parametrize("old_rounds", [0, 3])
def test_c020_a_patch_has_one_answer_for_the_whole_run(old_rounds: int) -> None:
    old, new = rounds(False), rounds(True)
    story = Story(old if old_rounds else new)
    story.run()
    for n in range(6):
        if n == old_rounds:
            story.definition = workflow._definition.Definition.must_from_class(new)
        name = "old" if old_rounds else "new"
        story.complete_activity(f"{name}-{n + 1}")
        story.run(is_cold=True)
    assert story.result() == [name] * 6 + [old_rounds == 0]
    assert len(story.find(e.MarkerRecorded)) == (0 if old_rounds else 1)
    story.replay_check()


def test_patches_can_be_deprecated_and_removed() -> None:
    @workflow.defn(name="W")
    class Patched:
        @workflow.run
        async def run(self) -> None:
            if workflow.patched("p"):
                await act("a")

    @workflow.defn(name="W")
    class Deprecated:
        @workflow.run
        async def run(self) -> None:
            workflow.deprecate_patch("p")
            await act("a")

    @workflow.defn(name="W")
    class Removed:
        @workflow.run
        async def run(self) -> None:
            await act("a")

    stories = [Story(cls) for cls in (Patched, Deprecated, Removed)]
    for story in stories:
        story.run()
        story.complete_activity("a-1")
        story.run()
    patched, deprecated, removed = stories
    patched.replay_check(Deprecated)
    deprecated.replay_check(Removed)
    removed.replay_check(Deprecated)
    with pytest.raises(NondeterminismError, match="patch"):
        patched.replay(Removed)


def variant(change: str) -> type[Any]:
    @workflow.defn(name="Variants")
    class Variants:
        @workflow.run
        async def run(self) -> str:
            if change == "swapped":
                await act("B")
                await act("A")
            else:
                await act("A")
                if change != "removed":
                    await act("C" if change == "replaced" else "B")
            if change == "early":
                return "early"
            if change != "no timer":
                await workflow.sleep(1)
            await workflow.execute_child_workflow("Child", id="child")
            workflow.patched("p")
            if change == "extra":
                await act("D")
            return "other" if change == "result" else "done"

    return Variants


def test_c022_the_replayer_tells_every_difference_and_no_other() -> None:
    story = Story(variant(""))
    story.run()
    story.complete_activity("A-1")
    story.run()
    story.complete_activity("B-1")
    story.run()
    story.fire("1")
    story.run()
    initiated = story.one(e.StartChildWorkflowExecutionInitiated)
    child = e.ExecutionRef("child", "child-run")
    story.add(
        e.ChildWorkflowExecutionStarted,
        initiated_event_id=initiated.event_id,
        workflow_execution=child,
        workflow_type="Child",
    )
    story.run()
    story.add(
        e.ChildWorkflowExecutionCompleted,
        initiated_event_id=initiated.event_id,
        started_event_id=0,
        workflow_execution=child,
        workflow_type="Child",
    )
    story.run()
    story.replay_check()
    story.replay_check(variant("result"))  # results are not compared
    expected = {"swapped": 5, "replaced": 11, "removed": 11, "extra": 33, "no timer": 17, "early": 17}
    for change, event_id in expected.items():
        with pytest.raises(NondeterminismError) as caught:
            story.replay(variant(change))
        assert caught.value.event_id == event_id, change
        assert "test_messages.py" in caught.value.source_line, change


# --- C023, C024 ----------------------------------------------------------------------------------------


class Drawing(workflow.WorkflowInboundInterceptor):
    def init(self, outbound: workflow.WorkflowOutboundInterceptor) -> None:
        super().init(DrawingOut(outbound))

    async def execute_workflow(self, input: workflow.ExecuteWorkflowInput) -> Any:
        workflow.uuid4()
        return await super().execute_workflow(input)


class DrawingOut(workflow.WorkflowOutboundInterceptor):
    def start_activity(self, input: workflow.StartActivityInput) -> workflow.ActivityHandle[Any]:
        workflow.uuid4()
        workflow.random().random()
        return super().start_activity(input)


@workflow.defn
class Drawn:
    @workflow.run
    async def run(self) -> list[str]:
        ids = []
        for _ in range(4):
            ids.append(str(workflow.uuid4()))
            await act("use", ids[-1])
        return [*ids, str(workflow.random().randint(0, 10**9)), str(workflow.uuid7())[:13]]


def test_c023_interceptors_do_not_shift_what_the_workflow_draws() -> None:
    results = []
    for order in ([], [Drawing]), ([Drawing], []), ([], []):
        story = Story(Drawn, options=MachineOptions(interceptors=order[0]))
        story.run()
        for n in range(4):
            if n == 2:
                story.options = MachineOptions(interceptors=order[1])
            story.complete_activity(f"use-{n + 1}")
            story.run(is_cold=True)
        results.append(story.result())
        story.replay_check()
    assert results[0] == results[1] == results[2]
    assert len(set(results[0])) == 6


SEEN: list[bool] = []


@workflow.defn
class Logging:
    @workflow.run
    async def run(self) -> None:
        for n in range(5):
            workflow.logger.info("line %d", n)
            await act("a")

    @workflow.query
    def ask(self) -> str:
        SEEN.append(workflow.unsafe.is_replaying())
        workflow.logger.info("asked")
        return "answer"


def test_c024_each_line_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="clew.workflow")
    SEEN.clear()
    story = Story(Logging)
    story.run()
    for n in range(5):
        assert story.query("ask", is_cold=True) == "answer"
        story.complete_activity(f"a-{n + 1}")
        result = story.task(is_cold=True, queries=(QueryTask(query_id="1", query_type="ask"),))
        assert value_of(result.completion.query_results[0].result) == "answer"  # type: ignore[union-attr]
    assert story.query("ask", is_cold=True) == "answer"
    lines = [r.getMessage().split(" (")[0] for r in caplog.records]
    assert [x for x in lines if x.startswith("line")] == [f"line {n}" for n in range(5)]
    assert lines.count("asked") == 11
    assert SEEN == [True] * 11
    assert caplog.records[0].__dict__["temporal_workflow"]["run_id"] == "run-1"


# --- C029: cancelling what is over, twice ---------------------------------------------------------------


@workflow.defn
class Twice:
    @workflow.run
    async def run(self) -> int:
        self.handle: workflow.ActivityHandle[Any] = workflow.start_activity("h", start_to_close_timeout=SECOND)
        self.timer = asyncio.create_task(workflow.sleep(10))
        outcomes = await asyncio.gather(self.handle, self.timer, return_exceptions=True)
        task = asyncio.current_task()
        assert task is not None
        return sum(isinstance(o, BaseException) for o in outcomes) * 10 + task.cancelling()

    @workflow.signal
    def stop(self) -> None:
        self.handle.cancel()
        self.handle.cancel()
        self.timer.cancel()


@pytest.mark.parametrize("signal_first", [True, False])
def test_c029_what_is_over_is_not_cancelled(signal_first: bool) -> None:
    story = Story(Twice)
    story.run()
    if signal_first:
        story.signal("stop")
    story.complete_activity("h-1")
    story.fire("1")
    if not signal_first:
        story.signal("stop")
    [done] = story.run()
    assert isinstance(done, c.CompleteWorkflowExecution)
    assert story.result() == (20 if signal_first else 0)
    story.replay_check()


def test_c029_cancel_of_handle_and_run_asks_once() -> None:
    story = Story(Twice)
    story.run()
    story.signal("stop")
    story.request_cancel()
    commands = story.run()
    assert [type(x) for x in commands] == [
        c.RequestCancelActivityTask,
        c.CancelTimer,
        c.CompleteWorkflowExecution,
    ]
    story.replay_check()


# --- C046, C047, C051 ------------------------------------------------------------------------------------


class Money(msgspec.Struct):
    amount: int


@workflow.defn
class Picky:
    def __init__(self) -> None:
        self.got: list[int] = []
        self.late: list[str] = []

    @workflow.run
    async def run(self) -> list[Any]:
        await workflow.wait_condition(lambda: bool(self.got))
        workflow.set_signal_handler("later", self.late.append)
        return [*self.got, *self.late]

    @workflow.signal
    def pay(self, money: Money) -> None:
        self.got.append(money.amount)

    @workflow.signal
    def bug(self) -> None:
        raise ValueError("handler bug")

    @workflow.signal
    def refuse(self) -> None:
        raise ApplicationError("handler refuses", type="Refused")


def test_c046_bad_signals_are_kept_and_told(caplog: pytest.LogCaptureFixture) -> None:
    story = Story(Picky)
    story.signal("pay", {"amount": "much"})
    story.signal("pay", raw=(msgspec.Raw(b'{"$payload":{"metadata":{"encoding":"b2RkL29uZQ=="},"data":"AA=="}}'),))
    story.signal("pay")
    story.signal("later", "hello")
    result = story.task()
    waiting = result.completion.waiting_on  # type: ignore[union-attr]
    assert len([x for x in waiting if "is kept" in x]) == 4
    assert len([r for r in caplog.records if "signal_kept" in r.getMessage()]) == 4
    assert all("run_id=run-1" in r.getMessage() for r in caplog.records)
    story.signal("pay", {"amount": 5})
    story.run(is_cold=True)
    assert story.result() == [5, "hello"]
    assert len(caplog.records) == 4
    story.replay_check()
    story = Story(Picky)
    story.signal("bug")
    assert "handler bug" in story.failure().message
    story = Story(Picky)
    story.signal("refuse")
    story.run()
    assert story.close_failure().message == "handler refuses"
    story.replay_check()


class Slow(workflow.WorkflowInboundInterceptor):
    async def execute_workflow(self, input: workflow.ExecuteWorkflowInput) -> Any:
        await workflow.execute_activity("slow", start_to_close_timeout=SECOND)
        return await super().execute_workflow(input)


@workflow.defn
class Ordered:
    @workflow.init
    def __init__(self, start: str) -> None:
        self.log = []
        self.start = start

    @workflow.run
    async def run(self, start: str) -> list[str]:
        self.log.append("run")
        await workflow.wait_condition(lambda: "finish" in self.log)
        return self.log

    @workflow.signal
    def s(self, name: str) -> None:
        self.log.append(name)

    @workflow.update
    def u(self, name: str) -> int:
        self.log.append(self.start + name)
        return len(self.log)

    @u.validator
    def check(self, name: str) -> None:
        if name == "bad":
            raise ValueError("bad name")
        if name == "naughty":
            self.log = []


@pytest.mark.parametrize("is_slow", [False, True])
def test_c047_handlers_run_in_the_order_of_arrival_on_a_finished_object(is_slow: bool) -> None:
    story = Story(Ordered, "x", options=MachineOptions(interceptors=[Slow] if is_slow else []))
    story.signal("s", "1")
    story.update("u", "A", id="A")
    story.signal("s", "2")
    story.update("u", "B", id="B")
    story.run()
    assert value_of(story.updates["A"].result) == 2
    assert value_of(story.updates["B"].result) == 4
    if is_slow:
        story.complete_activity("slow-1")
    story.signal("s", "finish")
    story.run(is_cold=True)
    assert story.result()[:4] == ["1", "xA", "2", "xB"]
    story.replay_check()


def test_refused_updates_leave_nothing() -> None:
    story = Story(Ordered, "x")
    story.run()
    story.update("u", "bad", id="bad")
    story.update("u", "naughty", id="naughty")
    story.update("nope", id="nope")
    story.update("u", id="args")
    before = len(story.events)
    assert story.run() == []
    assert len(story.events) == before + 3
    failures = {k: v for k, v in story.updates.items() if isinstance(v, Failure)}
    assert "bad name" in failures["bad"].message
    assert "self.log" in failures["naughty"].message
    assert "it has: u" in failures["nope"].message
    assert "check" in failures["args"].message or "u()" in failures["args"].message
    story.signal("s", "finish")
    story.run()
    assert story.result() == ["run", "finish"]
    story.replay_check()


@workflow.defn
class Unfinished:
    def __init__(self) -> None:
        self.go = False
        self.list: list[int] = []

    @workflow.run
    async def run(self, waits: bool) -> list[int]:
        await workflow.wait_condition(lambda: self.go)
        if waits:
            await workflow.wait_condition(workflow.all_handlers_finished)
        return self.list

    @workflow.signal
    def finish(self) -> None:
        self.go = True

    @workflow.signal
    async def slow(self, n: int) -> None:
        await act("a")
        self.list.append(n)

    @workflow.update
    async def up(self) -> str:
        await act("b")
        info = workflow.current_update_info()
        return info.id if info else "?"

    @workflow.signal(unfinished_policy=workflow.HandlerUnfinishedPolicy.ABANDON)
    async def quiet(self) -> None:
        await act("c")


@pytest.mark.parametrize("waits", [True, False])
def test_c051_unfinished_handlers_are_named(waits: bool, caplog: pytest.LogCaptureFixture) -> None:
    story = Story(Unfinished, waits)
    story.signal("slow", 1)
    story.update("up", id="U")
    if not waits:
        story.signal("quiet")
    story.signal("finish")
    story.run()
    if waits:
        story.complete_activity("b-1")
        story.run()
        story.complete_activity("a-1")
        story.run(is_cold=True)
        assert value_of(story.updates["U"].result) == "U"
        assert story.result() == [1]
    warnings = [r.getMessage() for r in caplog.records if "unfinished_handlers" in r.getMessage()]
    assert len(warnings) == (0 if waits else 1)
    assert waits or ("signal 'slow'" in warnings[0] and "update 'up' (U)" in warnings[0] and "quiet" not in warnings[0])
    story.replay_check()


@workflow.defn(dynamic=True)
class Dynamic:
    def __init__(self) -> None:
        self.seen: list[Any] = []

    @workflow.run
    async def run(self, args: Any) -> list[Any]:
        self.seen.append([workflow.info().workflow_type, workflow.payload_converter().from_payload(args[0].payload)])
        await workflow.wait_condition(lambda: len(self.seen) == 3)
        return self.seen

    @workflow.signal(dynamic=True)
    def any_signal(self, name: str, args: Any) -> None:
        self.seen.append([name, len(args)])

    @workflow.query(dynamic=True)
    def any_query(self, name: str, args: Any) -> str:
        return name

    @workflow.update(dynamic=True)
    def any_update(self, name: str, args: Any) -> str:
        self.seen.append(name)
        return name


def test_dynamic_handlers() -> None:
    story = Story(Dynamic, 7, workflow_type="Whatever")
    story.run()
    story.signal("sig", 1, 2)
    story.update("upd", id="x")
    assert story.query("qq") == "qq"
    story.run(is_cold=True)
    assert story.result() == [["Whatever", 7], ["sig", 2], "upd"]
    story.replay_check()


def test_metadata_query() -> None:
    story = Story(Ordered, "x")
    story.run()
    found = story.query("__temporal_workflow_metadata")
    assert found["definition"]["type"] == "Ordered"
    assert found["definition"]["signalDefinitions"] == [{"name": "s"}]
    assert payloads  # the helper is used by this module's signals


@workflow.defn
class Permuted:
    ORDER = ("a", "b", "c")

    @workflow.run
    async def run(self) -> None:
        for word in self.ORDER:
            await act("echo", word)


def test_c001_requests_that_trade_places_are_a_mismatch_changed_arguments_are_not() -> None:
    story = Story(Permuted)
    story.run()
    for n in range(3):
        story.complete_activity(f"echo-{n + 1}")
        story.run()
    try:
        Permuted.ORDER = ("a", "B", "C")
        story.replay_check()
        Permuted.ORDER = ("c", "a", "b")
        with pytest.raises(NondeterminismError, match="order of requests"):
            story.replay()
    finally:
        Permuted.ORDER = ("a", "b", "c")
    story.replay_check()


def test_patches_are_listed_for_search_and_history_may_lack_the_list() -> None:
    @workflow.defn(name="W")
    class Patched:
        @workflow.run
        async def run(self) -> None:
            workflow.patched("one")
            await act("a")
            workflow.patched("two")

    story = Story(Patched)
    commands = story.run()
    assert [type(x) for x in commands] == [c.RecordMarker, c.UpsertSearchAttributes, c.ScheduleActivityTask]
    story.complete_activity("a-1")
    commands = story.run(is_cold=True)
    assert [type(x) for x in commands] == [c.RecordMarker, c.UpsertSearchAttributes, c.CompleteWorkflowExecution]
    assert b'["one","two"]' in _plain(commands[1].search_attributes["TemporalChangeVersion"])
    story.replay_check()
    lists = story.find(e.UpsertWorkflowSearchAttributes)
    kept = [event for event in story.events if event not in lists]
    ids = {event.event_id: n for n, event in enumerate(kept, 1)}
    story.events = [msgspec.structs.replace(event, event_id=ids[event.event_id]) for event in kept]
    scheduled = story.one(e.ActivityTaskScheduled)
    story.events = [
        msgspec.structs.replace(x, scheduled_event_id=scheduled.event_id)
        if isinstance(x, (e.ActivityTaskStarted, e.ActivityTaskCompleted))
        else x
        for x in story.events
    ]
    story.replay()


def _plain(stored: Any) -> bytes:
    from clew.model.payload import from_stored

    return from_stored(stored).data
