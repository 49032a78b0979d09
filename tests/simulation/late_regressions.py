"""What answers of the store show that come long after what they tell of was done: pinned, and planted.

Owns: `LATE_REGRESSIONS`, as those of ``regressions``, and `LATE_FAULTS`, which take their mends back.
Never: plants them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from clew.engine.keeping import Keeping
from clew.engine.recovery import LostSessions
from clew.service import requests as r
from tests.conformance.service.scripted import soon
from tests.fleet.shop import FleetShop, Node
from tests.simulation.fault import Fault
from tests.simulation.faulty_shop import until

LATE_FAULTS: Final = (
    Fault(
        "once-own-late-commit-taken-for-the-latest",
        "a run counts as unchanged by others once a write is heard of that was on its way, however late",
        "clew.engine.locate:Locator.is_current",
        "if entry.unsettled_count:\n        await self._wait_settled(entry)\n    if entry.is_discarded",
        "if entry.unsettled_count:\n    await self._wait_settled(entry)\n    return not entry.is_discarded\n"
        "if entry.is_discarded",
    ),
    Fault(
        "once-recovery-goes-on-for-shards-given-up",
        "a node that looks for lost sessions page by page goes on in shards that it has given up meanwhile",
        "clew.engine.recovery:LostSessions.look",
        "while shards := self._fleet.own_shards():",
        "shards = self._fleet.own_shards()\nwhile shards:",
    ),
    Fault(
        "once-sweep-goes-on-for-shards-given-up",
        "a node that sweeps for lost rows page by page goes on in shards that it has given up meanwhile",
        "clew.engine.keeping:Keeping.sweep",
        "shards = self._peers.own_shards()",
        'shards = locals().get("shards") or self._peers.own_shards()',
    ),
)


class _Late:
    """A method of a node's store whose first answer comes when the test says so."""

    def __init__(self, node: Node, method: str) -> None:
        self.calls = 0
        self.is_done = asyncio.Event()
        self._is_heard = asyncio.Event()
        self._inner: Callable[..., Awaitable[Any]] = getattr(node.store, method)
        setattr(node.store, method, self)

    async def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        is_first = self.calls == 1
        answer = await self._inner(*args, **kwargs)
        if is_first:
            self.is_done.set()
            await self._is_heard.wait()
        return answer

    def be_heard(self) -> None:
        """The answer arrives."""
        self._is_heard.set()


async def _in_fleet(check: Callable[[FleetShop], Awaitable[None]]) -> None:
    shop = FleetShop(nodes=2)
    await shop.open()
    try:
        await check(shop)
    finally:
        await shop.close()


def _signal(name: str) -> r.SignalWorkflowRequest:
    return r.SignalWorkflowRequest(namespace="default", workflow_id="w1", signal_name=name, request_id=name)


async def _start(node: Node) -> None:
    request = r.StartWorkflowRequest(
        namespace="default", workflow_id="w1", workflow_type="W", task_queue="q", request_id="one"
    )
    await soon(node.engine.start_workflow(request))


async def a_node_hears_of_its_commit_after_another_has_changed_the_run() -> None:
    """It told who asked meanwhile of the run as it was before the other's change, which had long been answered."""

    async def check(shop: FleetShop) -> None:
        first, second = shop.nodes
        await _start(first)
        late = _Late(first, "commit_if_current")
        signalling = asyncio.ensure_future(first.engine.signal_workflow(_signal("a")))
        await soon(late.is_done.wait())
        await soon(second.engine.signal_workflow(_signal("b")))
        asked = r.DescribeWorkflowRequest(namespace="default", workflow_id="w1")
        known = (await soon(second.engine.describe_workflow(asked))).info.history_length
        asking = asyncio.ensure_future(first.engine.describe_workflow(asked))
        for _ in range(10):
            await asyncio.sleep(0)
        late.be_heard()
        told = await soon(asking)
        await soon(signalling)
        assert told.info.history_length >= known, (told.info.history_length, known)

    await _in_fleet(check)


async def _looks_no_further(look_of: Callable[[Node], Callable[[], Coroutine[Any, Any, object]]]) -> None:
    """A node that has given up its shards while it waited for a page of runs asks for no other."""

    async def check(shop: FleetShop) -> None:
        first, second = shop.nodes
        await _start(first)
        [holder] = [node for node in (first, second) if await _holds_the_run(node)]
        late = _Late(holder, "find_busy_runs")
        looking = asyncio.ensure_future(look_of(holder)())
        await until(late.is_done.is_set)
        holder.fleet.nodes._held = {}
        late.be_heard()
        await soon(looking)
        assert late.calls == 1, late.calls

    await _in_fleet(check)


async def _holds_the_run(node: Node) -> bool:
    return bool(await node.engine._store.find_busy_runs(list(node.shards), 0, 10))


async def a_node_gives_up_its_shards_while_it_looks_for_lost_sessions() -> None:
    """It went on, page by page, in shards that were another's."""

    def look_of(node: Node) -> Callable[[], Coroutine[Any, Any, object]]:
        assert node.engine._reactions is not None, "a node of a fleet reacts"
        lost: LostSessions = node.engine._reactions._lost
        return lost.look

    await _looks_no_further(look_of)


async def a_node_gives_up_its_shards_while_it_sweeps() -> None:
    """The same of its look for tasks without a row."""

    def look_of(node: Node) -> Callable[[], Coroutine[Any, Any, object]]:
        keeping: Keeping = node.engine._keeping
        return keeping.sweep

    await _looks_no_further(look_of)


LATE_REGRESSIONS: Final[dict[str, Callable[[], Coroutine[Any, Any, None]]]] = {
    "once-own-late-commit-taken-for-the-latest": a_node_hears_of_its_commit_after_another_has_changed_the_run,
    "once-recovery-goes-on-for-shards-given-up": a_node_gives_up_its_shards_while_it_looks_for_lost_sessions,
    "once-sweep-goes-on-for-shards-given-up": a_node_gives_up_its_shards_while_it_sweeps,
}
