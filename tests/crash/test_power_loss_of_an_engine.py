"""A power failure at any moment of a whole engine: what its client was told is there, and it goes on (laws 1, 2, 3, 6).

Engine, worker and client run in one process whose file operations are watched. The disks that a loss of power could
have left at any moment are put together afterwards; on each an engine is started, looked at, and given a worker again.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import random
import shutil
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from clew.client import Client
from clew.converter import DataConverter
from clew.model import events as e
from clew.service.errors import RPCError
from clew.worker import Worker
from tests.crash import records
from tests.crash.caller import SameIds
from tests.crash.killed_program import QUEUE, SIGNALS, STEPS, Sum, double, see_through
from tests.crash.watched_files import Journal

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at SQLite through ldd")

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
MOMENTS = int(os.environ.get("CLEW_ENGINE_POWER_LOSS_MOMENTS", "6"))
RUNS = 6
MOMENT_SECONDS = 20
"""Allowed for each on a very busy machine."""


def record(folder: Path) -> Journal:
    """Run the program to its end, and give what happened to its files until then."""
    command = [sys.executable, "-m", "tests.crash.power_program"]
    arguments = [str(folder / "sums.db"), str(folder / "journal"), str(RUNS)]
    subprocess.run([*command, *arguments], check=True, env=ENVIRONMENT, timeout=120)
    journal = Journal()
    journal.steps = pickle.loads((folder / "journal").read_bytes())
    return journal


async def events_of(client: Client, number: int) -> list[e.BaseEvent]:
    """The history of a run, whose ids are dense; none when there is no such run."""
    try:
        history = await client.get_workflow_handle(f"sum-{number}").fetch_history()
    except RPCError:
        return []
    events = list(history.events)
    assert [event.event_id for event in events] == list(range(1, len(events) + 1))
    return events


def signals_of(events: list[e.BaseEvent]) -> Counter[int]:
    """How often each value was signalled."""
    converter = DataConverter.default.payload_converter
    of_signals = (event for event in events if isinstance(event, e.WorkflowExecutionSignaled))
    return Counter(converter.from_stored(event.input[0], int) for event in of_signals)


async def lost_after(journal: Journal, count: int, folder: Path, chance: random.Random | None) -> list[str]:
    """What is missing after a power failure behind the first `count` steps, of what the client had been told.

    Raises:
        AssertionError: The file is damaged, a history has gaps, or the runs do not come to their ends.
    """
    folder.mkdir()
    journal.rebuild(count, folder, chance)
    path = str(folder / "sums.db")
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()
    told = {note for note in journal.notes(count) if note != "ready"}
    wrong: list[str] = []
    async with await Client.connect(f"sqlite:{path}", interceptors=[SameIds()]) as client:
        for number in range(RUNS):
            events = await events_of(client, number)
            there = {f"started {number}"} if events else set[str]()
            signals = signals_of(events)
            assert not signals or max(signals.values()) == 1, "each was sent once"
            there |= {f"signalled {number} {value}" for value in signals}
            if events and isinstance(events[-1], e.WorkflowExecutionCompleted):
                there.add(f"result {number} {sum(2 * value for value in range(number, number + STEPS))}")
            wrong += [f"{line!r} was told" for line in sorted(told - there) if line.split()[1] == str(number)]
        async with Worker(client, task_queue=QUEUE, workflows=[Sum], activities=[double]):
            await asyncio.gather(*(see_through(client, number, told, told.add) for number in range(RUNS)))
        for number in range(RUNS):
            events = await events_of(client, number)
            assert isinstance(events[-1], e.WorkflowExecutionCompleted)
            assert sum(isinstance(event, e.ActivityTaskCompleted) for event in events) == STEPS
            assert sorted(signals_of(events).items()) == [(value, 1) for value in range(SIGNALS)]
    return wrong


@pytest.mark.timeout(240 + MOMENTS * MOMENT_SECONDS)
async def test_what_a_client_was_told_survives_a_power_failure(tmp_path: Path) -> None:
    journal = await asyncio.to_thread(record, tmp_path)
    ready = next(index for index, step in enumerate(journal.steps) if step.data == "ready")
    assert sum(step.kind == "write" for step in journal.steps) > 100, "the writes of the engine were seen"
    chance = random.Random(12)
    began = time.monotonic()
    moments: Counter[str] = Counter()
    lines_told = 0
    for number in range(MOMENTS):
        count = chance.randrange(ready, len(journal.steps) + 1)
        torn = chance if number % 2 else None
        lines_told += len(journal.notes(count)) - 1
        assert await lost_after(journal, count, tmp_path / f"disk{number}", torn) == []
        shutil.rmtree(tmp_path / f"disk{number}")
        moments["some sectors after the last sync" if torn else "nothing after the last sync"] += 1
    records.record(
        "power_loss_of_an_engine_sqlite",
        began,
        kills=dict(moments),
        steps=len(journal.steps),
        acknowledged=lines_told,
        runs=RUNS * MOMENTS,
    )


async def test_an_answer_that_came_before_its_sync_is_found_out(tmp_path: Path) -> None:
    journal = await asyncio.to_thread(record, tmp_path)
    told = next(index for index, step in enumerate(journal.steps) if str(step.data).startswith("started"))
    syncs = [index for index, step in enumerate(journal.steps[:told]) if step.kind == "sync"]
    # As if the client had been told before the log was synced.
    early = Journal()
    early.steps = [*journal.steps[: syncs[-1]], journal.steps[told]]
    assert await lost_after(early, len(early.steps), tmp_path / "disk", None) == [
        f"{journal.steps[told].data!r} was told"
    ]
