"""The client of the mixed workload, and the checks of all that it was told.

Owns: `Rounds`: which calls were made and acknowledged, and `check`, which compares them with the histories, the store
and the ledger of effects. Never: kills anything.

How it works: a round is one `Mixed` and one `Held`, each seen through from its start to its result. A call that is
refused as unavailable is made again until it is answered, as a careful caller does: with the same request where the
client lets one choose it, otherwise counted, so that the history may hold as many as were sent and must hold one.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

from clew.client import Client, WorkflowFailureError, WorkflowHandle
from clew.common import WorkflowIDReusePolicy
from clew.core.codec import decode_state
from clew.core.evolve import fold
from clew.core.facts import durable_facts
from clew.exceptions import CancelledError, WorkflowAlreadyStartedError
from clew.model import events as e
from clew.model.rejection import RejectionCode
from clew.ports.store import RunRow, Store
from clew.service.errors import RPCError
from clew.stores import open_reader_by_address
from tests.crash.caller import insist
from tests.crash.mixed import CHILD_STEPS, HELD_STEPS, QUEUE, RESULT, SIGNALS, STEPS, Held, Mixed
from tests.simulation.clients import value_of

T = TypeVar("T")

SECONDS_MAX = 180.0
"""Generous: the machine may be busy, and a round may live through many kills."""

_RUNS_MAX = 1000
_BYTES_MAX = 1 << 24


class Rounds:
    """See the module docstring.

    Args:
        clients: Of the nodes; rounds go by them in turn.
        ledger: The file that the workers write their effects to.
    """

    def __init__(self, clients: Sequence[Client], ledger: Path) -> None:
        self.clients = clients
        self.ledger = ledger
        self.names: list[str] = []
        self.sent: Counter[tuple[str, object]] = Counter()
        """How often each signal and cancel was sent, by workflow id and value."""
        self.acknowledged: set[tuple[str, object]] = set()
        """What was answered: ``start``, ``cancel``, ``update`` or the number of a signal, by workflow id."""

    async def see_through(self, name: str) -> None:
        """One round, from its starts to its results.

        Raises:
            AssertionError: A result is not what it should be, or it took too long.
        """
        client = self.clients[len(self.names) % len(self.clients)]
        self.names.append(name)
        try:
            async with asyncio.timeout(SECONDS_MAX):
                await asyncio.gather(self._see_mixed(client, f"mixed-{name}"), self._see_held(client, f"held-{name}"))
        except TimeoutError:
            raise AssertionError(
                f"round {name} took more than {SECONDS_MAX:g} s: {await self.open_runs(name)}"
            ) from None

    async def open_runs(self, name: str = "") -> str:
        """What the open runs of a round wait for, or those of all rounds."""
        found: list[str] = []
        client = self.clients[-1]
        async for run in client.list_workflows("ExecutionStatus = 'Running'"):
            if name in ("", run.id.split("-")[1]):
                described = await client.get_workflow_handle(run.id).describe()
                found.append(f"{run.id} waits for {', '.join(described.waiting_for)}")
        return "; ".join(found) or "no run is open"

    async def _see_mixed(self, client: Client, workflow_id: str) -> None:
        handle = await self._start(client, Mixed.run, workflow_id)
        await self._signal(handle, SIGNALS[0])
        answer = await insist(lambda: handle.execute_update(Mixed.add, 5, id=f"{workflow_id}-add"))
        assert answer == 6, answer
        self.acknowledged.add((workflow_id, "update"))
        await self._signal(handle, SIGNALS[1])
        result = await insist(handle.result)
        assert result == RESULT, f"{workflow_id} came to {result}"

    async def _see_held(self, client: Client, workflow_id: str) -> None:
        handle = await self._start(client, Held.run, workflow_id)
        self.sent[workflow_id, "cancel"] += 1
        await insist(handle.cancel)
        self.acknowledged.add((workflow_id, "cancel"))
        with pytest.raises(WorkflowFailureError) as failed:
            await insist(handle.result)
        assert isinstance(failed.value.cause, CancelledError), failed.value.cause

    async def _start(self, client: Client, run: Any, workflow_id: str) -> WorkflowHandle[Any, Any]:
        async def start() -> WorkflowHandle[Any, Any]:
            try:
                return await client.start_workflow(
                    run, id=workflow_id, task_queue=QUEUE, id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE
                )
            except WorkflowAlreadyStartedError:
                return client.get_workflow_handle_for(run, workflow_id)

        handle = await insist(start)
        self.acknowledged.add((workflow_id, "start"))
        return handle

    async def _signal(self, handle: WorkflowHandle[Any, Any], number: int) -> None:
        async def send() -> None:
            self.sent[handle.id, number] += 1
            try:
                await handle.signal(Mixed.note, number)
            except RPCError as error:
                # The signal itself lets the run go on: it was taken, and the answer to an earlier call was lost.
                if error.code is not RejectionCode.WORKFLOW_ALREADY_COMPLETED or self.sent[handle.id, number] == 1:
                    raise

        await insist(send)
        self.acknowledged.add((handle.id, number))

    def take_over(self, name: str) -> None:
        """A round that a client process went through, which sends each of its requests under one id: it counts once."""
        self.names.append(name)
        for number in SIGNALS:
            self.sent[f"mixed-{name}", number] = 1

    # --- checks -----------------------------------------------------------------------------------------------------

    async def check(self, address: str) -> dict[str, int]:
        """Compare the store at `address` with what was acknowledged; answers how much there was.

        Raises:
            AssertionError: A law is broken; the message says which and where.
        """
        store = await open_reader_by_address(address)
        try:
            rows = await store.list_runs("default", None, _RUNS_MAX * len(self.names), None)
            chains: defaultdict[str, list[tuple[RunRow, list[e.BaseEvent]]]] = defaultdict(list)
            for listed in reversed(rows):
                row = await store.load_run(listed.shard, listed.run_key)
                assert row is not None, f"run {listed.run_id} is listed and not there"
                chains[row.workflow_id].append((row, await check_run(store, row)))
        finally:
            await store.close()
        for name in self.names:
            self._check_chain(f"mixed-{name}", chains, {"WorkflowExecutionCompleted": 1})
            self._check_chain(f"held-{name}", chains, {"WorkflowExecutionCanceled": 1})
        wanted = {f"{kind}-{name}{part}" for name in self.names for kind, part in _KINDS}
        assert chains.keys() == wanted, f"too few or too many workflows: {chains.keys() ^ wanted}"
        self._check_ledger()
        return {
            "runs": len(rows),
            "events": sum(len(events) for chain in chains.values() for _, events in chain),
            "acknowledged": len(self.acknowledged),
        }

    def _check_chain(
        self, workflow_id: str, chains: dict[str, list[tuple[RunRow, list[e.BaseEvent]]]], end: dict[str, int]
    ) -> None:
        events = [event for _, of_run in chains.get(workflow_id, ()) for event in of_run]
        assert events, f"{workflow_id} was started, and is not there"
        count = Counter(type(event).__name__ for event in events)
        is_mixed = workflow_id.startswith("mixed")
        wanted = _MIXED_COUNTS if is_mixed else _HELD_COUNTS
        for kind, number in (wanted | end).items():
            assert count[kind] == number, f"{workflow_id} has {count[kind]} {kind} and should have {number}"
        values = Counter(value_of(event.input) for event in events if isinstance(event, e.WorkflowExecutionSignaled))
        for number in SIGNALS if is_mixed else ():
            times, sent = values[number], self.sent[workflow_id, number]
            assert 1 <= times <= sent, (
                f"{workflow_id}: signal {number} was sent {sent} times and is there {times} times"
            )
        requests = Counter(
            event.request_id
            for event in events
            if isinstance(event, e.WorkflowExecutionSignaled | e.WorkflowExecutionCancelRequested)
        )
        twice = [request for request, times in requests.items() if times > 1]
        assert not twice, f"{workflow_id}: requests {twice} are recorded twice"

    def _check_ledger(self) -> None:
        """No step is missing, and each acted under one key, however often it was tried."""
        keys: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
        attempts: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        for line in self.ledger.read_text().splitlines():
            workflow_id, step, attempt, key = line.split()
            keys[workflow_id, step].add(key)
            attempts[workflow_id, step][attempt] += 1
        wanted: set[tuple[str, str]] = set()
        for name in self.names:
            wanted |= {(f"mixed-{name}", step) for step in STEPS}
            wanted |= {(f"mixed-{name}-part", step) for step in CHILD_STEPS}
            wanted |= {(f"held-{name}", step) for step in HELD_STEPS}
        assert keys.keys() == wanted, f"effects too few or too many: {keys.keys() ^ wanted}"
        several = {step: found for step, found in keys.items() if len(found) > 1}
        assert not several, f"steps that acted under more than one key: {several}"
        owners: Counter[str] = Counter(key for found in keys.values() for key in found)
        shared = [key for key, count in owners.items() if count > 1]
        assert not shared, f"keys of more than one step: {shared}"


_KINDS = (("mixed", ""), ("mixed", "-part"), ("held", ""))
_MIXED_COUNTS = {
    "WorkflowExecutionStarted": 2,
    "WorkflowExecutionContinuedAsNew": 1,
    "TimerStarted": 2,
    "TimerFired": 2,
    "WorkflowExecutionUpdateAccepted": 1,
    "WorkflowExecutionUpdateCompleted": 1,
    "ActivityTaskScheduled": len(STEPS),
    "ActivityTaskCompleted": len(STEPS),
    "StartChildWorkflowExecutionInitiated": 1,
    "ChildWorkflowExecutionStarted": 1,
    "ChildWorkflowExecutionCompleted": 1,
    "MarkerRecorded": 1,
}
"""Events of a chain of `Mixed`: each thing that its code did is recorded once."""

_HELD_COUNTS = {
    "WorkflowExecutionStarted": 1,
    "WorkflowExecutionCancelRequested": 1,
    "ActivityTaskScheduled": len(HELD_STEPS),
    "ActivityTaskCompleted": len(HELD_STEPS),
}


async def check_run(store: Store, row: RunRow) -> list[e.BaseEvent]:
    """The history of a run, which is dense, closed, and folds to its state.

    Raises:
        AssertionError: It is not.
    """
    batches = await store.read_history(row.shard, row.run_key, 1, _BYTES_MAX)
    events: list[e.BaseEvent] = [event for batch in batches for event in e.decode_events(batch.events)]
    about = f"{row.workflow_id} {row.run_id}"
    assert [event.event_id for event in events] == list(range(1, row.history_length + 1)), f"{about}: ids have gaps"
    assert not row.status.is_open, f"{about} is still open"
    state = decode_state(row.state, [(item.kind, item.item_id, item.data) for item in row.items])
    stated = durable_facts(state)
    folded = durable_facts(fold(events, namespace=state.namespace, run_id=row.run_id))
    differing = {name: (folded[name], stated[name]) for name in stated if stated[name] != folded[name]}
    assert not differing, f"{about}: fold(history) and the state differ in {differing}"
    return events
