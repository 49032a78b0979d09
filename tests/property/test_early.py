"""Workflow tasks given out before their cause is durable show nothing of it, and leave nothing behind when it is lost.

Seeded scripts drive an engine whose store loses guards and fails, with a worker that takes some tasks early and answers
some of those before their cause is written, some while it is on its way, and some after. The worker keeps what it has
been told of each run, as a cached machine does. The laws:

* an activity goes out, a task is confirmed, and a caller is answered, only when what stands behind it is stored;
* an answer that was taken came from a worker that had been told exactly what the history says before it;
* an update's caller is told that it is completed only when that is stored, and nothing is stored of a rejected one;
* what a worker has cached of a run is the beginning of that run's history, or it was told to forget it.
"""

from __future__ import annotations

import asyncio
import unittest.mock
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta
from random import Random
from typing import Any, Final

import pytest

from clew.engine import Engine
from clew.engine.early import EarlyTasks
from clew.engine.runs import RunEntry
from clew.model import commands as c
from clew.model import events as e
from clew.model import inputs as i
from clew.model.failure import Failure
from clew.service import requests as r
from clew.service.errors import RPCError
from tests.property.test_express import (
    ACTIONS,
    LIMITS,
    PAYLOADS,
    QUEUE,
    TURN,
    WORKFLOW_IDS,
    Action,
    CountingEntropy,
    Player,
    RecordingSink,
    ScriptedClock,
    ScriptedStore,
)

SEEDS: Final = 15
"""Scripts in each group of the test."""


class TickingClock(ScriptedClock):
    """No two looks see the same instant, so that leases of tasks that were decided twice can be told apart."""

    def now(self) -> datetime:
        self.instant += timedelta(microseconds=1)
        return self.instant


class EarlyWorker(RecordingSink):
    """Takes tasks early, and remembers what it has been told of each run.

    Args:
        store: What is durable.
        is_willing: Whether the next task that is offered early is taken.
    """

    def __init__(self, store: ScriptedStore, is_willing: Callable[[], bool]) -> None:
        super().__init__()
        self._store = store
        self._is_willing = is_willing
        self.session: Any = None
        self.unconfirmed: dict[str, r.WorkflowTask] = {}
        """Tasks taken early, by run; also answered ones, as the worker is not told that their cause is durable."""
        self.cached: dict[str, list[e.Event]] = {}
        self.told: dict[int, list[e.Event]] = {}
        """What each task was begun on, by the identity of the task, which the log keeps."""
        self.queries_count = 0
        self.early_count = self.evicted_count = self.confirmed_count = 0
        self.problems: list[str] = []

    def history(self, run_id: str) -> list[e.Event]:
        """What is stored of a run."""
        return [
            event
            for row in self._store.rows.values()
            if row.run_id == run_id
            for batch in self._store._batches[row.run_key]
            for event in e.decode_events(batch.events)
        ]

    def offer_early_workflow_task(self, task: r.WorkflowTask) -> bool:
        run_id = task.token.run_id
        if not self._is_willing() or (task.is_partial and not self._continues(task)):
            return False
        self.early_count += 1
        self.unconfirmed[run_id] = task
        self._take_in(task)
        return True

    def confirm_workflow_task(self, task: r.WorkflowTask) -> None:
        self.confirmed_count += 1
        if self.unconfirmed.get(task.token.run_id) is not task:
            self.problems.append(f"confirmed, but not open: {task.token}")
        self._expect_stored(task.token.run_id, last_stored_of(task), "confirmed")

    def offer_workflow_task(self, task: r.WorkflowTask) -> None:
        run_id = task.token.run_id
        if task.query is not None:
            known = self.cached.get(run_id, [])
            if task.is_partial and known != self.history(run_id)[: len(known)]:
                self.problems.append(f"asked, while ahead of what is stored: {run_id}")
            self.queries_count += 1
            return
        self.unconfirmed.pop(run_id, None)
        if task.is_partial and not self._continues(task):
            # As a worker does that has not got the run: it fetches what went before.
            before = self.history(run_id)[: task.events[0].event_id - 1]
            self.cached[run_id] = before
        self._expect_stored(run_id, last_stored_of(task), "offered")
        self._take_in(task)

    def _take_in(self, task: r.WorkflowTask) -> None:
        run_id = task.token.run_id
        self.log.append(task)
        self.workflow_tasks.append(task)
        known = self.cached.get(run_id, []) if task.is_partial else []
        # What a repeated task begins with may yet become something else: its run is not kept.
        told = self.told[id(task)] = [*known, *task.events][: last_stored_of(task)]
        self.cached.pop(run_id, None)
        if task.attempt == 1:
            self.cached[run_id] = told

    def _continues(self, task: r.WorkflowTask) -> bool:
        known = self.cached.get(task.token.run_id)
        return known is not None and len(known) == task.events[0].event_id - 1

    def offer_activity_task(self, task: r.ActivityTask) -> None:
        self._expect_stored(task.token.run_id, task.token.scheduled_event_id, "activity")
        super().offer_activity_task(task)

    def evict_workflow(self, namespace: str, run_id: str) -> None:
        self.evicted_count += 1
        self.cached.pop(run_id, None)
        void = self.unconfirmed.pop(run_id, None)
        if void in self.workflow_tasks:
            self.workflow_tasks.remove(void)
            self.session.grant(workflow_tasks=1)

    def _expect_stored(self, run_id: str, event_id: int, what: str) -> None:
        stored = len(self.history(run_id))
        if stored < event_id:
            self.problems.append(f"{what}: event {event_id} of {run_id}, of which {stored} are stored")


