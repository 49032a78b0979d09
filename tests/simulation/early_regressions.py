"""Tests of tasks that are given out early, as those that catch the faults planted there (docs/adr/0029).

Owns: `EARLY_REGRESSIONS`, by the name of the fault. Never: tests of its own; they stand beside the code.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from tests.unit.engine import test_early as engine
from tests.unit.worker import test_early_tasks as worker


def _at_bench(check: Callable[[worker.EarlyBench], Awaitable[None]]) -> Callable[[], Coroutine[Any, Any, None]]:
    async def run() -> None:
        bench = worker.EarlyBench()
        try:
            await check(bench)
        finally:
            await bench.close()
        assert bench.errors == []

    return run


EARLY_REGRESSIONS: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
    "early-machine-kept": engine.test_when_the_cause_is_lost_the_run_is_forgotten_and_nothing_of_the_answer_goes_out,
    "early-joined-events-lost": engine.test_history_is_whole_whatever_joined,
    "early-worthless-answer-taken": engine.test_an_answer_that_rests_on_a_lost_cause_is_not_decided_again,
    "early-cause-never-confirmed": engine.test_a_task_without_an_answer_is_confirmed_and_not_offered_again,
    "early-general-answer-decided-again": (engine.test_an_update_that_is_lost_with_its_outcome_has_happened_to_nobody),
    "once-refused-out-of-turn": engine.test_an_unusual_answer_waits_although_a_later_change_is_heard_of_first,
    "early-step-acts-at-once": _at_bench(worker.test_local_activities_of_a_lost_cause_are_never_run),
    "early-void-answer-sent": _at_bench(worker.test_the_answer_to_a_lost_task_is_not_given),
}
