"""Deployments of workers: compare-and-swap on the revision, durable, apart from each other."""

from __future__ import annotations

import asyncio

import msgspec

from clew.ports.store import DeploymentRow, Store
from tests.conformance.store.conftest import OpenStore


def row(name: str = "billing", revision: int = 1, body: bytes = b"{}", namespace: str = "default") -> DeploymentRow:
    return DeploymentRow(namespace=namespace, name=name, revision=revision, body=body)


async def test_a_change_needs_the_revision_before(store: Store) -> None:
    assert await store.put_deployment_if_revision(row(revision=2)) is False
    assert await store.put_deployment_if_revision(row()) is True
    assert await store.put_deployment_if_revision(row(body=b'{"x":1}')) is False
    assert await store.put_deployment_if_revision(row(revision=3)) is False
    assert await store.list_deployments() == [row()]
    assert await store.put_deployment_if_revision(row(revision=2, body=b'{"x":2}')) is True
    assert await store.list_deployments() == [row(revision=2, body=b'{"x":2}')]


async def test_of_many_at_once_one_wins(store: Store) -> None:
    for revision in (1, 2):
        rows = [row(revision=revision, body=str(n).encode()) for n in range(8)]
        outcomes = await asyncio.gather(*[store.put_deployment_if_revision(one) for one in rows])
        assert sum(outcomes) == 1
        assert await store.list_deployments() == [rows[outcomes.index(True)]]


async def test_names_and_namespaces_are_apart(store: Store) -> None:
    rows = [row("b", namespace="one"), row("a", namespace="two"), row("a", namespace="one")]
    for one in rows:
        assert await store.put_deployment_if_revision(one) is True
    assert await store.list_deployments() == [rows[2], rows[0], rows[1]]
    assert await store.delete_deployment_if_revision("one", "a", 2) is False
    assert await store.delete_deployment_if_revision("one", "a", 1) is True
    assert await store.delete_deployment_if_revision("one", "a", 1) is False
    assert await store.list_deployments() == [rows[0], rows[1]]
    assert await store.put_deployment_if_revision(rows[2]) is True


async def test_they_are_there_after_reopening(open_durable: OpenStore) -> None:
    store = await open_durable()
    await store.put_deployment_if_revision(row(body=b"kept"))
    await store.close()
    store = await open_durable()
    (found,) = await store.list_deployments()
    assert msgspec.structs.asdict(found) == msgspec.structs.asdict(row(body=b"kept"))
    await store.close()