def last_stored_of(task: r.WorkflowTask) -> int:
    """The last event of a task that is stored when it goes out; what a repeated task begins with, or one made for an
    update, is stored with its answer."""
    is_virtual = task.attempt > 1 or task.messages
    return task.token.scheduled_event_id - 1 if is_virtual else task.started_event_id


class EarlyPlayer(Player):
    """Plays a script with an early worker, and looks whether the laws hold."""

    takes_early_tasks = False
    """Whether it is behind a link, so that its answers are waited for longer."""

    answer_seconds = 0.0
    """How long; nothing waits for time to pass unless the script wants it to."""

    def __init__(self, random: Random) -> None:
        super().__init__(has_express=True)
        self._clock = TickingClock()
        self._random = random
        self.sink: EarlyWorker = EarlyWorker(self.store, lambda: random.random() < 0.8)
        self._checks: list[asyncio.Task[None]] = []
        self._calls: list[asyncio.Task[None]] = []
        self._leaves_nothing = False
        self.outcomes: list[str] = []
        """What became of the updates whose callers were told."""

    async def play(self, script: list[Action]) -> None:
        with (
            unittest.mock.patch("clew.engine.pipeline.HELD_FLUSHES_MAX", 4),
            unittest.mock.patch("clew.engine.early.ANSWER_SECONDS_MAX", self.answer_seconds),
        ):
            await self._play(script)

    async def _play(self, script: list[Action]) -> None:
        engine = self.engine = Engine(
            self.store,  # type: ignore[arg-type]  # what the inputs here need of a store
            clock=self._clock,
            entropy=CountingEntropy(),
            node_id="n",
            limits=LIMITS,
        )
        await engine.start()
        hello = r.WorkerHello(
            namespace="default",
            task_queue=QUEUE,
            identity="w",
            instance_id="w",
            workflow_types=("W",),
            activity_types=("a",),
            takes_early_tasks=self.takes_early_tasks,
        )
        self.session = self.sink.session = await engine.attach_worker(hello, self.sink)
        self.session.grant(workflow_tasks=5, activity_tasks=5)
        for name, *arguments in script:
            getattr(self, f"do_{name}")(*arguments)
            for _ in range(16 if name == "advance" else 0):
                self._clock.ring()
                await self._turns(8)
            await self._turns(self._random.choice([0, 1, 2, 4, 12]) if name == "turn" else 0)
        await self._turns(60)
        self._look_at_the_cache()
        self.session.detach()
        await self._turns(60)

    def _look_at_the_cache(self) -> None:
        for run_id, known in self.sink.cached.items():
            if known != self.sink.history(run_id)[: len(known)]:
                self.sink.problems.append(f"cached of {run_id} is not how its history begins")

    def _answer(self, task: r.WorkflowTask, commands: tuple[c.Command, ...], *, is_sticky: bool) -> None:
        super()._answer(task, commands, is_sticky=is_sticky)
        if not is_sticky or (self._leaves_nothing and not commands):
            self.sink.cached.pop(task.token.run_id, None)
        if self._leaves_nothing and not commands:
            return
        self._checks.append(
            asyncio.ensure_future(self._check_taken(task, self.sink.told[id(task)], len(self.answers) - 1))
        )

    async def _check_taken(self, task: r.WorkflowTask, known: list[e.Event], number: int) -> None:
        """If this answer was taken, it rests on what the history says."""
        waiting = self._tasks[number]
        await asyncio.wait([waiting])
        if self.answers[number] is not None:
            return
        history = self.sink.history(task.token.run_id)
        done = [
            event
            for event in history
            if isinstance(event, e.WorkflowTaskCompleted) and event.started_event_id == task.started_event_id
        ]
        if not done:
            self.sink.problems.append(f"taken, but not stored: {task.token}")
        elif known != history[: last_stored_of(task)]:
            self.sink.problems.append(f"taken, but of something else: {task.token}")

    def _messages_of(self, task: r.WorkflowTask) -> dict[str, Any]:
        """Updates are accepted and completed, rejected, or passed over."""
        found: dict[str, list[Any]] = {"acceptances": [], "completions": [], "rejections": []}
        for message in task.messages:
            names = {"message_id": message.message_id, "update_id": message.request.update_id}
            chance = self._random.random()
            if chance < 0.6:
                found["acceptances"].append(i.UpdateAcceptance(**names))
                done = {**names, "message_id": names["message_id"] + "/done"}
                found["completions"].append(i.UpdateCompletion(**done, outcome=e.UpdateOutcome(result=PAYLOADS[1])))
            elif chance < 0.9:
                found["rejections"].append(i.UpdateRejection(**names, failure=Failure(message="no")))
        self._leaves_nothing = bool(task.messages) and not found["acceptances"]
        return {name: tuple(messages) for name, messages in found.items()}

    def do_update(self, workflow_id: str) -> None:
        """Update; the caller must be told what is stored, and nothing may be stored of what is rejected."""
        self._number += 1
        update_id = f"update-{self._number}"
        request = r.UpdateWorkflowRequest(
            namespace="default", workflow_id=workflow_id, request=e.UpdateRequest(update_id=update_id, name="u")
        )

        async def call() -> None:
            try:
                told = await self.engine.update_workflow(request)
            except RPCError:
                return
            kinds = [
                type(event).__name__
                for event in self.sink.history(told.run_id)
                if getattr(event, "update_id", None) == update_id
                or getattr(event, "protocol_instance_id", None) == update_id
            ]
            if told.outcome is None:
                return
            self.outcomes.append("rejected" if told.outcome.failure is not None else "completed")
            wanted = (
                ["WorkflowExecutionUpdateAccepted", "WorkflowExecutionUpdateCompleted"]
                if told.outcome.failure is None
                else []
            )
            if kinds != wanted:
                self.sink.problems.append(f"{update_id} was told to be {self.outcomes[-1]}; stored are {kinds}")

        self._calls.append(asyncio.ensure_future(call()))

    def do_fail_task(self) -> None:
        for task in self.sink.workflow_tasks[:1]:
            self.sink.cached.pop(task.token.run_id, None)
        super().do_fail_task()

    def do_query(self, workflow_id: str) -> None:
        """Ask; the answer must come from a worker that knows nothing but what is stored."""
        request = r.QueryWorkflowRequest(namespace="default", workflow_id=workflow_id, query_type="q")

        async def ask() -> None:
            try:
                await self.engine.query_workflow(request)
            except RPCError:
                return

        self._asking = [*getattr(self, "_asking", []), asyncio.ensure_future(ask())]


