"""C015: a step is known by the order of the calls, not by who gets somewhere first, also across crashes."""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta
from pathlib import Path
from typing import Any

from clew import activity, workflow
from clew.client import Client
from clew.model import events as e
from tests.cases.harness import (
    QUEUE,
    Process,
    address,
    engine,
    events,
    eventually,
    replay_check_all,
    settled,
    within,
    worker,
)

RUNS = 30
KILLS = 5
SECONDS_OF_A_STEP_MAX = 0.3
FIRST, SECOND = ("a", "b", "c"), ("d", "e", "f", "g", "h")


async def _step(name: str, file: str) -> str:
    """Note the start, take a random time, note the end; the name of the step is its result."""
    info = activity.info()
    key = f"{info.workflow_id} {name}"
    with Path(file).open("a") as stream:
        stream.write(f"start {key} {info.attempt}\n")
    await asyncio.sleep(random.Random(f"{key} {info.attempt}").random() * SECONDS_OF_A_STEP_MAX)
    with Path(file).open("a") as stream:
        stream.write(f"end {key} {info.attempt}\n")
    return name


def _named(name: str) -> Any:
    @activity.defn(name=name)
    async def step(file: str) -> str:
        return await _step(name, file)

    return step


STEPS = {name: _named(name) for name in (*FIRST, *SECOND)}


@workflow.defn
class TwoGathers:
    @workflow.run
    async def run(self, file: str) -> list[str]:
        slots: list[str] = []
        for names in (FIRST, SECOND):
            slots += await asyncio.gather(
                *(
                    workflow.execute_activity(STEPS[name], file, start_to_close_timeout=timedelta(seconds=30))
                    for name in names
                )
            )
        return slots


async def serve(database: str, file: str, is_first: str) -> None:
    """The process that is killed."""
    async with await Client.connect(address(database)) as client:
        if is_first == "yes":
            for number in range(RUNS):
                await client.start_workflow(TwoGathers.run, file, id=f"run-{number}", task_queue=QUEUE)
        async with worker(client, [TwoGathers], list(STEPS.values())):
            await asyncio.Event().wait()


def _ends(file: Path) -> int:
    return file.read_text().count("end ") if file.exists() else 0


async def test_results_stay_in_their_slots_and_recorded_steps_do_not_run_again(tmp_path: Path) -> None:
    database, file = tmp_path / "clew.db", tmp_path / "steps"
    dice = random.Random(15)
    steps_count = RUNS * len(STEPS)
    recorded: dict[str, set[str]] = {f"run-{number}": set() for number in range(RUNS)}
    marks: list[tuple[int, dict[str, set[str]]]] = []
    for kill in range(KILLS):
        ends = _ends(file)
        # Some steps have finished, others have begun.
        wanted = min(ends + dice.randrange(5, steps_count // KILLS), steps_count - 10)
        with Process(serve, str(database), str(file), "no" if kill else "yes") as process:
            await eventually(lambda wanted=wanted: _ends(file) >= wanted, f"{wanted} steps", 40)  # type: ignore[misc]
            process.kill()
        async with engine(database=database) as client:
            for workflow_id in recorded:
                recorded[workflow_id] = await _recorded_steps(client, workflow_id)
        marks.append((len(file.read_text().splitlines()), {key: set(value) for key, value in recorded.items()}))
    async with engine(database=database) as client, worker(client, [TwoGathers], list(STEPS.values())):
        handles: list[Any] = [client.get_workflow_handle(workflow_id) for workflow_id in recorded]
        for handle in handles:
            assert await settled(handle, 40) == [*FIRST, *SECOND]
        histories = [(await handle.fetch_history(), (TwoGathers,)) for handle in handles]
    lines = file.read_text().splitlines()
    assert len(lines) > 2 * steps_count, "no step was under way at any kill: the case tests nothing"
    for mark, known in marks:
        for line in lines[mark:]:
            word, workflow_id, name, _ = line.split()
            assert word == "end" or name not in known[workflow_id], f"{line}: its result was recorded before"
    await within(replay_check_all(histories), 60)


async def _recorded_steps(client: Client, workflow_id: str) -> set[str]:
    handle: Any = client.get_workflow_handle(workflow_id)
    names = {event.event_id: event.activity_type for event in await events(handle, e.ActivityTaskScheduled)}
    return {names[event.scheduled_event_id] for event in await events(handle, e.ActivityTaskCompleted)}
