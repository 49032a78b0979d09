"""A commit whose acknowledgement is lost: the caller is told what became of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import msgspec
import pytest

from clew.ports.store import CommitStatus, StoreFull, StoreUnavailable
from clew.storage.postgres import PostgresStore, open_store
from tests.conformance.store.rows import close, history_ids, insert, load, update
from tests.outage.proxy import Action, Proxy
from tests.postgres.databases import create_database, execute, reuse_database

COMMITTED = CommitStatus.COMMITTED
SECONDS_MAX = 60.0


@pytest.fixture
async def dsn() -> AsyncIterator[str]:
    made = await create_database()
    yield made
    await reuse_database(made)


@pytest.fixture
async def proxy(dsn: str) -> AsyncIterator[Proxy]:
    async with Proxy(dsn) as proxy:
        yield proxy


@pytest.fixture
async def store(proxy: Proxy) -> AsyncIterator[PostgresStore]:
    """A store that talks through the proxy."""
    store = await open_store(f"{proxy.dsn}&command_timeout=5&patience=20")
    yield store
    await store.close()


@pytest.fixture
async def one_lane(proxy: Proxy) -> AsyncIterator[PostgresStore]:
    """As `store`, with one connection for commits: when that is lost nothing is known before another is made."""
    store = await open_store(f"{proxy.dsn}&command_timeout=5&patience=20&pool_size=2")
    yield store
    await store.close()


async def commit(store: PostgresStore, *units: tuple[object, ...]) -> list[CommitStatus]:
    return await asyncio.wait_for(store.commit_if_current(units), SECONDS_MAX)  # type: ignore[arg-type]


@pytest.mark.parametrize("action", [Action.LOSE_ANSWER, Action.LOSE_REQUEST])
async def test_a_commit_that_got_no_answer_is_done_once(store: PostgresStore, proxy: Proxy, action: Action) -> None:
    first = insert(1)
    await commit(store, (first,))
    proxy.act(b"marked", action)
    assert await commit(store, (update(first, state=b"marked"),), (insert(2),)) == [COMMITTED, COMMITTED]
    assert proxy.hits.get_nowait() is action
    row = await load(store, 1)
    assert (row.version, row.state) == (2, b"marked")
    assert await history_ids(store, 1) == [1, 2, 3]
    assert await history_ids(store, 2) == [1, 2]


@pytest.mark.parametrize("action", [Action.LOSE_ANSWER, Action.LOSE_REQUEST])
async def test_losers_of_a_commit_that_got_no_answer_lose(store: PostgresStore, proxy: Proxy, action: Action) -> None:
    runs = [insert(key) for key in range(1, 11)]
    await commit(store, *((run,) for run in runs))
    await commit(store, *((update(run),) for run in runs[::3]))
    proxy.act(b"marked", action)
    answers = await commit(store, *((update(run, state=b"marked"),) for run in runs))
    assert proxy.hits.get_nowait() is action
    assert answers == [CommitStatus.VERSION_CONFLICT if n % 3 == 0 else COMMITTED for n in range(10)]


async def test_a_close_and_its_successor_that_got_no_answer_are_one(store: PostgresStore, proxy: Proxy) -> None:
    first = insert(1, "chain")
    await commit(store, (first,))
    unit = (close(first, state=b"marked"), insert(2, "chain", expected_latest_run_key=1))
    proxy.act(b"marked", Action.LOSE_ANSWER)
    assert await commit(store, unit) == [COMMITTED]
    found = await store.find_run("default", "chain", "")
    assert found is not None
    assert (found.run_key, (await load(store, 1)).version) == (2, 2)


async def test_a_commit_that_was_written_over_since_is_still_known(
    one_lane: PostgresStore, proxy: Proxy, dsn: str
) -> None:
    first = insert(1)
    await commit(one_lane, (first,))
    mine = update(first, state=b"marked")
    proxy.act(b"marked", Action.LOSE_ANSWER)
    proxy.is_open = False  # the store cannot look yet
    answer = one_lane.commit_if_current([(mine,)])
    assert await asyncio.wait_for(proxy.hits.get(), SECONDS_MAX) is Action.LOSE_ANSWER
    other = await open_store(dsn)
    assert await commit(other, (update(mine),)) == [COMMITTED]
    await other.close()
    proxy.is_open = True
    assert await asyncio.wait_for(answer, SECONDS_MAX) == [COMMITTED]


async def test_a_commit_that_never_came_and_was_overtaken_has_lost(
    one_lane: PostgresStore, proxy: Proxy, dsn: str
) -> None:
    first = insert(1)
    await commit(one_lane, (first,))
    proxy.act(b"marked", Action.LOSE_REQUEST)
    proxy.is_open = False
    answer = one_lane.commit_if_current([(update(first, state=b"marked"),)])
    await asyncio.wait_for(proxy.hits.get(), SECONDS_MAX)
    other = await open_store(dsn)
    rival = update(first, state=b"rival")
    rival = msgspec.structs.replace(
        rival, batches=tuple(msgspec.structs.replace(b, events=b.events.replace(b"t-3", b"t-x")) for b in rival.batches)
    )
    assert await commit(other, (rival,)) == [COMMITTED]
    await other.close()
    proxy.is_open = True
    assert await asyncio.wait_for(answer, SECONDS_MAX) == [CommitStatus.VERSION_CONFLICT]
    assert (await load(one_lane, 1)).state == b"rival"


async def test_without_a_database_the_caller_is_told_that_nobody_knows(proxy: Proxy) -> None:
    store = await open_store(f"{proxy.dsn}&patience=0.5&pool_size=2")
    first = insert(1)
    await commit(store, (first,))
    proxy.act(b"marked", Action.LOSE_ANSWER)
    proxy.is_open = False
    with pytest.raises(StoreUnavailable, match="try again"):
        await commit(store, (update(first, state=b"marked"),))
    proxy.cut_all()
    with pytest.raises(StoreUnavailable, match="cannot be reached"):
        await asyncio.wait_for(store.load_run(0, 1), SECONDS_MAX)
    proxy.is_open = True

    async def until_there() -> None:
        while True:
            try:
                assert (await load(store, 1)).state == b"marked"
            except StoreUnavailable:
                continue
            return

    await asyncio.wait_for(until_there(), SECONDS_MAX)
    assert await commit(store, (insert(2),)) == [COMMITTED]
    await store.close()


async def test_a_server_that_gives_no_answer_is_given_up(proxy: Proxy) -> None:
    store = await open_store(f"{proxy.dsn}&command_timeout=0.7&patience=20")
    first = insert(1)
    await commit(store, (first,))
    proxy.act(b"marked", Action.SILENCE)
    assert await commit(store, (update(first, state=b"marked"),)) == [COMMITTED]
    assert await history_ids(store, 1) == [1, 2, 3]
    await store.close()


async def test_cut_connections_are_made_again(store: PostgresStore, proxy: Proxy) -> None:
    run = insert(1)
    await commit(store, (run,))
    for _ in range(30):
        proxy.cut_all()
        run = update(run)
        answers = await asyncio.gather(
            commit(store, (run,)), *(asyncio.wait_for(store.load_run(0, 1), SECONDS_MAX) for _ in range(6))
        )
        assert answers[0] == [COMMITTED]
    assert await history_ids(store, 1) == list(range(1, 33))


async def test_sessions_ended_by_an_administrator_are_made_again(store: PostgresStore, dsn: str) -> None:
    run = insert(1)
    await commit(store, (run,))
    for _ in range(15):
        ended = execute(
            dsn.partition("?")[0],
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()",
        )
        run = update(run)
        answers = await asyncio.gather(commit(store, (run,)), ended)
        assert answers[0] == [COMMITTED]
    assert await history_ids(store, 1) == list(range(1, 18))


async def test_a_transaction_in_the_way_is_waited_for_and_deadlocks_are_an_internal_matter(
    store: PostgresStore, dsn: str
) -> None:
    """Two nodes write the same runs in opposite orders; the database ends one of two that wait for each other."""
    other = await open_store(dsn)
    runs = [insert(key) for key in range(1, 41)]
    await commit(store, *((run,) for run in runs))
    for _ in range(10):
        forward = [update(run) for run in runs]
        answers = await asyncio.gather(
            commit(store, *((run,) for run in forward)), commit(other, *((run,) for run in reversed(forward)))
        )
        won = [a is COMMITTED for a in answers[0]]
        lost = [a is COMMITTED for a in reversed(answers[1])]
        assert all(one != two for one, two in zip(won, lost, strict=True)), "each run has one winner"
        runs = forward
    await other.close()


@pytest.mark.parametrize(
    ("sqlstate", "error"),
    [("53100", StoreFull), ("53200", StoreUnavailable), ("57014", StoreUnavailable), ("58030", StoreUnavailable)],
)
async def test_what_the_server_lacks_is_said_and_nothing_is_done(
    store: PostgresStore, dsn: str, sqlstate: str, error: type[Exception]
) -> None:
    first = insert(1)
    await commit(store, (first,))
    plain = dsn.partition("?")[0]
    await execute(
        plain,
        "CREATE OR REPLACE FUNCTION clew.fail() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN RAISE EXCEPTION 'as the test wants' USING ERRCODE = '{sqlstate}'; END $$",
        "CREATE TRIGGER fail BEFORE INSERT ON clew.history FOR EACH ROW EXECUTE FUNCTION clew.fail()",
    )
    try:
        with pytest.raises(error, match="as the test wants"):
            await commit(store, (update(first),))
    finally:
        await execute(plain, "DROP TRIGGER fail ON clew.history", "DROP FUNCTION clew.fail")
    assert (await load(store, 1)).version == 1
    assert await commit(store, (update(first),)) == [COMMITTED]


@pytest.mark.parametrize("sqlstate", ["40001", "40P01", "55P03"])
async def test_contention_is_tried_again_inside(store: PostgresStore, dsn: str, sqlstate: str) -> None:
    first = insert(1)
    await commit(store, (first,))
    plain = dsn.partition("?")[0]
    await execute(
        plain,
        "CREATE SEQUENCE clew.tries",
        "CREATE OR REPLACE FUNCTION clew.fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        f"IF nextval('clew.tries') < 4 THEN RAISE EXCEPTION 'not yet' USING ERRCODE = '{sqlstate}'; END IF; "
        "RETURN NEW; END $$",
        "CREATE TRIGGER fail BEFORE INSERT ON clew.history FOR EACH ROW EXECUTE FUNCTION clew.fail()",
    )
    try:
        assert await commit(store, (update(first),)) == [COMMITTED]
        assert await execute(plain, "SELECT last_value FROM clew.tries") == [4]
    finally:
        await execute(plain, "DROP TRIGGER fail ON clew.history", "DROP FUNCTION clew.fail", "DROP SEQUENCE clew.tries")
    assert await history_ids(store, 1) == [1, 2, 3]


async def test_more_calls_than_connections_all_finish(dsn: str) -> None:
    """Nobody holds a connection while waiting for another (engines and clients: ``tests/cases/test_c076_…``)."""
    store = await open_store(f"{dsn}&pool_size=2&patience=60")
    calls = [
        [commit(store, (insert(n),)), asyncio.wait_for(store.load_run(0, n), SECONDS_MAX), store.reserve_run_keys(1)]
        for n in range(1, 101)
    ]
    await asyncio.gather(*(call for some in calls for call in some))
    due = await store.find_due_runs(None, insert(1).attention_at + timedelta(days=1), 1_000)  # type: ignore[operator]
    assert len(due) == 100
    await store.close()
