"""A process killed during a chain of local steps: what was recorded does not run again (semantics 0.5)."""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from pathlib import Path

import pytest

from clew.client import Client
from clew.model import events as e

PROGRAM = Path(__file__).with_name("local_steps_program.py")
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
STEPS = 240
KILLS = 5
SECONDS_MAX = 60.0


async def program(folder: Path, how: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, str(PROGRAM), str(folder / "steps.db"), str(folder / "ran"), str(STEPS), how,
        stdout=asyncio.subprocess.PIPE, env=ENVIRONMENT,
    )  # fmt: skip


def ran(folder: Path) -> list[int]:
    """The steps that ran, in order."""
    path = folder / "ran"
    return [int(line) for line in path.read_text().split()] if path.exists() else []


async def kill_at(process: asyncio.subprocess.Process, folder: Path, count: int, spins: int) -> None:
    """Kill the program a moment after so many steps have run."""
    deadline = time.monotonic() + SECONDS_MAX
    while len(ran(folder)) < count:
        assert process.returncode is None, "the program ended by itself"
        assert time.monotonic() < deadline, f"step {count} did not run within {SECONDS_MAX} s"
        await asyncio.sleep(0)
    for _ in range(spins):
        pass
    process.kill()
    assert await process.wait() == -9


@pytest.mark.skipif(sys.platform == "win32", reason="kills with SIGKILL")
@pytest.mark.parametrize("how", ["one", "pairs"])
async def test_a_recorded_step_never_runs_again(how: str, tmp_path: Path) -> None:
    chance = random.Random(7)
    width = 1 if how == "one" else 2
    bounds: list[int] = []
    for round_number in range(KILLS):
        process = await program(tmp_path, how)
        target = (round_number + 1) * STEPS // (KILLS + 2) + chance.randrange(9)
        await kill_at(process, tmp_path, target, chance.randrange(60_000))
        bounds.append(len(ran(tmp_path)))
    process = await program(tmp_path, how)
    async with asyncio.timeout(SECONDS_MAX):
        output, _ = await process.communicate()
    assert int(output) == sum(range(STEPS))

    order = ran(tmp_path)
    assert set(order) == set(range(STEPS)), "no step is lost"
    repeated = [number for number in range(STEPS) if order.count(number) > 1]
    assert len(repeated) <= KILLS * width
    for number in repeated:
        # Its outcome was not recorded when the process died, so nothing that came after it can have run before that.
        first, last = order.index(number), len(order) - 1 - order[::-1].index(number)
        between = {n for n in order[first:last] if n // width > number // width}
        assert not between, f"step {number} ran again although {between} had followed it"
        assert any(first < bound <= last for bound in bounds), f"step {number} ran twice without a crash in between"

    async with await Client.connect(f"sqlite:{tmp_path / 'steps.db'}") as client:
        history = await client.get_workflow_handle("chain").fetch_history()
    markers = [event for event in history.events if isinstance(event, e.MarkerRecorded)]
    assert len(markers) == STEPS, "one event a step"
    completed = [event for event in history.events if isinstance(event, e.WorkflowTaskCompleted)]
    assert len(completed) <= 1 + KILLS, "steps cost no workflow task"
