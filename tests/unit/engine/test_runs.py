"""The cache of runs: what was read while a run changed never stands in for the run itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from clew.core.codec import encode_state
from clew.core.decisions import decide_start
from clew.engine.runs import DROP_EVERY, ENTRIES_MAX, RunCache, RunEntry, entry_of
from clew.model.inputs import StartWorkflowRequest
from clew.model.policies import WorkflowExecutionStatus
from clew.model.rejection import Rejection
from clew.ports.store import RunRow, Visibility

NOW = datetime(2026, 1, 1, tzinfo=UTC)
RUN_KEY = 7


def open_row() -> RunRow:
    request = StartWorkflowRequest(
        namespace="default", workflow_id="w", workflow_type="Some", task_queue="q", request_id="r"
    )
    decided = decide_start(request, run_id="one", now=NOW, key_generation="one")
    assert not isinstance(decided, Rejection)
    state, _ = decided
    return RunRow(
        shard=0,
        run_key=RUN_KEY,
        namespace="default",
        workflow_id="w",
        run_id="one",
        version=1,
        status=WorkflowExecutionStatus.RUNNING,
        attention_at=None,
        is_busy=True,
        state=encode_state(state),
        history_length=2,
        history_size_bytes=100,
        visibility=Visibility(workflow_type="Some", task_queue="q", start_time=NOW, execution_time=NOW),
    )


def closed_row() -> RunRow:
    row = open_row()
    state = entry_of(row).state
    state.status = WorkflowExecutionStatus.COMPLETED
    return msgspec.structs.replace(row, version=2, status=state.status, state=encode_state(state))


@pytest.mark.parametrize("leave", [RunCache.drop_closed, RunCache.discard], ids=["closed", "discarded"])
async def test_a_run_that_left_memory_while_it_was_read_is_read_again(
    leave: Callable[[RunCache, RunEntry], None],
) -> None:
    """Whoever asked for a run by its id while its close was on the way once waited for ever: the row read was older
    than the close, the entry had just left memory, and the stale one took its place.
    """
    rows = [open_row(), closed_row()]
    is_reading, may_answer = asyncio.Event(), asyncio.Event()

    async def read() -> RunRow:
        row = rows.pop(0)
        is_reading.set()
        await may_answer.wait()
        return row

    store: Any = None
    cache = RunCache(store)
    entry = entry_of(open_row())
    cache.add(entry)
    reading = asyncio.ensure_future(cache.fetch(read))
    await is_reading.wait()
    leave(cache, entry)
    may_answer.set()
    found = await reading
    assert found is not None
    assert found.state.status is WorkflowExecutionStatus.COMPLETED
    assert not rows, "it was read a second time"
    assert cache.get(RUN_KEY) is None, "a closed run takes no memory"


async def test_an_undisturbed_read_is_adopted_at_once() -> None:
    store: Any = None
    cache = RunCache(store)

    async def read() -> RunRow:
        return open_row()

    found = await cache.fetch(read)
    assert found is not None
    assert cache.get(RUN_KEY) is found
    assert await cache.fetch(read) is found, "the one in memory wins"


def waiting_entry(run_key: int) -> RunEntry:
    """A run whose first task waits in a queued row."""
    entry = entry_of(msgspec.structs.replace(open_row(), run_key=run_key))
    entry.state.workflow_id = f"w-{run_key}"
    return entry


def started(entry: RunEntry) -> None:
    task = entry.state.workflow_task
    assert task is not None
    task.started_event_id = 3


def left_to_a_session(entry: RunEntry) -> None:
    task = entry.state.workflow_task
    assert task is not None
    task.sticky_session = "s"


def asked(entry: RunEntry) -> None:
    query: Any = None
    entry.queries.append(query)


def submitted(entry: RunEntry) -> None:
    entry.submitted_count += 1


def awaited(entry: RunEntry) -> None:
    entry.update_waiters["u"] = []


@pytest.mark.parametrize("use", [started, left_to_a_session, asked, submitted, awaited])
def test_a_run_is_needed_while_memory_holds_what_the_store_does_not(use: Callable[[RunEntry], None]) -> None:
    entry = waiting_entry(1)
    assert not entry.is_needed, "a task in a queued row is loaded by whoever claims it"
    use(entry)
    assert entry.is_needed


async def test_a_crowd_of_runs_that_nobody_needs_leaves_memory() -> None:
    store: Any = None
    dropped: list[RunEntry] = []
    cache = RunCache(store, on_unneeded=dropped.append)
    busy = [waiting_entry(number) for number in range(1, 11)]
    for entry in busy:
        started(entry)
        cache.add(entry)
    for number in range(11, 20 * ENTRIES_MAX):
        cache.add(waiting_entry(number))
    assert len(cache) <= ENTRIES_MAX + 2 * DROP_EVERY, "memory does not grow with a backlog"
    assert all(cache.get(entry.run_key) is entry for entry in busy)
    assert all(entry.is_discarded for entry in dropped)
    assert len(dropped) + len(cache) == 20 * ENTRIES_MAX - 1
