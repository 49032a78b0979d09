"""What the simulation found when runs were deleted, retried and reset, each pinned by a small test.

Owns: `LIFECYCLE_REGRESSIONS`, a part of ``regressions``. Never: plants the faults.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from typing import Any

import pytest

from clew.adapters import SystemEntropy
from clew.engine import Engine
from clew.engine.runs import RunEntry
from clew.model import commands as c
from clew.ports.store import CommitStatus, RunWrite, Store, StoreError, StoreUnavailable
from clew.service import requests as r
from clew.service.errors import RPCError
from clew.service.operations import DeleteWorkflowRequest
from tests.conformance.service.scripted import soon
from tests.fleet.shop import FleetShop, Node
from tests.simulation.faulty_shop import FaultyShop, in_shop, until
from tests.simulation.model_store import ModelData, ModelStore
from tests.unit.engine.test_attention import NOW, Bench

READS_MAX = 20
"""Reads of one run for one deadline, at most; they were without end."""

W1 = {"namespace": "default", "workflow_id": "w1"}


async def _deleted_elsewhere(shop: FleetShop) -> tuple[Node, RunEntry]:
    """A node, and what it remembers of a run that has ended on another node, and was deleted through that."""
    await shop.open()
    first, second = shop.nodes
    start = r.StartWorkflowRequest(**W1, workflow_type="W", task_queue="q", request_id="one")
    await soon(first.engine.start_workflow(start))
    entry = first.engine._cache.get_open("default", "w1")
    assert entry is not None, "the node that starts a run remembers it"
    worker = await shop.worker(second)
    first.notifier.is_paused = True  # Hints between nodes may be lost.
    await worker.complete(await worker.workflow_task(), c.CompleteWorkflowExecution())
    await soon(second.engine.delete_workflow(DeleteWorkflowRequest(**W1)))
    return first, entry


async def a_run_that_was_deleted_through_another_node_is_asked_for() -> None:
    """The node described it as open."""
    shop = FleetShop(nodes=2)
    try:
        node, _ = await _deleted_elsewhere(shop)
        with pytest.raises(RPCError, match="does not exist"):
            await soon(node.engine.describe_workflow(r.DescribeWorkflowRequest(**W1)))
    finally:
        await shop.close()


async def a_run_that_was_deleted_through_another_node_is_due() -> None:
    """The node read it again and again, and each time took what it remembered for it."""
    shop = FleetShop(nodes=2)
    try:
        node, entry = await _deleted_elsewhere(shop)
        node.engine._discarded(entry)
        reads = 0
        load = node.engine._cache.load

        async def counted(shard: int, run_key: int) -> RunEntry | None:
            nonlocal reads
            reads += 1
            assert reads < READS_MAX, "it is read again and again"
            return await load(shard, run_key)

        node.engine._cache.load = counted  # type: ignore[method-assign]
        node.engine._wake_due(entry)
        await shop.settle()
        await node.engine._funnel.wait_spawned()
        assert 0 < reads < READS_MAX
    finally:
        await shop.close()


class _Reading(Bench):
    """A bench with a run whose first event is being read while it is due."""

    def wake(self, entry: RunEntry) -> bool:
        self.woken.append(entry)
        assert len(self.woken) < READS_MAX, "it is found due again and again"
        return False


async def a_run_is_due_whose_first_event_is_still_being_read() -> None:
    """Each turn of the loop found it due, and began to read once more."""
    bench = _Reading()
    await bench.attention.start()
    bench.sleeper(10)
    await bench.clock.go_to(NOW + timedelta(seconds=12))
    assert len(bench.woken) == 1


class _ModelShop(FaultyShop):
    """A shop on the model store, which answers at once, so that who waits for the same goes on in the same turn.

    Attributes:
        outcomes: What became of each unit.
    """

    def __init__(self) -> None:
        super().__init__()
        self._data = ModelData()
        self.outcomes: list[CommitStatus] = []

    async def open(self) -> None:
        """Start an engine on what is stored."""
        clock = self.clock.attach(asyncio.get_running_loop())
        store: Store = ModelStore(self._data, clock.now)
        commit = store.commit_if_current

        def commit_if_current(units: Sequence[tuple[RunWrite, ...]]) -> Any:
            done: asyncio.Future[list[CommitStatus]]
            if error := self.why_not(units):
                done = asyncio.get_running_loop().create_future()
                done.set_exception(error)
                return done
            done = asyncio.ensure_future(commit(units))
            self.outcomes += done.result()
            return done

        store.commit_if_current = commit_if_current  # type: ignore[method-assign]
        self.engine = Engine(self.faults.wrap(store), clock=clock, entropy=SystemEntropy())
        self.service = self.engine
        await self.engine.start()

    def why_not(self, units: Sequence[tuple[RunWrite, ...]]) -> StoreError | None:
        """Why a commit is refused; None when it is not."""
        return None

    def runs_open(self) -> list[str]:
        """The runs that are open, by id."""
        return [run.row.run_id for run in self._data.runs.values() if run.row.status.is_open]


async def two_resets_read_the_same_run_at_once() -> None:
    """Both began a run behind it, in one unit: two runs stayed open, or else the store refused both resets."""
    shop = _ModelShop()
    await shop.open()
    try:
        worker = await shop.worker()
        await shop.start()
        await worker.complete(await worker.workflow_task())
        await shop.restart()  # Now the history is read from the store.
        held = shop.faults.hold("read_history", times=2)
        resets = [
            asyncio.ensure_future(
                shop.service.reset_workflow(
                    r.ResetWorkflowRequest(
                        **W1, reason="again", request_id=name, reset_type=r.ResetType.FIRST_WORKFLOW_TASK
                    )
                )
            )
            for name in ("one", "two")
        ]
        await until(lambda: held.held_count == 2)
        held.release()
        made = [(await soon(one)).run_id for one in resets]
        assert len(shop.runs_open()) == 1
        assert set(shop.runs_open()) < set(made)
        assert set(shop.outcomes) == {CommitStatus.COMMITTED}
    finally:
        await shop.close()


class _RefusingShop(_ModelShop):
    """A shop whose store refuses whatever goes on with the run of one workflow id.

    Attributes:
        refused: The workflow id; empty when nothing is refused any more.
        refusals: How often it refused.
    """

    refused = ""
    refusals = 0

    def why_not(self, units: Sequence[tuple[RunWrite, ...]]) -> StoreError | None:
        if all(write.workflow_id != self.refused or not write.expected_version for unit in units for write in unit):
            return None
        self.refusals += 1
        return StoreUnavailable(f"run {self.refused!r} is refused")


async def a_run_is_reset_while_its_child_has_not_been_let_go() -> None:
    """The run that started the child was over when it came to let it go, and the one that waits for it did not."""
    shop = _RefusingShop()
    await shop.open()
    try:
        worker = await shop.worker()
        await shop.start()
        shop.refused = "kid"
        await worker.complete(
            await worker.workflow_task(), c.StartChildWorkflowExecution(workflow_id="kid", workflow_type="Kid")
        )
        task = await worker.workflow_task()
        await until(lambda: shop.refusals > 0)
        point = task.started_event_id
        reset = await soon(
            shop.service.reset_workflow(r.ResetWorkflowRequest(**W1, reason="again", request_id="one", event_id=point))
        )
        shop.refused = ""
        begun = {(task.token.workflow_id, task.token.run_id) for task in [await worker.workflow_task() for _ in "12"]}
        kid = await soon(
            shop.service.describe_workflow(r.DescribeWorkflowRequest(namespace="default", workflow_id="kid"))
        )
        assert begun == {("w1", reset.run_id), ("kid", kid.info.run_id)}
    finally:
        await shop.close()


async def a_run_is_deleted_while_a_page_of_it_is_read() -> None:
    """The page came without events, as if the history had none."""

    async def check(shop: FaultyShop) -> None:
        worker = await shop.worker()
        await shop.start()
        entry = shop.engine._cache.get_open("default", "w1")
        assert entry is not None, "the node that starts a run remembers it"
        await worker.complete(await worker.workflow_task(), c.CompleteWorkflowExecution())
        entry.forget_until(entry.durable_last_event_id)
        held = shop.faults.hold("read_history", times=1)
        asked = asyncio.ensure_future(shop.service.get_history(r.GetHistoryRequest(**W1)))
        await until(lambda: held.held_count == 1)
        await soon(shop.service.delete_workflow(DeleteWorkflowRequest(**W1)))
        held.release()
        with pytest.raises(RPCError, match="does not exist"):
            await soon(asked)

    await in_shop(check)


LIFECYCLE_REGRESSIONS: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
    "once-deleted-run-told": a_run_that_was_deleted_through_another_node_is_asked_for,
    "once-deleted-run-woken-for-ever": a_run_that_was_deleted_through_another_node_is_due,
    "once-due-again-and-again": a_run_is_due_whose_first_event_is_still_being_read,
    "once-reset-leaves-a-child-held": a_run_is_reset_while_its_child_has_not_been_let_go,
    "once-two-resets-at-once": two_resets_read_the_same_run_at_once,
    "once-page-of-a-deleted-run": a_run_is_deleted_while_a_page_of_it_is_read,
}
