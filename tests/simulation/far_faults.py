"""Faults planted into tasks that go over a link before their cause is durable (docs/adr/0049).

Owns: `FAR_FAULTS`, and a test for each that catches it, by name. Never: plants them (`planted` does).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from tests.link import test_early as link
from tests.simulation.fault import Fault

FAR_FAULTS: tuple[Fault, ...] = (
    Fault(
        "far-lost-cause-forgotten",
        "an answer over a link counts although the cause of its task was lost",
        "clew.link.early:EarlyNumbers.lost",
        "if number:",
        "if False:",
    ),
    Fault(
        "far-answer-to-another-session",
        "an answer over a link counts although another session gave its task out early",
        "clew.link.early:EarlyNumbers.is_worthless",
        "not self._first <= number < self._next or number in self._lost",
        "number in self._lost",
    ),
    Fault(
        "far-machine-kept",
        "a worker keeps what it began early when its session is over",
        "clew.link.early:AheadTasks.end_session",
        "if ahead.is_begun:",
        "if False:",
    ),
    Fault(
        "far-cause-never-confirmed",
        "a task that was kept until its cause is durable is never begun",
        "clew.link.early:AheadTasks.confirmed",
        "ahead.worker.sink.offer_workflow_task(ahead.task)",
        "pass",
    ),
    Fault(
        "far-answer-awaited-for-ever",
        "the cause of a task that went over a link is kept back until there is an answer",
        "clew.engine.pipeline:CommitPipeline._look_at_awaited",
        "self._release_awaited(now)",
        "pass",
    ),
)


def _numbers() -> Callable[[], Coroutine[Any, Any, None]]:
    async def check() -> None:
        link.test_numbers_of_other_sessions_and_of_lost_causes_are_worthless()

    return check


FAR_REGRESSIONS: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
    "far-lost-cause-forgotten": link.test_the_answer_to_a_lost_task_never_reaches_the_service,
    "far-answer-to-another-session": _numbers(),
    "far-machine-kept": link.test_a_new_session_voids_what_was_not_confirmed,
}
