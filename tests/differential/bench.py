"""What a program of the comparison gets: a client, a queue of its own, and ways to wait for what a history shows.

Owns: starting, waiting, and which runs' histories are compared. Never: knows which engine it talks to; all of it is
written against the API that both have, so this module imports neither.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Final

SECONDS_MAX: Final = 30.0
LOOK_AGAIN_SECONDS: Final = 0.02


class Bench:
    """One program's surroundings.

    Args:
        name: The program's; ids and the queue begin with it, so they are the same on both engines.
        client: Connected to the engine.
        make_worker: The engine's `Worker` class.
        read_history: Gives the projected events of a workflow id and run id (the latest run when empty).
        reset_run: Resets a run (workflow id, run id, event id, what to leave out), and gives the new run's id.
    """

    def __init__(
        self, name: str, client: Any, make_worker: Callable[..., Any], read_history: Any, reset_run: Any
    ) -> None:
        self.name = name
        self.client = client
        self.queue = f"{name}/queue"
        self.watched: list[tuple[str, str]] = []
        self._labels: dict[str, str] = {}
        self._make_worker = make_worker
        self._read_history = read_history
        self._reset_run = reset_run

    def id(self, name: str) -> str:
        """A workflow id (or queue) that no other program has."""
        return f"{self.name}/{name}"

    def watch(self, workflow_id: str, run_id: str = "") -> str:
        """Compare the history of this run (without a run id: of the whole chain) too."""
        if (workflow_id, run_id) not in self.watched:
            self.watched.append((workflow_id, run_id))
        return workflow_id

    def worker(self, workflows: Sequence[Any], activities: Sequence[Any] = (), **options: Any) -> Any:
        """A worker on the program's queue, to be entered."""
        return self._make_worker(
            self.client, task_queue=self.queue, workflows=workflows, activities=activities, **options
        )

    async def start(self, run: Any, *args: Any, name: str = "run", **options: Any) -> Any:
        """Start a workflow on the program's queue and compare its history."""
        handle = await self.client.start_workflow(run, args=args, id=self.id(name), task_queue=self.queue, **options)
        self.watch(handle.id)
        return handle

    async def settled(self, handle: Any) -> None:
        """Wait until the run has closed, whichever way."""
        async with asyncio.timeout(SECONDS_MAX):
            # Whatever the run failed with is in its history, which is what gets compared.
            with contextlib.suppress(Exception):
                await handle.result()
        while (await handle.describe()).close_time is None:
            await asyncio.sleep(LOOK_AGAIN_SECONDS)

    async def until(self, condition: asyncio.Event | Callable[[], bool]) -> None:
        """Wait until `condition` holds."""
        async with asyncio.timeout(SECONDS_MAX):
            if isinstance(condition, asyncio.Event):
                await condition.wait()
                return
            while not condition():
                await asyncio.sleep(LOOK_AGAIN_SECONDS)

    async def seen(self, workflow_id: str, event_type: str, count: int = 1) -> None:
        """Wait until the latest run of `workflow_id` has so many events of a type."""
        async with asyncio.timeout(SECONDS_MAX):
            while True:
                events = await self._read_history(workflow_id, "")
                if sum(event["type"] == event_type for event in events) >= count:
                    return
                await asyncio.sleep(LOOK_AGAIN_SECONDS)

    async def reset(
        self, workflow_id: str, run_id: str = "", *, task: int = 0, event_id: int = 0, without: Sequence[str] = ()
    ) -> Any:
        """Reset the run to its workflow task of that number, counted from 1, or to an event; gives the new handle."""
        if task:
            events = await self._read_history(workflow_id, run_id)
            completed = [event["id"] for event in events if event["type"] == "WorkflowTaskCompleted"]
            event_id = completed[task - 1]
        new_run_id = await self._reset_run(workflow_id, run_id, event_id, without)
        self.watch(workflow_id, new_run_id)
        self._labels[new_run_id] = f"{workflow_id} reset #{len(self._labels) + 1}"
        return self.client.get_workflow_handle(workflow_id, run_id=new_run_id)

    async def histories(self) -> dict[str, list[dict[str, Any]]]:
        """The projected history of every run that is compared, run after run of each chain."""
        found: dict[str, list[dict[str, Any]]] = {}
        for workflow_id, run_id in self.watched:
            first = run_id or await self._first_run_id(workflow_id)
            number = 0
            while first:
                events = await self._read_history(workflow_id, first)
                number += 1
                found[self._labels.get(run_id) or f"{workflow_id} #{number}" + (" named" if run_id else "")] = events
                first = "" if run_id else str(events[-1].get("new_execution_run_id", ""))
        return found

    async def _first_run_id(self, workflow_id: str) -> str:
        latest = await self._read_history(workflow_id, "")
        return str(latest[0]["first_execution_run_id"])
