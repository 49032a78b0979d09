"""The nodes that share a store: their leases, the shards they hold, and the mail between them."""

from __future__ import annotations

from datetime import timedelta

from clew.ports.store import ShardLease, Store
from tests.conformance.store.rows import insert, update

LONG = timedelta(minutes=5)
OVER = timedelta(seconds=-1)
"""A lease that is over as soon as it is given."""


async def test_a_node_that_joins_is_seen_by_all(store: Store) -> None:
    before = await store.read_fleet("a")
    assert before.nodes == ()
    assert before.shards == ()
    await store.join_fleet("a", "host-1:7233", b'{"n":1}', LONG)
    view = await store.join_fleet("b", "", b"{}", LONG)
    assert [(node.node_id, node.address, node.body) for node in sorted(view.nodes, key=lambda n: n.node_id)] == [
        ("a", "host-1:7233", b'{"n":1}'),
        ("b", "", b"{}"),
    ]
    assert all(view.now < node.lease_until <= view.now + LONG for node in view.nodes)
    assert (await store.read_fleet("a")).now >= view.now


async def test_a_renewal_extends_the_lease_and_may_change_the_body(store: Store) -> None:
    await store.join_fleet("a", "", b"{}", OVER)
    renewed = await store.renew_node("a", None, LONG)
    assert renewed is not None, "a lease that is over is extended as long as the row is there"
    assert renewed.nodes[0].lease_until > renewed.now
    assert renewed.nodes[0].body == b"{}"
    changed = await store.renew_node("a", b'{"n":2}', LONG)
    assert changed is not None
    assert changed.nodes[0].body == b'{"n":2}'
    assert await store.renew_node("nobody", None, LONG) is None


async def test_only_nodes_whose_lease_is_over_are_removed(store: Store) -> None:
    await store.join_fleet("dead", "", b"{}", OVER)
    await store.take_free_shards("dead", [3])
    await store.post_mail("dead", b"too late")
    await store.join_fleet("live", "", b"{}", LONG)
    assert await store.remove_expired_nodes(["dead", "live", "nobody"]) == ["dead"]
    assert await store.remove_expired_nodes(["dead"]) == []
    view = await store.read_fleet("live")
    assert [node.node_id for node in view.nodes] == ["live"]
    assert view.shards == ()
    assert await store.renew_node("dead", None, LONG) is None
    assert await store.take_mail("dead") == []


async def test_a_shard_is_held_by_one_live_node_at_a_time(store: Store) -> None:
    await store.join_fleet("a", "", b"{}", LONG)
    await store.join_fleet("b", "", b"{}", LONG)
    assert [(lease.shard, lease.node_id) for lease in await store.take_free_shards("a", [0, 1, 2])] == [
        (0, "a"),
        (1, "a"),
        (2, "a"),
    ]
    got = await store.take_free_shards("b", [1, 2, 3])
    assert [(lease.shard, lease.node_id) for lease in got] == [(3, "b")]
    assert await store.take_free_shards("nobody", [7]) == []
    view = await store.read_fleet("a")
    assert [(lease.shard, lease.node_id) for lease in view.shards] == [(0, "a"), (1, "a"), (2, "a"), (3, "b")]


async def test_each_taking_of_a_shard_has_a_higher_epoch(store: Store) -> None:
    await store.join_fleet("a", "", b"{}", LONG)
    await store.join_fleet("b", "", b"{}", LONG)
    (first,) = await store.take_free_shards("a", [5])
    await store.release_shards([first])
    (second,) = await store.take_free_shards("b", [5])
    assert second.epoch > first.epoch
    await store.release_shards([first, ShardLease(shard=5, node_id="b", epoch=first.epoch)])
    assert (await store.read_fleet("a")).shards == (second,), "an old lease gives nothing back"
    await store.leave_fleet("b")
    (third,) = await store.take_free_shards("a", [5])
    assert third.epoch > second.epoch


async def test_the_shards_of_a_node_whose_lease_is_over_are_free(store: Store) -> None:
    await store.join_fleet("dead", "", b"{}", LONG)
    (old,) = await store.take_free_shards("dead", [1])
    await store.renew_node("dead", None, OVER)
    await store.join_fleet("a", "", b"{}", LONG)
    (taken,) = await store.take_free_shards("a", [1])
    assert (taken.node_id, taken.epoch > old.epoch) == ("a", True)


async def test_a_node_that_leaves_gives_up_all_it_has(store: Store) -> None:
    await store.join_fleet("a", "", b"{}", LONG)
    await store.take_free_shards("a", [1, 2])
    await store.leave_fleet("a")
    await store.leave_fleet("a")
    view = await store.read_fleet("a")
    assert view.nodes == ()
    assert view.shards == ()


async def test_mail_is_taken_once_and_in_order(store: Store) -> None:
    await store.join_fleet("a", "", b"{}", LONG)
    assert not (await store.read_fleet("a")).has_mail
    assert await store.post_mail("a", b"one")
    assert await store.post_mail("a", b"\x00\xfftwo")
    assert not await store.post_mail("nobody", b"lost")
    renewed = await store.renew_node("a", None, LONG)
    assert renewed is not None
    assert renewed.has_mail
    assert await store.take_mail("a") == [b"one", b"\x00\xfftwo"]
    assert await store.take_mail("a") == []
    assert not (await store.read_fleet("a")).has_mail


async def test_versions_of_many_runs_are_found_at_once(store: Store) -> None:
    first, second = insert(1), insert(2)
    await store.commit_if_current([(first,), (second,)])
    await store.commit_if_current([(update(second),)])
    assert await store.find_versions([(0, 1), (0, 2), (0, 3)]) == {1: 1, 2: 2}
    assert await store.find_versions([]) == {}
