"""Hints by LISTEN and NOTIFY: they arrive, the gap is told, and a half-dead connection is noticed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from clew.storage.postgres import parse_address
from clew.storage.postgres.notifier import PostgresNotifier
from tests.postgres.databases import create_database, execute, reuse_database

SECONDS_MAX = 30.0


@pytest.fixture
async def dsn() -> AsyncIterator[str]:
    made = await create_database()
    yield made
    await reuse_database(made)


class Ear:
    """Listens, and counts the gaps."""

    def __init__(self, dsn: str, silence_seconds: float = 15.0) -> None:
        self.notifier = PostgresNotifier(parse_address(dsn), silence_seconds=silence_seconds)
        self.messages: asyncio.Queue[str] = asyncio.Queue()
        self.gaps: asyncio.Queue[None] = asyncio.Queue()

    async def listen(self, *channels: str) -> None:
        subscribing = self.notifier.subscribe(channels, self.messages.put_nowait, lambda: self.gaps.put_nowait(None))
        await asyncio.wait_for(subscribing, SECONDS_MAX)

    async def next(self) -> str:
        return await asyncio.wait_for(self.messages.get(), SECONDS_MAX)


async def test_messages_reach_those_who_listen(dsn: str) -> None:
    one, other = Ear(dsn), Ear(dsn)
    await one.listen("all", "node-1")
    await other.listen("all", "node-2")
    assert one.notifier.is_connected
    other.notifier.publish("node-2", "to two")
    other.notifier.publish("all", "to all ünïcode")
    for n in range(500):
        one.notifier.publish("node-1", f"to one {n}")
    assert await other.next() == "to two"
    assert await other.next() == "to all ünïcode"
    assert [await one.next() for _ in range(501)].count("to all ünïcode") == 1
    await one.listen("node-3")
    other.notifier.publish("node-1", "nobody listens any more")
    other.notifier.publish("node-3", "here now")
    assert await one.next() == "here now"
    await one.notifier.close()
    await other.notifier.close()
    assert not one.notifier.is_connected


async def test_two_schemas_do_not_hear_each_other(dsn: str) -> None:
    here, there = Ear(dsn), Ear(f"{dsn}&schema=other")
    await here.listen("all")
    there.notifier.publish("all", "not for here")
    here.notifier.publish("all", "for here")
    assert await here.next() == "for here"
    await here.notifier.close()
    await there.notifier.close()


async def test_the_gap_is_told_when_messages_arrive_again(dsn: str) -> None:
    ear = Ear(dsn)
    await ear.listen("all")
    ear.notifier.publish("all", "before")
    assert await ear.next() == "before"
    await execute(
        dsn.partition("?")[0],
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()",
    )
    await asyncio.wait_for(ear.gaps.get(), SECONDS_MAX)
    assert ear.notifier.is_connected

    async def until_heard() -> None:
        while ear.messages.empty():  # the connection that sends was cut as well, so a first message may be lost
            ear.notifier.publish("all", "after")
            await asyncio.sleep(0.01)

    await asyncio.wait_for(until_heard(), SECONDS_MAX)
    await ear.notifier.close()


async def test_a_silent_connection_is_asked_for_a_sign_of_life(dsn: str) -> None:
    ear = Ear(dsn, silence_seconds=0.05)
    await ear.listen("all")
    before = ear.notifier._heard_at

    async def until_asked() -> None:
        while ear.notifier._heard_at == before:
            await asyncio.sleep(0.01)

    await asyncio.wait_for(until_asked(), SECONDS_MAX)
    ear.notifier.publish("all", "still here")
    assert await ear.next() == "still here"
    assert ear.gaps.empty()
    await ear.notifier.close()
