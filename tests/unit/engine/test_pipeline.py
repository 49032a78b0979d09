"""The commit pipeline when a batch of unknown outcome meets open changes, and a newer entry of the same run."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, cast

from clew.core.codec import decode_state, encode_state
from clew.core.decisions import decide_signal, decide_start
from clew.core.transition import Transition
from clew.engine.pipeline import CommitPipeline, Outcome, Submission
from clew.engine.runs import RunEntry
from clew.model.events import decode_events
from clew.model.inputs import SignalWorkflowRequest, StartWorkflowRequest
from clew.model.rejection import Rejection
from clew.ports.store import CommitStatus, RunWrite, StoreUnavailable

NOW = datetime(2030, 1, 1, tzinfo=UTC)


class HeldStore:
    """Holds every batch until the test says how it went."""

    def __init__(self) -> None:
        self.batches: list[tuple[Sequence[tuple[RunWrite, ...]], asyncio.Future[list[CommitStatus]]]] = []

    def commit_if_current(self, units: Sequence[tuple[RunWrite, ...]]) -> asyncio.Future[list[CommitStatus]]:
        future: asyncio.Future[list[CommitStatus]] = asyncio.get_running_loop().create_future()
        self.batches.append((units, future))
        return future


class Bench:
    """A pipeline over a held store, and what became of each submission."""

    def __init__(self) -> None:
        self.store = HeldStore()
        self.outcomes: dict[str, Outcome] = {}
        self.pipeline = CommitPipeline(
            cast(Any, self.store), cast(Any, None), on_discard=self.discard, on_finished=lambda entry: None
        )

    def discard(self, entry: RunEntry) -> None:
        entry.is_discarded = True
        self.pipeline.abandon(entry)

    def submit(self, name: str, entry: RunEntry, transition: Transition) -> None:
        def settled(_: Submission, outcome: Outcome) -> None:
            self.outcomes[name] = outcome

        self.pipeline.submit(Submission(entry, transition.events, settled, transition))

    def signal(self, name: str, entry: RunEntry) -> None:
        request = SignalWorkflowRequest(namespace="default", workflow_id="w", signal_name=name, request_id=name)
        decided = decide_signal(entry.state, request, NOW)
        assert isinstance(decided, Transition)
        self.submit(name, entry, decided)


def started() -> tuple[RunEntry, Transition]:
    request = StartWorkflowRequest(
        namespace="default", workflow_id="w", workflow_type="W", task_queue="q", request_id="start"
    )
    decided = decide_start(request, run_id="r", now=NOW, key_generation="r")
    assert not isinstance(decided, Rejection)
    state, transition = decided
    return RunEntry(state, 0, 1), transition


def as_stored(entry: RunEntry) -> RunEntry:
    again = RunEntry(decode_state(encode_state(entry.state)), 0, 1)
    again.persisted_version = entry.persisted_version
    again.persisted_status = entry.persisted_status
    return again


async def turn() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_open_changes_of_a_discarded_entry_are_never_stored_with_those_of_its_successor() -> None:
    bench = Bench()
    old, start = started()
    bench.submit("start", old, start)
    await turn()
    stored = as_stored(old)  # the first batch does get durable, though its answer is lost
    bench.signal("second", old)
    await turn()
    bench.signal("open", old)  # two batches are in flight, so this one waits
    await turn()
    assert [len(units) for units, _ in bench.store.batches] == [1, 1]

    bench.store.batches[0][1].set_exception(StoreUnavailable("the answer is lost"))
    bench.store.batches[1][1].set_exception(StoreUnavailable("so is this one"))
    await turn()
    assert all(isinstance(bench.outcomes[name], StoreUnavailable) for name in ("start", "second", "open"))

    bench.signal("fresh", stored)
    bench.signal("stray", old)  # decided by somebody who still held the old entry
    await turn()
    ((write,),) = bench.store.batches[2][0]
    assert isinstance(bench.outcomes["stray"], StoreUnavailable)
    events = [event for batch in write.batches for event in decode_events(batch.events)]
    assert [getattr(event, "signal_name", "") for event in events] == ["fresh"]
    assert decode_state(write.state).next_event_id == events[-1].event_id + 1 == write.history_length + 1

    bench.store.batches[2][1].set_result([CommitStatus.COMMITTED])
    await asyncio.wait_for(bench.pipeline.wait_idle(), 5)
    assert bench.outcomes["fresh"] is CommitStatus.COMMITTED
