"""What one go of a test made durable, and a store that writes it down.

Owns: `Tape`, and `WatchedStore`, which can die. Never: decides when (``_service`` does).

How it works: the store is asked as always; when a commit is done, and before anyone hears of it, its events go on the
tape and whoever listens is told. A store that has died stands for the engine's process: nothing it is asked ever comes
back, and nothing more is made durable through it. The database beneath lives on, for the engine that follows.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast, final

from clew.model.events import Event, decode_events
from clew.ports.store import CommitStatus, RunWrite, Store, StoreUnavailable


@final
@dataclass
class RunTape:
    """One run.

    Args:
        number: Which run of the test it is, by its first commit, from 0.
        workflow_id: Its workflow.
        run_id: Its id.
        events: All its events so far.
        commits: The last event id of each commit.
    """

    number: int
    workflow_id: str
    run_id: str
    events: list[Event] = field(default_factory=list[Event])
    commits: list[int] = field(default_factory=list[int])


@final
@dataclass(frozen=True)
class Report:
    """What identifies a worker's report in every go of the test.

    Args:
        run: Number of the run.
        method: Of the service.
        scheduled_event_id: Of the task it answers.
        after_event_id: What it follows, if there can be several for one task.
    """

    run: int
    method: str
    scheduled_event_id: int
    after_event_id: int = 0


@final
@dataclass(frozen=True)
class Outcome:
    """What an attempt of an activity came to."""

    activity_type: str
    attempt: int
    result: tuple[bytes, ...]


@final
class Tape:
    """All that happened in one go, on the service loop."""

    def __init__(self) -> None:
        self.runs: list[RunTape] = []
        self.reports: dict[Report, None] = {}
        self.outcomes: dict[str, list[Outcome]] = {}
        """By idempotency key, also those that were lost on the way."""
        self.on_commit: Callable[[RunTape, int], None] = lambda run, event_id: None
        self._by_run_id: dict[str, RunTape] = {}

    def run_of(self, run_id: str) -> RunTape | None:
        """The run with an id, if anything of it was committed."""
        return self._by_run_id.get(run_id)

    def note_commit(self, write: RunWrite) -> None:
        """Take down what a commit changed of one run, and tell who listens."""
        run = self._by_run_id.get(write.run_id)
        if run is None:
            run = RunTape(len(self.runs), write.workflow_id, write.run_id)
            self._by_run_id[write.run_id] = run
            self.runs.append(run)
        for batch in write.batches:
            run.events += decode_events(batch.events)
            run.commits.append(batch.last_event_id)
        if write.batches:
            self.on_commit(run, write.batches[-1].last_event_id)


@final
class WatchedStore:
    """A store that keeps a tape and can die.

    Args:
        raw: The store.
        tape: Where commits are taken down.
        closes: Whether `close` closes the store beneath.
    """

    def __init__(self, raw: Store, tape: Tape, *, closes: bool) -> None:
        self._raw = raw
        self._tape = tape
        self._closes = closes
        self._is_dead = False
        self._is_over = False
        self._unanswered: list[asyncio.Future[Any]] = []
        self.shard_count = raw.shard_count

    def die(self) -> None:
        """From now on nothing is answered or done."""
        self._is_dead = True

    def is_dead(self) -> bool:
        """Whether it has died."""
        return self._is_dead

    def end(self) -> None:
        """The test is over: refuse what was left unanswered, so that the dead engine can be put away."""
        self._is_over = True
        for future in self._unanswered:
            if not future.done():
                future.set_exception(StoreUnavailable("the engine of this store was crashed by a chaos test"))

    async def commit_if_current(self, units: Sequence[tuple[RunWrite, ...]]) -> list[CommitStatus]:
        """As `Store.commit_if_current`."""
        if self.is_dead():
            return cast(list[CommitStatus], await self._never())
        statuses = await self._raw.commit_if_current(units)
        # What was under way when it died is durable all the same.
        for unit, status in zip(units, statuses, strict=True):
            for write in unit if status is CommitStatus.COMMITTED else ():
                self._tape.note_commit(write)
        # The last line may have told somebody who let it die.
        return cast(list[CommitStatus], await self._never()) if self.is_dead() else statuses

    async def close(self) -> None:
        """As `Store.close`."""
        if self._closes:
            await self._raw.close()

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._raw, name)
        if not inspect.isroutine(value):
            return value

        async def call(*args: Any, **kwargs: Any) -> Any:
            if self.is_dead():
                return await self._never()
            answer = await value(*args, **kwargs)
            return await self._never() if self.is_dead() else answer

        return call

    async def _never(self) -> Any:
        if self._is_over:
            raise StoreUnavailable("the engine of this store was crashed by a chaos test")
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._unanswered.append(future)
        return await future
