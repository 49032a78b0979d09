"""Workflow tasks that go out before their cause is durable: what joins, what waits, and what becomes of the lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta
from random import Random
from typing import Any
from unittest import mock

import pytest

from clew.engine.updates import UpdateDesk
from clew.model import commands as c
from clew.model import events as e
from clew.model.payload import StoredPayload
from clew.ports.store import CommitStatus, RunWrite
from clew.service import requests as r
from tests.property.test_early import EarlyPlayer
from tests.property.test_express import TURN, Action, ScriptedStore

START: Action = ("start", "one", {})
ACTIVITY = c.ScheduleActivityTask(activity_id="", activity_type="a", start_to_close_timeout=timedelta(seconds=30))
STEP: Action = ("command", (ACTIVITY,), True)
TWO_STEPS: Action = ("command", (ACTIVITY, c.StartTimer(timer_id="", start_to_fire_timeout=timedelta(1))), True)
CLOSE: Action = ("command", (c.CompleteWorkflowExecution(result=(StoredPayload(b"1"),)),), True)
RESULT: Action = ("result", 1)


class HeldStore(ScriptedStore):
    """Makes a batch durable when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[Callable[..., None]] = []
        self.untold: list[Callable[[], None]] = []
        """Answers to what is durable, and nobody was told yet."""

    def commit_if_current(self, units: Sequence[tuple[RunWrite, ...]]) -> asyncio.Future[list[CommitStatus]]:
        done: asyncio.Future[list[CommitStatus]] = asyncio.get_running_loop().create_future()

        def go_on(is_told: bool = True) -> None:
            inner = super(HeldStore, self).commit_if_current(units)

            def tell(it: asyncio.Future[list[CommitStatus]]) -> None:
                done.set_result(it.result()) if it.exception() is None else done.set_exception(it.exception())

            if is_told:
                inner.add_done_callback(tell)
            else:
                self.untold.append(lambda: tell(inner))

        self.waiting.append(go_on)
        return done


class HeldPlayer(EarlyPlayer):
    """A player whose store holds every batch until the script says `release`; takes every task early."""

    def __init__(self) -> None:
        super().__init__(Random(0))
        self._random.choice = lambda choices: choices[-1]  # type: ignore[method-assign]  # turns are as long as can be
        self.store: HeldStore = HeldStore()
        self.sink._store = self.store
        self.sink._is_willing = lambda: True
        self.seen: list[Any] = []

    def do_release(self) -> None:
        waiting, self.store.waiting = self.store.waiting, []
        for go_on in waiting:
            go_on()

    def do_release_untold(self) -> None:
        waiting, self.store.waiting = self.store.waiting, []
        for go_on in waiting:
            go_on(False)

    def do_tell_last(self) -> None:
        self.store.untold.pop()()

    def do_look(self, look: Callable[[HeldPlayer], Any]) -> None:
        self.seen.append(look(self))

    async def play(self, script: list[Action]) -> None:
        # What the script leaves open is let through at the end.
        await super().play([*script, *[("release",), TURN] * 6])
        assert self.sink.problems == []


def play(*script: Action) -> HeldPlayer:
    player = HeldPlayer()
    asyncio.run(player.play(list(script)))
    return player


RELEASE: Action = ("release",)


def look(what: Callable[[HeldPlayer], Any]) -> Action:
    return ("look", what)


def activities(player: HeldPlayer) -> int:
    return sum(isinstance(task, r.ActivityTask) for task in player.sink.log)


def names(player: HeldPlayer) -> list[str]:
    return [type(event).__name__ for event in player.sink.history(player.sink.log[0].token.run_id)]


async def test_an_answer_in_time_joins_the_write_of_its_cause() -> None:
    player = await asyncio.to_thread(
        play, START, STEP, TURN, look(activities), RELEASE, TURN, RESULT, CLOSE, TURN, RELEASE, TURN
    )
    writes = [write for unit in player.store.log for write in unit]
    assert [len(write.batches) for write in writes] == [1, 1]
    assert [(write.batches[0].first_event_id, write.batches[0].last_event_id) for write in writes] == [(1, 5), (6, 11)]
    assert [write.status.name for write in writes] == ["RUNNING", "COMPLETED"]
    assert player.seen == [0], "the activity waits for the commit"
    assert player.answers == [player.answers[0], None, None, None]
    assert player.sink.confirmed_count == 0, "an answered task needs no word"


