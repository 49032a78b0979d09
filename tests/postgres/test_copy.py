"""Copying a store: open runs go on in the target, closed ones read as before, and doing it again changes nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from clew import activity, workflow
from clew.adapters import SystemClock
from clew.cli import main
from clew.client import Client
from clew.copying import CopyMismatch, CopyReport, copy_store
from clew.ports.store import ApiKeyRow, Store, StoreInUse
from clew.stores import open_by_address
from clew.worker import Worker
from tests.postgres.databases import create_database, reuse_database

SECONDS_MAX = 60.0
keys: dict[str, set[str]] = {}


@activity.defn
async def note(name: str) -> str:
    keys.setdefault(name, set()).add(activity.info().idempotency_key)
    if name.startswith("fails-first") and activity.info().attempt == 1:
        raise RuntimeError("once")
    return name


@workflow.defn
class Waits:
    def __init__(self) -> None:
        self.is_released = False

    @workflow.run
    async def run(self, name: str) -> str:
        await workflow.execute_activity(note, name, start_to_close_timeout=timedelta(seconds=30))
        if name.startswith("again"):
            workflow.continue_as_new("last")
        if name.startswith("waits"):
            await workflow.wait_condition(lambda: self.is_released)
            await workflow.execute_activity(note, name, start_to_close_timeout=timedelta(seconds=30))
        return name

    @workflow.signal
    def release(self) -> None:
        self.is_released = True


@pytest.fixture
async def dsn() -> AsyncIterator[str]:
    made = await create_database("shards=16")
    yield made
    await reuse_database(made)


async def open_by(address: str) -> Store:
    store, *_ = await open_by_address(address, clock=SystemClock(asyncio.get_running_loop()))
    return store


async def copy(source: str, target: str, **options: tuple[str, ...]) -> CopyReport:
    clock = SystemClock(asyncio.get_running_loop())
    return await copy_store(source, target, clock=clock, **options)  # type: ignore[arg-type]


async def fill(address: str) -> dict[str, list[str]]:
    """Runs of each kind; answers the event types of each history."""
    async with (
        await Client.connect(address) as client,
        Worker(client, task_queue="copy", workflows=[Waits], activities=[note]),
    ):
        for n in range(3):
            await client.execute_workflow(Waits.run, f"done-{n}", id=f"done-{n}", task_queue="copy")
            await client.execute_workflow(Waits.run, f"again-{n}", id=f"again-{n}", task_queue="copy")
            await client.start_workflow(Waits.run, f"waits-{n}", id=f"waits-{n}", task_queue="copy")
            await client.start_workflow(Waits.run, f"queued-{n}", id=f"queued-{n}", task_queue="nobody")
        return await histories(client)


async def histories(client: Client) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    async for run in client.list_workflows():
        handle = client.get_workflow_handle(run.id, run_id=run.run_id)
        events = (await handle.fetch_history()).events
        found[f"{run.id}/{run.run_id}"] = [type(event).__name__ for event in events]
    return found


@pytest.mark.parametrize("to_postgres", [True, False])
async def test_a_copy_goes_on_where_the_source_stood(dsn: str, tmp_path: Path, to_postgres: bool) -> None:
    file = f"sqlite:{tmp_path / 'store.db'}"
    source, target = (file, dsn) if to_postgres else (dsn, file)
    keys.clear()
    before = await fill(source)
    report = await copy(source, target)
    assert (report.copied, report.found) == (len(before), 0)
    assert report.open_runs == 6
    again = await copy(source, target)
    assert (again.copied, again.found, again.events) == (0, len(before), report.events)
    noted = {name: set(some) for name, some in keys.items()}
    async with await Client.connect(target) as client:
        copied = await histories(client)
        assert copied.keys() == before.keys()
        closed = [name for name in before if name.startswith(("done", "again"))]
        assert [copied[name] for name in closed] == [before[name] for name in closed]
        async with (
            Worker(client, task_queue="copy", workflows=[Waits], activities=[note]),
            Worker(client, task_queue="nobody", workflows=[Waits], activities=[note]),
        ):
            for n in range(3):
                handle = client.get_workflow_handle_for(Waits.run, f"waits-{n}")
                await handle.signal(Waits.release)
                assert await asyncio.wait_for(handle.result(), SECONDS_MAX) == f"waits-{n}"
                queued = client.get_workflow_handle_for(Waits.run, f"queued-{n}")
                assert await asyncio.wait_for(queued.result(), SECONDS_MAX) == f"queued-{n}"
    for n in range(3):
        assert noted[f"waits-{n}"] < keys[f"waits-{n}"], "the first step was not run again"
    if not to_postgres:
        return
    with pytest.raises(CopyMismatch, match="must not"):
        await copy(source, target)


async def test_single_runs_are_copied_and_engines_are_in_the_way(dsn: str, tmp_path: Path) -> None:
    file = f"sqlite:{tmp_path / 'store.db'}"
    before = await fill(file)
    report = await copy(file, dsn, workflow_ids=("again-1", "done-2"))
    assert report.copied == len([name for name in before if name.startswith(("again-1/", "done-2/"))]) == 3
    async with await Client.connect(dsn) as client:
        assert len(await histories(client)) == 3
        with pytest.raises(StoreInUse, match="in use by 1 engines"):
            await copy(file, dsn)


async def test_api_keys_go_with_a_whole_store_and_those_that_are_there_stay(dsn: str, tmp_path: Path) -> None:
    file = f"sqlite:{tmp_path / 'store.db'}"
    source, target = await open_by(file), await open_by(dsn)
    rows = [ApiKeyRow(key_id=f"key-{n}", revision=1, body=b'{"n":%d}' % n) for n in range(3)]
    for row in rows:
        assert await source.put_api_key_if_revision(row)
    changed = ApiKeyRow(key_id="key-0", revision=2, body=b'{"n":9}')
    assert await source.put_api_key_if_revision(changed)
    revoked = ApiKeyRow(key_id="key-2", revision=1, body=b'{"revoked":true}')
    assert await target.put_api_key_if_revision(revoked)
    await source.close()
    await target.close()
    assert (await copy(file, dsn, workflow_ids=("any",))).api_keys == 0
    assert (await copy(file, dsn)).api_keys == 2
    target = await open_by(dsn)
    expected = [ApiKeyRow(key_id="key-0", revision=1, body=b'{"n":9}'), rows[1], revoked]
    assert await target.list_api_keys() == expected
    await target.close()
    assert (await copy(file, dsn)).api_keys == 0


@pytest.mark.filterwarnings("error")
async def test_the_command_needs_source_and_target_only(
    dsn: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLEW_CONFIG_FILE", str(tmp_path / "none.toml"))
    monkeypatch.delenv("CLEW_ADDRESS", raising=False)
    source = f"sqlite:{tmp_path / 'old.db'}"
    async with await Client.connect(source) as client:
        await client.start_workflow("Waits", "claim", id="claim-1", task_queue="copy")
    code = await asyncio.to_thread(main, ["db", "copy", source, dsn, "-w", "claim-1", "--output", "json"])
    told = capsys.readouterr()
    assert code == 0, told.err
    assert json.loads(told.out)["copied"] == 1
    async with await Client.connect(dsn) as client:
        assert (await client.count_workflows()).count == 1
