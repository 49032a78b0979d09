"""A look under the bonnet: one small run, with everything that passes between the parts printed as it happens.

``make tour`` runs it. It wraps the two places through which everything goes: the service contract (what clients and
workers ask of the engine, and the tasks that the engine gives to workers) and the store (what is made durable). In the
middle of the run the worker goes away with all it remembers, and another one replays the history. `docs/tour.md` walks
through the code in the order of the output.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Sequence
from datetime import timedelta
from typing import Any

import msgspec

from clew import activity, workflow
from clew.client import Client
from clew.embedded import connect_embedded
from clew.model.events import TimerStarted, decode_events, event_type
from clew.ports.store import CommitStatus, RunWrite, Store
from clew.service.contract import Service, TaskSink, WorkerSession
from clew.service.requests import ActivityTask, WorkerHello, WorkflowTask
from clew.worker import Worker

TASK_QUEUE = "tour"


# --- the run ---------------------------------------------------------------------------------------------------------


@activity.defn
async def greet(name: str) -> str:
    """Make a greeting."""
    return f"Hello, {name}!"


@workflow.defn
class Tour:
    """An activity, a timer, a signal, another activity."""

    def __init__(self) -> None:
        self._names: list[str] = []

    @workflow.run
    async def run(self, first_name: str) -> list[str]:
        """Greet two people."""
        first = await workflow.execute_activity(greet, first_name, start_to_close_timeout=timedelta(seconds=5))
        await workflow.sleep(timedelta(seconds=0.2))
        await workflow.wait_condition(lambda: bool(self._names))
        second = await workflow.execute_activity(greet, self._names[0], start_to_close_timeout=timedelta(seconds=5))
        return [first, second]

    @workflow.signal
    def also_greet(self, name: str) -> None:
        """Name the second person."""
        self._names.append(name)


async def main() -> None:
    """Run the tour."""
    connection = await connect_embedded(":memory:", wrap_store=lambda store: TracedStore(store))
    connection.service = TracedService(connection.service)
    async with Client(connection) as client:
        say("A worker attaches, and a client starts a workflow.")
        async with Worker(client, task_queue=TASK_QUEUE, workflows=[Tour], activities=[greet]):
            handle = await client.start_workflow(Tour.run, "Ariadne", id="tour-1", task_queue=TASK_QUEUE)
            async for event in handle.fetch_history_events(wait_new_event=True):
                if isinstance(event, TimerStarted):
                    break
            say("The run waits for its timer: it is rows in the store, and nothing else. The worker goes away.")
        say("A signal comes while no worker is there.")
        await handle.signal(Tour.also_greet, "Theseus")
        say("Another worker attaches. It knows nothing of this run: it gets the whole history and replays it.")
        async with Worker(client, task_queue=TASK_QUEUE, workflows=[Tour], activities=[greet]):
            result = await handle.result()
        say(f"The result is {result}.")


# --- what is printed -------------------------------------------------------------------------------------------------


def say(text: str) -> None:
    """Print a sentence between the lines of the trace."""
    print(f"\n# {text}", flush=True)


def show(arrow: str, name: str, facts: Any) -> None:
    """Print one line of the trace."""
    text = ", ".join(f"{key}={_short(value)}" for key, value in _given_facts(facts).items())
    print(f"{arrow:<12} {name}  {text}"[:200].rstrip(), flush=True)


def _given_facts(facts: Any) -> dict[str, Any]:
    """The fields of a struct that say something."""
    if not isinstance(facts, msgspec.Struct):
        return {}
    return {key: value for key, value in msgspec.structs.asdict(facts).items() if value not in (None, "", 0, (), {})}


def _short(value: Any) -> str:
    match value:
        case msgspec.Raw():
            return bytes(value).decode()
        case tuple():
            return f"[{', '.join(_short(item) for item in value[:2])}{', …' if len(value) > 2 else ''}]"
        case msgspec.Struct():
            return type(value).__name__
        case timedelta():
            return f"{value.total_seconds():g}s"
        case _:
            return str(value)


class TracedService:
    """Prints each request on its way to the engine."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._service, name)
        if not inspect.ismethod(method):
            return method

        def call(request: Any, *rest: Any) -> Any:
            show("request  →", name, request)
            return method(request, *rest)

        return call

    def attach_worker(self, hello: WorkerHello, sink: TaskSink) -> Awaitable[WorkerSession]:
        """Attach with a sink that prints what it is given."""
        show("request  →", "attach_worker", hello)
        return self._service.attach_worker(hello, TracedSink(sink))


class TracedSink:
    """Prints each task on its way to a worker."""

    def __init__(self, sink: TaskSink) -> None:
        self._sink = sink

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sink, name)

    def offer_workflow_task(self, task: WorkflowTask) -> None:
        """A turn for workflow code."""
        kind = "new events" if task.is_partial else "whole history"
        print(f"{'task     ←':<12} workflow task, {kind}: {', '.join(event_type(event) for event in task.events)}")
        self._sink.offer_workflow_task(task)

    def offer_activity_task(self, task: ActivityTask) -> None:
        """One attempt of an activity."""
        show("task     ←", "activity task", task)
        self._sink.offer_activity_task(task)


class TracedStore:
    """Prints each transition on its way to the disk."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def commit_if_current(self, units: Sequence[tuple[RunWrite, ...]]) -> Awaitable[list[CommitStatus]]:
        """Write."""
        for write in (write for unit in units for write in unit):
            events = [event for batch in write.batches for event in decode_events(batch.events)]
            names = ", ".join(f"{event.event_id} {event_type(event)}" for event in events) or "no event"
            print(f"{'commit   ↓':<12} version {write.version} of {write.workflow_id}: {names}")
        return self._store.commit_if_current(units)


if __name__ == "__main__":
    asyncio.run(main())
