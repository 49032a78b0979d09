"""What the guard costs a replay: nothing for each step. The interpreter tells the guard of some of what Clew itself
does, as of each look at a frame, and each time costs more than what is done. So it must not grow with the history."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks.replaying import SHAPES, replay
from clew.replay import guard
from tests.unit.replay.noted_programs import OPTIONS, PROGRAMS, Program, outcome_of, step, steps
from tests.unit.replay.story import Story


class _Counting(frozenset[str]):
    """The events that the guard looks at, which notes those it is asked for."""

    seen: Counter[str]

    def __contains__(self, event: object) -> bool:
        self.seen[str(event)] += 1
        return super().__contains__(event)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """What the interpreter tells the guard."""
    watched = _Counting(guard._WATCHED)
    watched.seen = Counter()
    monkeypatch.setattr(guard, "_WATCHED", watched)
    return watched.seen


@pytest.mark.parametrize("shape", SHAPES)
def test_a_replay_tells_the_guard_nothing_of_each_step(shape: str, told: Counter[str]) -> None:
    make, workflow_class, _ = SHAPES[shape]
    replay(make(10), workflow_class)
    counts = []
    for size in (50, 250):
        history = make(size)
        told.clear()
        replay(history, workflow_class)
        counts.append(Counter(told))
    assert counts[0], "the guard was told of the frames of a row once, or this test sees nothing"
    assert counts[0] == counts[1]


async def _in_turn() -> None:
    for number in range(20):
        await step("double", number)  # Through a coroutine of this call: its frame is another each time.
    await steps("b", 20)


def test_each_coroutine_on_the_way_to_a_step_costs_one_look(
    told: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PROGRAMS, "in_turn", _in_turn)
    story = Story(Program, "in_turn", options=OPTIONS)
    story.local = outcome_of
    while not story.is_closed:
        story.run()
    told.clear()
    story.replay()
    assert told["sys._getframe"] == 0
    assert told["object.__getattr__"] <= 3 * 44, "one for each coroutine between `run` and the step"