def make_script(random: Random) -> list[Action]:
    """As for the express way, with more that is plain, more that meets within one turn, and more that goes wrong."""
    script: list[Action] = []
    for _ in range(random.randint(60, 120)):
        workflow_id = random.choice(WORKFLOW_IDS)
        if random.random() < 0.2:
            script.append(("start", workflow_id, {}))
        if random.random() < 0.1:
            script.append(("query", workflow_id))
        if random.random() < 0.15:
            script.append(("update", workflow_id))
        if random.random() < 0.07:
            script.append(("outcome", random.choice(["conflict", "unavailable"])))
        (make,) = random.choices(list(ACTIONS), list(ACTIONS.values()))
        script.append(make(random))
        if random.random() < 0.6:
            script.append(TURN)
    return script


@pytest.mark.parametrize("group", range(4))
def test_nothing_that_is_not_stored_is_seen_or_stays(group: int) -> None:
    early = evicted = confirmed = asked = 0
    outcomes: Counter[str] = Counter()
    for seed in range(group * SEEDS, (group + 1) * SEEDS):
        random = Random(seed)
        player = EarlyPlayer(random)
        player.takes_early_tasks = seed % 2 == 1
        asyncio.run(player.play(make_script(random)))
        assert player.sink.problems == [], f"seed {seed}"
        early += player.sink.early_count
        evicted += player.sink.evicted_count
        confirmed += player.sink.confirmed_count
        asked += player.sink.queries_count
        outcomes.update(player.outcomes)
    assert early > 3 * SEEDS, "hardly any task was taken early"
    assert evicted > SEEDS / 4, "hardly any cause was lost"
    assert confirmed > SEEDS / 4, "hardly any answer came late"
    assert asked > SEEDS / 4, "hardly any question was asked"
    assert min(outcomes["completed"], outcomes["rejected"]) > SEEDS / 4, "hardly any update had an outcome"


def test_a_worker_that_is_not_told_to_forget_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The laws above are worth something: without the eviction some script breaks one."""

    def forget_to_tell(self: EarlyTasks, entry: RunEntry) -> None:
        entry.early = None

    monkeypatch.setattr(EarlyTasks, "on_discarded", forget_to_tell)
    for seed in range(SEEDS):
        random = Random(seed)
        player = EarlyPlayer(random)
        asyncio.run(player.play(make_script(random)))
        if player.sink.problems:
            return
    raise AssertionError("nobody noticed")
