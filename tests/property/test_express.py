"""The express way writes, sends and answers what the general way does, whatever else goes on.

The same seeded inputs go to two engines, of which one has no express way; every row given to the store, every task
offered to the worker and every answer must be equal. Commits may lose their guard or fail, so that the way back from an
express transition is met too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, Final

import msgspec
import pytest

from benchmarks.hot_path import NoExpress
from clew.engine import Engine
from clew.model import commands as c
from clew.model import inputs as i
from clew.model.events import WorkflowTaskFailedCause
from clew.model.failure import Failure
from clew.model.limits import LIMITS_DEFAULT
from clew.model.payload import StoredPayload
from clew.model.policies import RetryPolicy
from clew.ports.store import CommitStatus, HistoryBatch, LoadedRun, NamespaceRow, RunRow, RunWrite, StoreUnavailable
from clew.service import requests as r
from clew.service.errors import RPCError

QUEUE: Final = "q"
T0: Final = datetime(2030, 1, 1, tzinfo=UTC)
LIMITS: Final = msgspec.structs.replace(
    LIMITS_DEFAULT, history_events_suggest=40, history_events_max=70, payload_bytes_max=64, pending_activities_max=6
)
"""Small, so that runs come to their limits."""

SEEDS: Final = 25
"""Scripts in each group of the test."""


class ScriptedClock:
    """Stands still until the script moves it."""

    def __init__(self) -> None:
        self.instant = T0
        self._alarms: list[tuple[datetime, Callable[[], None]]] = []

    def now(self) -> datetime:
        return self.instant

    def call_at(self, when: datetime, callback: Callable[[], None]) -> Alarm:
        alarm = (when, callback)
        self._alarms.append(alarm)
        return Alarm(lambda: self._alarms.remove(alarm) if alarm in self._alarms else None)

    def advance(self, seconds: int) -> None:
        self.instant += timedelta(seconds=seconds)

    def ring(self) -> None:
        """Call back the first that is due."""
        due = [alarm for alarm in self._alarms if alarm[0] <= self.instant]
        if due:
            first = min(due, key=lambda alarm: alarm[0])
            self._alarms.remove(first)
            first[1]()


class Alarm:
    def __init__(self, cancel: Callable[[], None]) -> None:
        self.cancel = cancel


class CountingEntropy:
    def __init__(self) -> None:
        self._count = 0

    def uuid7(self) -> str:
        self._count += 1
        return f"id-{self._count:04d}"

    def token(self, size: int) -> bytes:
        return b"s" * size


class ScriptedStore:
    """Keeps runs in memory; the script says when a batch goes wrong."""

    shard_count = 4

    def __init__(self) -> None:
        self.log: list[tuple[RunWrite, ...]] = []
        self.rows: dict[int, RunRow] = {}
        self._batches: dict[int, list[HistoryBatch]] = {}
        self.next_outcomes: list[str] = []
        self._next_id = 1
        self._namespaces: list[NamespaceRow] = []

    def commit_if_current(self, units: Sequence[tuple[RunWrite, ...]]) -> asyncio.Future[list[CommitStatus]]:
        done: asyncio.Future[list[CommitStatus]] = asyncio.get_running_loop().create_future()
        outcome = self.next_outcomes.pop(0) if self.next_outcomes else ""
        self.log.extend(units)
        if outcome == "unavailable":
            asyncio.get_running_loop().call_soon(done.set_exception, StoreUnavailable("asked for"))
            return done
        statuses = [
            CommitStatus.VERSION_CONFLICT if outcome == "conflict" and number == 0 else self._commit(unit)
            for number, unit in enumerate(units)
        ]
        asyncio.get_running_loop().call_soon(done.set_result, statuses)
        return done

    def _commit(self, unit: tuple[RunWrite, ...]) -> CommitStatus:
        closed = {write.run_key for write in unit if not write.status.is_open}
        for write in unit:
            known = self.rows.get(write.run_key)
            if (known.version if known is not None else 0) != write.expected_version:
                return CommitStatus.VERSION_CONFLICT
            if known is None:
                latest = self._latest(write.namespace, write.workflow_id)
                is_open = latest is not None and latest.status.is_open and latest.run_key not in closed
                if is_open or (latest.run_key if latest is not None else 0) != write.expected_latest_run_key:
                    return CommitStatus.LATEST_RUN_CONFLICT
        for write in unit:
            known = self.rows.get(write.run_key)
            self._batches.setdefault(write.run_key, []).extend(write.batches)
            visibility = write.visibility or (known.visibility if known is not None else None)
            assert visibility is not None
            self.rows[write.run_key] = RunRow(
                shard=write.shard,
                run_key=write.run_key,
                namespace=write.namespace,
                workflow_id=write.workflow_id,
                run_id=write.run_id,
                version=write.version,
                status=write.status,
                attention_at=write.attention_at,
                is_busy=write.is_busy,
                state=write.state,
                history_length=write.history_length,
                history_size_bytes=write.history_size_bytes,
                visibility=visibility,
            )
        return CommitStatus.COMMITTED

    def _latest(self, namespace: str, workflow_id: str) -> RunRow | None:
        found = [row for row in self.rows.values() if (row.namespace, row.workflow_id) == (namespace, workflow_id)]
        return max(found, key=lambda row: row.run_key) if found else None

    async def load_run(self, shard: int, run_key: int) -> RunRow | None:
        return self.rows.get(run_key)

    async def load_runs(self, runs: list[tuple[int, int]], history_bytes_max: int) -> list[LoadedRun]:
        return [LoadedRun(row=self.rows[key], history=tuple(self._batches[key])) for _, key in runs if key in self.rows]

    async def find_run(self, namespace: str, workflow_id: str, run_id: str) -> RunRow | None:
        return self._latest(namespace, workflow_id)

    async def reserve_run_keys(self, count: int) -> int:
        self._next_id += count
        return self._next_id - count

    reserve_task_ids = reserve_run_keys

    async def list_namespaces(self) -> list[NamespaceRow]:
        return self._namespaces

    async def put_namespace(self, row: NamespaceRow) -> bool:
        self._namespaces.append(row)
        return True

    async def read_history(self, shard: int, run_key: int, from_event_id: int, bytes_max: int) -> list[HistoryBatch]:
        return [batch for batch in self._batches[run_key] if batch.last_event_id >= from_event_id]

    async def _nothing(self, *_: Any) -> list[Any]:
        return []

    list_deployments = find_busy_runs = find_due_runs = read_outbox = claim_tasks = _nothing
    delete_tasks = release_tasks = find_queued_events = delete_outbox = _nothing

    async def close(self) -> None:
        """Nothing to let go of."""


class RecordingSink:
    """Keeps what it is offered until the script answers it."""

    def __init__(self) -> None:
        self.log: list[Any] = []
        self.workflow_tasks: list[r.WorkflowTask] = []
        self.activity_tasks: list[r.ActivityTask] = []

    def offer_workflow_task(self, task: r.WorkflowTask) -> None:
        self.log.append(task)
        self.workflow_tasks.append(task)

    def offer_activity_task(self, task: r.ActivityTask) -> None:
        self.log.append(task)
        self.activity_tasks.append(task)

    def cancel_activity(self, token: r.TaskToken, reason: r.ActivityCancelReason) -> None:
        self.log.append((token, reason))

    def evict_workflow(self, namespace: str, run_id: str) -> None:
        """Nothing is kept."""


Action = tuple[Any, ...]


class Player:
    """Plays a script on one engine, and keeps what can be seen of it."""

    def __init__(self, *, has_express: bool) -> None:
        self._has_express = has_express
        self.store = ScriptedStore()
        self.sink = RecordingSink()
        self.answers: list[Any] = []
        self.express_count = 0
        self._clock = ScriptedClock()
        self._number = 0
        self._used: list[r.WorkflowTask | r.ActivityTask] = []
        self._recorded: dict[i.TaskToken, int] = {}

    async def play(self, script: list[Action]) -> None:
        engine = self.engine = Engine(
            self.store,  # type: ignore[arg-type]  # what the inputs here need of a store
            clock=self._clock,
            entropy=CountingEntropy(),
            node_id="n",
            limits=LIMITS,
        )
        if not self._has_express:
            engine._express = NoExpress()  # type: ignore[assignment]
        await engine.start()
        hello = r.WorkerHello(
            namespace="default",
            task_queue=QUEUE,
            identity="w",
            instance_id="w",
            workflow_types=("W",),
            activity_types=("a",),
        )
        self.session = await engine.attach_worker(hello, self.sink)
        self.session.grant(workflow_tasks=5, activity_tasks=5)
        for name, *arguments in script:
            getattr(self, f"do_{name}")(*arguments)
            for _ in range(16 if name == "advance" else 0):
                self._clock.ring()
                await self._turns(8)
            await self._turns(8 if name == "turn" else 0)
        await self._turns(40)
        self.session.detach()
        await self._turns(40)

    @staticmethod
    async def _turns(count: int) -> None:
        for _ in range(count):
            await asyncio.sleep(0)

    def _tell(self, answer: Awaitable[Any], note: Callable[[Any], None] | None = None) -> None:
        number = len(self.answers)
        self.answers.append(None)
        if type(answer).__name__ == "ExpressSubmission":
            self.express_count += 1

        async def wait() -> None:
            try:
                self.answers[number] = await answer
                if note is not None:
                    note(self.answers[number])
            except RPCError as error:
                self.answers[number] = (error.code, str(error))

        self._tasks = [*getattr(self, "_tasks", []), asyncio.ensure_future(wait())]

    # --- what a script can do -------------------------------------------------------------------------------

    def do_start(self, workflow_id: str, options: dict[str, Any]) -> None:
        self._number += 1
        request = r.StartWorkflowRequest(
            namespace="default",
            workflow_id=workflow_id,
            workflow_type="W",
            task_queue=QUEUE,
            request_id=f"start-{self._number}",
            **options,
        )
        self._tell(self.engine.start_workflow(request))

    def do_signal(self, workflow_id: str) -> None:
        self._number += 1
        request = i.SignalWorkflowRequest(
            namespace="default", workflow_id=workflow_id, signal_name="s", request_id=f"signal-{self._number}"
        )
        self._tell(self.engine.signal_workflow(request))

    def do_cancel(self, workflow_id: str) -> None:
        request = i.RequestCancelRequest(namespace="default", workflow_id=workflow_id, request_id="cancel")
        self._tell(self.engine.request_cancel_workflow(request))

    def do_query(self, workflow_id: str) -> None:
        request = r.QueryWorkflowRequest(namespace="default", workflow_id=workflow_id, query_type="q")
        self._tell(self.engine.query_workflow(request))

    def do_command(self, commands: tuple[c.Command, ...], is_sticky: bool) -> None:
        if not self.sink.workflow_tasks:
            return
        task = self.sink.workflow_tasks.pop(0)
        self._used.append(task)
        if task.query is not None:
            return
        self._answer(task, commands, is_sticky=is_sticky)

    def _answer(self, task: r.WorkflowTask, commands: tuple[c.Command, ...], *, is_sticky: bool) -> None:
        named: list[c.Command] = []
        for command in commands:
            if isinstance(command, c.ScheduleActivityTask) and not command.activity_id:
                self._number += 1
                command = msgspec.structs.replace(command, activity_id=f"a-{self._number}")
            elif isinstance(command, c.StartTimer):
                self._number += 1
                command = msgspec.structs.replace(command, timer_id=f"t-{self._number}")
            named.append(command)
        request = i.CompleteWorkflowTaskRequest(
            token=task.token,
            commands=tuple(named),
            identity="w",
            is_sticky=is_sticky,
            waiting_on=("here",),
            **self._messages_of(task),
        )
        self._tell(self.engine.complete_workflow_task(request))

    def _messages_of(self, task: r.WorkflowTask) -> dict[str, Any]:
        """What an answer says of updates; no script here sends one."""
        return {}

    def do_steps(self, sizes: tuple[int, ...], slip: int) -> None:
        """Record steps of the first task that is held; `slip` puts them after another event than the last one known."""
        if not self.sink.workflow_tasks or self.sink.workflow_tasks[0].query is not None:
            return
        task = self.sink.workflow_tasks[0]
        known = self._recorded.get(task.token, task.started_event_id)
        markers = tuple(
            c.RecordMarker(
                marker_name="step",
                details={"data": (StoredPayload(b"{}"),), "result": (StoredPayload(b"1" * size),)},
                failure=Failure(message="no") if size == 2 else None,
                header={"h": StoredPayload(b"1")} if size == 3 else None,
            )
            for size in sizes
        )
        request = i.RecordMarkersRequest(token=task.token, markers=markers, after_event_id=known + slip, identity="w")

        def note(answer: r.RecordMarkersResponse) -> None:
            self._recorded[task.token] = answer.last_event_id

        self._tell(self.engine.record_markers(request), note)

    def do_fail_task(self) -> None:
        if self.sink.workflow_tasks:
            task = self.sink.workflow_tasks.pop(0)
            request = i.FailWorkflowTaskRequest(
                token=task.token, cause=WorkflowTaskFailedCause.WORKFLOW_WORKER_UNHANDLED_FAILURE
            )
            self._tell(self.engine.fail_workflow_task(request))

    def do_result(self, size: int) -> None:
        if self.sink.activity_tasks:
            task = self.sink.activity_tasks.pop(0)
            self._used.append(task)
            self._complete(task, size)

    def _complete(self, task: r.ActivityTask, size: int) -> None:
        result = (StoredPayload(b"1" * size),)
        request = i.CompleteActivityRequest(token=task.token, result=result, identity="w")
        self._tell(self.engine.complete_activity(request))

    def do_failure(self) -> None:
        if self.sink.activity_tasks:
            task = self.sink.activity_tasks.pop(0)
            request = i.FailActivityRequest(token=task.token, failure=Failure(message="no"), identity="w")
            self._tell(self.engine.fail_activity(request))

    def do_heartbeat(self) -> None:
        if self.sink.activity_tasks:
            request = i.HeartbeatActivityRequest(token=self.sink.activity_tasks[0].token)
            self._tell(self.engine.heartbeat_activity(request))

    def do_repeat(self) -> None:
        """Answer what was answered before once more."""
        if not self._used:
            return
        task = self._used.pop(0)
        if isinstance(task, r.ActivityTask):
            self._complete(task, 1)
        else:
            self._answer(task, (c.CompleteWorkflowExecution(),), is_sticky=True)

    def do_grant(self, workflow_tasks: int, activity_tasks: int) -> None:
        self.session.grant(workflow_tasks=workflow_tasks, activity_tasks=activity_tasks)

    def do_advance(self, seconds: int) -> None:
        self._clock.advance(seconds)

    def do_outcome(self, outcome: str) -> None:
        self.store.next_outcomes.append(outcome)

    def do_turn(self) -> None:
        """Let the loop run."""


WORKFLOW_IDS: Final = ("one", "two", "three")
PAYLOADS: Final[tuple[tuple[StoredPayload, ...], ...]] = (
    (),
    (StoredPayload(b"1"),),
    (StoredPayload(b'"x"'), StoredPayload(b"[2]")),
)
TIMEOUTS: Final = (timedelta(0), timedelta(0), timedelta(seconds=3), timedelta(seconds=30))
START_OPTIONS: Final[dict[str, Any]] = {
    "input": (StoredPayload(b"1"),),
    "identity": "client",
    "workflow_run_timeout": timedelta(seconds=60),
    "workflow_task_timeout": timedelta(seconds=5),
    "retry_policy": RetryPolicy(maximum_attempts=2),
    "start_delay": timedelta(seconds=3),
    "memo": {"k": StoredPayload(b"1")},
}
TURN: Final[Action] = ("turn",)


def make_script(random: Random) -> list[Action]:
    """Mostly what brings runs forward, so that there is an express way to leave and to come back to."""
    script: list[Action] = []
    for _ in range(random.randint(40, 90)):
        (make,) = random.choices(list(ACTIONS), list(ACTIONS.values()))
        script.append(make(random))
        if random.random() < 0.8:
            script.append(TURN)
    return script


def plain_activity(random: Random) -> c.ScheduleActivityTask:
    return c.ScheduleActivityTask(
        activity_id=random.choice(["", "", "", "fixed"]),
        activity_type="a",
        input=random.choice(PAYLOADS),
        start_to_close_timeout=timedelta(seconds=random.choice([10, 30])),
        header=random.choice([None, {"h": StoredPayload(b"1")}]),
    )


def any_command(random: Random) -> c.Command:
    kind = random.random()
    if kind < 0.5:
        return plain_activity(random)
    if kind < 0.7:
        return any_timer(random)
    return c.ScheduleActivityTask(
        activity_id=random.choice(["", "", "fixed"]),
        activity_type=random.choice(["a", "a", "unknown"]),
        task_queue=random.choice(["", "", "elsewhere"]),
        input=random.choice(PAYLOADS),
        start_to_close_timeout=timedelta(seconds=30),
        schedule_to_close_timeout=random.choice(TIMEOUTS),
        schedule_to_start_timeout=random.choice(TIMEOUTS),
        heartbeat_timeout=random.choice(TIMEOUTS),
        retry_policy=random.choice([None, RetryPolicy(maximum_attempts=2)]),
    )


def any_timer(random: Random) -> c.StartTimer:
    return c.StartTimer(timer_id="", start_to_fire_timeout=random.choice([*TIMEOUTS, timedelta.max]))


def start(random: Random) -> Action:
    names = random.sample(list(START_OPTIONS), random.choice([0, 0, 0, 1, 2]))
    return ("start", random.choice(WORKFLOW_IDS), {name: START_OPTIONS[name] for name in names})


def plain_commands(random: Random) -> Action:
    return ("command", tuple(plain_activity(random) for _ in range(random.choice([1, 1, 2]))), random.random() < 0.9)


def any_commands(random: Random) -> Action:
    commands = tuple(any_command(random) for _ in range(random.randint(0, 3)))
    if random.random() < 0.2:
        commands += (c.CompleteWorkflowExecution(result=random.choice(PAYLOADS)),)
    return ("command", commands, random.random() < 0.9)


def steps(random: Random) -> Action:
    sizes = tuple(random.choice([1, 1, 1, 2, 3, 65]) for _ in range(random.choice([0, 1, 1, 1, 1, 2, 9])))
    return ("steps", sizes, random.choice([0] * 10 + [-1, 1]))


ACTIONS: Final[dict[Callable[[Random], Action], float]] = {
    plain_commands: 6,
    lambda random: ("result", random.choice([1, 1, 1, 1, 1, 1, 1, 65])): 8,
    lambda random: ("command", (c.CompleteWorkflowExecution(result=random.choice(PAYLOADS)),), True): 1,
    any_commands: 1.5,
    steps: 3,
    lambda random: ("command", (any_timer(random),), True): 1,
    start: 2.5,
    lambda random: ("grant", random.randint(0, 2), random.randint(0, 2)): 5,
    lambda random: (random.choice(["failure", "failure", "heartbeat", "fail_task", "repeat"]),): 1.5,
    lambda random: (random.choice(["signal", "signal", "cancel"]), random.choice(WORKFLOW_IDS)): 0.7,
    lambda random: ("advance", random.choice([1, 1, 1, 2, 4, 12, 40])): 1.5,
    lambda random: ("outcome", random.choice(["", "conflict", "unavailable"])): 0.4,
}


def play(script: list[Action], *, has_express: bool) -> Player:
    player = Player(has_express=has_express)
    asyncio.run(player.play(script))
    return player


def by_run(sent: list[Any]) -> dict[str, list[Any]]:
    """What a worker was sent, run by run: between runs the order may differ by who had to read from the store."""
    runs: dict[str, list[Any]] = {}
    for one in sent:
        token = one[0] if isinstance(one, tuple) else one.token
        runs.setdefault(token.run_id, []).append(one)
    return runs


@pytest.mark.parametrize("group", range(4))
def test_both_ways_write_send_and_answer_the_same(group: int) -> None:
    express_count = answers_count = 0
    for seed in range(group * SEEDS, (group + 1) * SEEDS):
        script = make_script(Random(seed))
        express, general = play(script, has_express=True), play(script, has_express=False)
        assert general.express_count == 0
        for ours, theirs in zip(express.store.log, general.store.log, strict=False):
            assert ours == theirs, f"seed {seed}"
        assert len(express.store.log) == len(general.store.log), f"seed {seed}"
        assert by_run(express.sink.log) == by_run(general.sink.log), f"seed {seed}"
        assert express.answers == general.answers, f"seed {seed}"
        express_count += express.express_count
        answers_count += len(express.answers)
    assert express_count > answers_count / 4, "the express way is hardly met"


def test_the_express_way_is_taken_where_it_should_be() -> None:
    activity = c.ScheduleActivityTask(
        activity_id="", activity_type="a", start_to_close_timeout=timedelta(seconds=30), input=(StoredPayload(b"1"),)
    )
    script: list[Action] = [("start", "one", {}), TURN]
    for _ in range(2):
        script += [("command", (activity, activity), True), TURN, ("result", 1), TURN, ("grant", 1, 2)]
        script += [("command", (), True), TURN, ("result", 1), TURN]
    script += [("command", (c.CompleteWorkflowExecution(),), True), TURN]
    player = play(script, has_express=True)
    # All but the two answers that ask for nothing.
    assert player.express_count == 1 + 2 * 3 + 1
    assert player.answers[-1] is None
    assert [write.status.name for (write,) in player.store.log][-1] == "COMPLETED"


def test_steps_take_the_express_way() -> None:
    close = (c.CompleteWorkflowExecution(),)
    steps: list[Action] = [("steps", (1,), 0), TURN, ("steps", (1, 2), 0), TURN]
    player = play([("start", "one", {}), TURN, *steps, ("command", close, True), TURN], has_express=True)
    assert player.express_count == 1 + 2 + 1
    assert [answer.last_event_id for answer in player.answers[1:3]] == [4, 6]
    assert [batch.last_event_id for (write,) in player.store.log for batch in write.batches] == [3, 4, 6, 8]


@pytest.mark.parametrize("has_express", [True, False])
def test_a_step_is_told_that_a_question_waits(has_express: bool) -> None:
    script: list[Action] = [("start", "one", {}), TURN, ("steps", (1,), 0), ("query", "one"), TURN]
    player = play([*script, ("steps", (1,), 0), TURN], has_express=has_express)
    steps = [answer for answer in player.answers if isinstance(answer, r.RecordMarkersResponse)]
    assert [step.is_end_wanted for step in steps] == [True, True]
