"""A node whose process is known to be over is not waited for."""

from __future__ import annotations

import subprocess
import sys

import pytest

from clew.engine import recovery
from clew.model.commands import CompleteWorkflowExecution
from clew.process_mark import has_ended, mark_of_this_process
from tests.fleet.shop import LEASE, SHARD_COUNT, FleetShop
from tests.fleet.test_three_nodes import cached_at, signal

SAYS_ITS_MARK = "from clew.process_mark import mark_of_this_process; print(mark_of_this_process(), flush=True); input()"
needs_marks = pytest.mark.skipif(
    not mark_of_this_process(), reason="this system does not tell one process from another"
)


async def test_a_task_of_a_killed_program_goes_to_its_successor_at_once(shop: FleetShop) -> None:
    victim = shop.nodes[0]
    lost = await cached_at(shop, victim)
    await signal(victim)
    await lost.workflow_task()  # its answer will never come
    begun = shop.clock.now()
    victim.kill()
    shop.ended.add(victim.process)
    successor = await shop.add_node()
    worker = await shop.worker(successor)
    task = await worker.workflow_task()
    assert shop.clock.now() - begun < LEASE / 10, "the lease was waited for"
    await worker.complete(task, CompleteWorkflowExecution())
    await shop.until_spread()
    assert sorted(shard for node in shop.up() for shard in node.shards) == list(range(SHARD_COUNT))


async def test_a_node_that_is_there_sees_the_end_at_its_next_look(shop: FleetShop) -> None:
    victim, other, _ = shop.nodes
    victim.kill()
    shop.ended.add(victim.process)
    other.fleet.nodes.look_soon()
    await shop.until_spread()


async def test_what_a_killed_program_had_sent_off_is_looked_for_again(
    shop: FleetShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[recovery.LostSessions] = []

    class Watched(recovery.LostSessions):
        def _look_late(self) -> None:
            looked.append(self)
            super()._look_late()

    monkeypatch.setattr(recovery, "LATE_COMMIT_SECONDS", 0.05)
    victim, *others = shop.nodes
    for node in others:
        node.engine._reactions._lost.__class__ = Watched
    victim.kill()
    shop.ended.add(victim.process)
    for node in others:
        node.fleet.nodes.look_soon()
    lost = [node.engine._reactions._lost for node in others]
    await shop.until(lambda: all(each in looked for each in lost))


async def test_a_silent_node_of_which_nothing_is_known_keeps_its_lease(shop: FleetShop) -> None:
    victim = shop.nodes[0]
    held = victim.shards
    victim.kill()
    successor = await shop.add_node()
    await successor.fleet.nodes.look_now()
    assert victim.engine.node_id in successor.fleet.nodes.live
    assert held & {shard for node in shop.up() for shard in node.shards} == set()


@needs_marks
def test_the_end_of_a_process_is_known_when_its_number_is_free() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", SAYS_ITS_MARK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None, "as asked for"
    mark = child.stdout.readline().strip()
    assert not has_ended(mark)
    child.kill()
    child.communicate()
    assert has_ended(mark)
    elsewhere = mark.replace(" ", "x ", 1)
    assert not has_ended(elsewhere), "nothing is known of another machine's processes"


@needs_marks
def test_this_process_goes_on() -> None:
    assert not has_ended(mark_of_this_process())


@pytest.mark.parametrize("mark", ["", "|", "1", "somewhere|1", "somewhere|", "|99999999"])
def test_of_other_texts_nothing_is_known(mark: str) -> None:
    assert not has_ended(mark)


@needs_marks
@pytest.mark.parametrize("number", ["0", "-1", "x", "", "²", "99999999999999999999"])
def test_of_impossible_numbers_nothing_is_known(number: str) -> None:
    place, _, _ = mark_of_this_process().rpartition("|")
    assert not has_ended(f"{place}|{number}")
