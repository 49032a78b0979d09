"""Fixtures of the cases."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, final

import pytest

from clew.client import WorkflowHandle, WorkflowHistory
from tests.cases.harness import replay_outcomes


@final
class Recorded:
    """Histories whose replay check is due."""

    def __init__(self) -> None:
        self.histories: list[tuple[WorkflowHistory, tuple[type[Any], ...]]] = []

    async def add(self, handle: WorkflowHandle[Any, Any], *workflows: type[Any]) -> None:
        """Have the run's history replayed when the module's tests are done."""
        self.histories.append((await handle.fetch_history(), workflows))


@pytest.fixture(scope="module")
def recorded() -> Iterator[Recorded]:
    """The replay check for all runs of a module at once: one new interpreter replays what was added."""
    recorded = Recorded()
    yield recorded
    if recorded.histories:
        outcomes = replay_outcomes(recorded.histories)
        assert outcomes == ["ok"] * len(recorded.histories), outcomes