async def test_a_late_answer_is_a_write_of_its_own() -> None:
    player = await asyncio.to_thread(play, START, TURN, STEP, TURN, RELEASE, TURN)
    writes = [write for unit in player.store.log for write in unit]
    assert [write.batches[0].last_event_id for write in writes] == [3, 5]
    assert activities(player) == 1


async def test_a_task_without_an_answer_is_confirmed_and_not_offered_again() -> None:
    player = await asyncio.to_thread(play, START, TURN, look(lambda p: p.sink.confirmed_count), RELEASE, TURN)
    assert player.seen == [0]
    assert player.sink.confirmed_count == 1
    assert len(player.sink.log) == 1


async def test_when_the_cause_is_lost_the_run_is_forgotten_and_nothing_of_the_answer_goes_out() -> None:
    first_step = (START, TURN, STEP, RELEASE, TURN)
    for outcome in ("conflict", "unavailable"):
        player = await asyncio.to_thread(
            play, *first_step, RELEASE, TURN, RESULT, STEP, ("outcome", outcome), TURN, RELEASE, TURN, look(activities)
        )
        assert player.sink.evicted_count == 1
        assert player.seen == [1]
        refusals = [answer for answer in player.answers if isinstance(answer, tuple)]
        assert "workflow_task_not_found" in [code.value for code, _ in refusals], outcome


async def test_an_answer_that_rests_on_a_lost_cause_is_not_decided_again() -> None:
    for answer in (STEP, TWO_STEPS):
        player = await asyncio.to_thread(
            play, START, TURN, STEP, RELEASE, TURN, RELEASE, TURN,
            RESULT, TURN, answer, TURN, ("outcome", "conflict"), RELEASE, TURN, RELEASE, TURN,
        )  # fmt: skip
        assert player.sink.evicted_count == 1
        refusals = [told for told in player.answers if isinstance(told, tuple)]
        assert [code.value for code, _ in refusals] == ["workflow_task_not_found"]
        # The result was recorded after all, and its task given out anew, as one of a run that is not cached.
        assert "ActivityTaskCompleted" in names(player)
        assert isinstance(player.sink.log[-1], r.WorkflowTask)


async def test_an_unusual_answer_waits_for_the_cause() -> None:
    player = await asyncio.to_thread(
        play, START, TURN, TWO_STEPS, TURN, look(lambda p: len(p.store.waiting)), RELEASE, TURN, RELEASE, TURN
    )
    assert player.seen == [1], "it is decided when its cause is durable"
    assert names(player)[-2:] == ["ActivityTaskScheduled", "TimerStarted"]
    assert player.answers[-1] is None


async def test_an_unusual_answer_in_time_joins_as_well() -> None:
    player = await asyncio.to_thread(play, START, TWO_STEPS, TURN, RELEASE, TURN)
    (write,) = [write for unit in player.store.log for write in unit]
    assert [(batch.first_event_id, batch.last_event_id) for batch in write.batches] == [(1, 3), (4, 6)]
    assert names(player)[-2:] == ["ActivityTaskScheduled", "TimerStarted"]
    assert player.answers[-1] is None


WAITING = (START, STEP, TURN, RELEASE, TURN)
"""A run that is cached and waits for its activity."""


def take_short_turns(player: HeldPlayer) -> None:
    """From now on, so that an answer comes while its cause is held."""
    player._random.choice = lambda choices: choices[2]  # type: ignore[method-assign]


UPDATE: tuple[Action, ...] = (look(take_short_turns), ("update", "one"), TURN, ("command", (), True))


async def test_a_signal_and_what_comes_of_it_are_one_write() -> None:
    player = await asyncio.to_thread(play, *WAITING, ("signal", "one"), STEP, TURN, look(activities), RELEASE, TURN)
    writes = [write for unit in player.store.log for write in unit]
    assert len(writes) == 2
    assert [(batch.first_event_id, batch.last_event_id) for batch in writes[1].batches] == [(6, 8), (9, 10)]
    assert player.seen == [1], "what the signal leads to waits for the commit"
    assert activities(player) == 2
    assert player.answers[-2:] == [None, None]


