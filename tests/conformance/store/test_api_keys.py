"""API keys: compare-and-swap on the revision, durable."""

from __future__ import annotations

import asyncio

from clew.ports.store import ApiKeyRow, Store
from tests.conformance.store.conftest import OpenStore


def row(key_id: str = "ab12", revision: int = 1, body: bytes = b"{}") -> ApiKeyRow:
    return ApiKeyRow(key_id=key_id, revision=revision, body=body)


async def test_a_change_needs_the_revision_before(store: Store) -> None:
    assert await store.get_api_key("ab12") is None
    assert await store.put_api_key_if_revision(row(revision=2)) is False
    assert await store.put_api_key_if_revision(row()) is True
    assert await store.put_api_key_if_revision(row(body=b'{"x":1}')) is False
    assert await store.put_api_key_if_revision(row(revision=3)) is False
    assert await store.get_api_key("ab12") == row()
    assert await store.put_api_key_if_revision(row(revision=2, body=b'{"x":2}')) is True
    assert await store.list_api_keys() == [row(revision=2, body=b'{"x":2}')]


async def test_of_many_at_once_one_wins(store: Store) -> None:
    for revision in (1, 2):
        rows = [row(revision=revision, body=str(n).encode()) for n in range(8)]
        outcomes = await asyncio.gather(*[store.put_api_key_if_revision(one) for one in rows])
        assert sum(outcomes) == 1
        assert await store.list_api_keys() == [rows[outcomes.index(True)]]


async def test_they_are_listed_by_id_and_there_after_reopening(open_durable: OpenStore) -> None:
    store = await open_durable()
    for key_id in ("b", "a", "c"):
        assert await store.put_api_key_if_revision(row(key_id))
    await store.close()
    store = await open_durable()
    assert await store.list_api_keys() == [row("a"), row("b"), row("c")]
    assert await store.get_api_key("b") == row("b")
    await store.close()