def play_update(chance: float, *script: Action) -> HeldPlayer:
    """Play with a worker that accepts updates, or rejects them, as the chance says."""
    player = HeldPlayer()
    player._random.random = lambda: chance  # type: ignore[method-assign]
    asyncio.run(player.play(list(script)))
    return player


ACCEPTS, REJECTS = 0.0, 0.7


async def test_an_update_and_its_outcome_are_one_write() -> None:
    told = look(lambda player: list(player.outcomes))
    player = await asyncio.to_thread(play_update, ACCEPTS, *WAITING, *UPDATE, TURN, TURN, told, RELEASE, TURN, TURN)
    writes = [write for unit in player.store.log for write in unit]
    assert player.seen[1:] == [[]], "nobody is told before the commit"
    assert player.outcomes == ["completed"]
    assert len(writes) == 2
    assert names(player)[-5:] == [
        "WorkflowTaskScheduled",
        "WorkflowTaskStarted",
        "WorkflowTaskCompleted",
        "WorkflowExecutionUpdateAccepted",
        "WorkflowExecutionUpdateCompleted",
    ]


@pytest.mark.parametrize("chance", [ACCEPTS, REJECTS], ids=["accepted", "rejected"])
async def test_an_update_that_is_answered_in_its_turn_needs_no_coroutine(chance: float) -> None:
    with mock.patch.object(UpdateDesk, "wait_on", side_effect=AssertionError("waited")) as wait_on:
        player = await asyncio.to_thread(play_update, chance, *WAITING, *UPDATE, TURN, RELEASE, TURN, TURN)
    assert player.outcomes == ["completed" if chance == ACCEPTS else "rejected"]
    assert wait_on.call_count == 0


async def test_a_rejected_update_leaves_nothing_in_history() -> None:
    player = await asyncio.to_thread(play_update, REJECTS, *WAITING, look(names), *UPDATE, TURN, RELEASE, TURN, TURN)
    assert player.outcomes == ["rejected"]
    assert names(player) == player.seen[0]


async def test_an_update_that_is_lost_with_its_outcome_has_happened_to_nobody() -> None:
    for outcome in ("conflict", "unavailable"):
        player = await asyncio.to_thread(
            play_update, ACCEPTS, *WAITING, look(names), ("outcome", outcome), *UPDATE, TURN,
            look(lambda p: p.sink.evicted_count), RELEASE, TURN, TURN, look(lambda p: p.sink.evicted_count),
        )  # fmt: skip
        assert [player.seen[2], player.seen[3]] == [0, 1]
        assert isinstance(player.answers[-1], tuple), "the answer was decided again"
        assert player.answers[-1][0].value == "workflow_task_not_found", outcome
        if outcome == "unavailable":
            assert names(player) == player.seen[0]
            assert player.outcomes == [], "the caller was refused, and may send it again"


async def test_a_task_that_is_not_answered_in_its_turn_holds_nothing_up() -> None:
    """A loop that knows its turns releases what is held as soon as they are over."""

    class Loop(asyncio.SelectorEventLoop):
        has_turns = False

    player = HeldPlayer()
    script = [START, TURN, look(lambda p: len(p.store.waiting))]

    def run() -> None:
        with asyncio.Runner(loop_factory=Loop) as runner:
            runner.run(player.play(script))

    player._random.choice = lambda choices: 2  # type: ignore[method-assign]
    await asyncio.to_thread(run)
    assert player.seen == [1]


async def test_an_unusual_answer_waits_although_a_later_change_is_heard_of_first() -> None:
    player = await asyncio.to_thread(
        play, START, TURN, TWO_STEPS, TURN, ("signal", "one"), TURN, look(lambda p: len(p.store.waiting)),
        ("release_untold",), TURN, ("tell_last",), TURN, ("tell_last",), TURN, RELEASE, TURN,
    )  # fmt: skip
    assert player.seen == [2], "the start and the signal are on their way"
    assert player.answers[-1] is None
    assert "TimerStarted" in names(player)


async def test_a_question_waits_while_its_worker_is_ahead_of_what_is_durable() -> None:
    def asked(player: HeldPlayer) -> int:
        return player.sink.queries_count

    player = await asyncio.to_thread(
        play, START, STEP, TURN, RELEASE, TURN,
        RESULT, STEP, ("query", "one"), TURN, look(asked), RELEASE, TURN, look(asked),
    )  # fmt: skip
    assert player.seen == [0, 1]


async def test_history_is_whole_whatever_joined() -> None:
    player = await asyncio.to_thread(
        play, START, STEP, TURN, RELEASE, TURN, RESULT, TURN, STEP, TURN, RELEASE, TURN, RELEASE, TURN,
        RESULT, CLOSE, TURN, RELEASE, TURN,
    )  # fmt: skip
    history: list[e.Event] = player.sink.history(player.sink.log[0].token.run_id)
    assert [event.event_id for event in history] == list(range(1, len(history) + 1))
    assert names(player)[-1] == "WorkflowExecutionCompleted"


class FarPlayer(HeldPlayer):
    """The same with a worker behind a link."""

    takes_early_tasks = True
    answer_seconds = 600.0

    def do_unanswered(self) -> None:
        self.session.note_unanswered(self.sink.log[-1].token)

    def do_idle(self) -> None:
        """Wait until nothing is on its way, as an engine does that stops."""
        self._calls.append(asyncio.ensure_future(self.engine._pipeline.wait_idle()))


def play_far(*script: Action, answer_seconds: float = FarPlayer.answer_seconds) -> FarPlayer:
    player = FarPlayer()
    player.answer_seconds = answer_seconds
    asyncio.run(player.play(list(script)))
    return player


def waiting(player: HeldPlayer) -> int:
    return len(player.store.waiting)


async def test_an_answer_from_afar_joins_although_it_takes_many_turns() -> None:
    player = await asyncio.to_thread(
        play_far, START, TURN, TURN, look(waiting), STEP, TURN, RELEASE, TURN, RESULT, TURN, CLOSE, TURN, RELEASE, TURN
    )
    writes = [write.batches[0].last_event_id for unit in player.store.log for write in unit]
    assert writes == [5, 11]
    assert player.seen == [0]
    assert player.session.early_pauses_next == 1


async def test_who_does_not_answer_in_time_is_waited_for_more_seldom() -> None:
    pauses = look(lambda player: player.session.early_pauses_left)
    script = (START, TURN, look(waiting), STEP, TURN, RELEASE, TURN, pauses)
    player = await asyncio.to_thread(lambda: play_far(*script, answer_seconds=0.0))
    assert player.seen == [1, 1]
    assert player.sink.confirmed_count == 0, "the answer came while the cause was being written"
    writes = [write.batches[0].last_event_id for unit in player.store.log for write in unit]
    assert writes == [3, 5]
    assert player.session.early_pauses_next == 2


async def test_what_is_not_waited_for_is_written_at_once() -> None:

    def pause(player: HeldPlayer) -> None:
        player.session.early_pauses_left = 1

    other: Action = ("start", "two", {})
    player = await asyncio.to_thread(
        play_far, look(pause), START, TURN, look(waiting), other, TURN, look(waiting), ("idle",)
    )
    assert player.seen == [None, 1, 1]


async def test_a_worker_that_will_not_answer_soon_is_not_waited_for() -> None:
    player = await asyncio.to_thread(
        play_far, START, TURN, look(waiting), ("unanswered",), TURN, look(waiting), RELEASE, TURN
    )
    assert player.seen == [0, 1]
    assert player.sink.confirmed_count == 1


async def test_an_unusual_answer_and_the_end_wait_for_nothing() -> None:
    player = await asyncio.to_thread(play_far, START, TURN, ("fail_task",), TURN, look(waiting), RELEASE, TURN)
    assert player.seen == [1]
    player = await asyncio.to_thread(play_far, START, TURN, look(waiting), ("idle",), TURN, look(waiting))
    assert player.seen == [0, 1]
