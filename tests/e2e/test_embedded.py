"""One engine a process and file: sharing, ending, taking over, dying."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from clew.client import Client, RPCError, WorkflowAlreadyStartedError, WorkflowFailureError
from clew.model.rejection import RejectionCode

DEADLINE = 30.0


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"sqlite:{tmp_path / 'claims.db'}"


def service_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("clew-service")]


async def start(client: Client, workflow_id: str) -> Any:
    return await client.start_workflow("Claim", id=workflow_id, task_queue="claims")


async def test_clients_of_one_file_share_one_engine_and_the_last_one_ends_it(tmp_path: Path, address: str) -> None:
    before = len(service_threads())
    (tmp_path / "link.db").symlink_to(tmp_path / "claims.db")
    clients = await asyncio.gather(
        Client.connect(address), Client.connect(address), Client.connect(f"sqlite:{tmp_path / 'link.db'}")
    )
    assert len(service_threads()) == before + 1
    await start(clients[0], "claim-1")
    with pytest.raises(WorkflowAlreadyStartedError):
        await start(clients[2], "claim-1")
    for client in clients:
        await client.close()
        await client.close()
    assert len(service_threads()) == before
    with pytest.raises(RPCError, match="closed"):
        await start(clients[0], "claim-2")


async def test_what_was_accepted_is_there_after_the_engine_ended(address: str) -> None:
    async with await Client.connect(address) as client:
        handle = await start(client, "claim-1")
        await handle.signal("photos", 3)
    async with await Client.connect(address) as client:
        history = await client.get_workflow_handle("claim-1").fetch_history()
    assert [type(event).__name__ for event in history] == [
        "WorkflowExecutionStarted",
        "WorkflowTaskScheduled",
        "WorkflowExecutionSignaled",
    ]


async def test_connecting_while_the_last_client_leaves_works(address: str) -> None:
    for number in range(5):
        leaving = await Client.connect(address)
        coming = asyncio.create_task(Client.connect(address))
        await leaving.close()
        client = await asyncio.wait_for(coming, DEADLINE)
        await start(client, f"claim-{number}")
        await client.close()


async def test_a_cancelled_connect_leaves_nothing_behind(address: str) -> None:
    before = len(service_threads())
    connecting = asyncio.create_task(Client.connect(address))
    await asyncio.sleep(0)
    connecting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await connecting
    async with await Client.connect(address) as client:
        await start(client, "claim-1")
    assert len(service_threads()) == before


async def test_an_engine_that_was_broken_off_is_not_shared_with_whoever_connects_next(address: str) -> None:
    broken = await Client.connect(address)
    await start(broken, "claim-1")
    other_process, writer = await asyncio.open_unix_connection(f"{address.removeprefix('sqlite:')}.sock")
    connection: Any = broken.connection
    connection._thread._break_off(KeyboardInterrupt())  # as a second Ctrl-C does
    async with await asyncio.wait_for(Client.connect(address), DEADLINE) as client:
        await start(client, "claim-2")
        history = await client.get_workflow_handle("claim-1").fetch_history()
        assert next(type(event).__name__ for event in history) == "WorkflowExecutionStarted"
        with pytest.raises(RPCError, match="closed"):
            await start(broken, "claim-3")
        await broken.close()
        await start(client, "claim-3")
        with contextlib.suppress(ConnectionResetError):
            await asyncio.wait_for(other_process.read(), DEADLINE)  # Who came in by its door is sent away.
    writer.close()


async def test_a_store_in_memory_belongs_to_its_client() -> None:
    async with await Client.connect("sqlite::memory:") as one, await Client.connect("sqlite::memory:") as other:
        await start(one, "claim-1")
        await start(other, "claim-1")


async def test_many_calls_from_many_threads(address: str) -> None:
    async with await Client.connect(address) as client:

        def start_many(thread: int) -> None:
            async def many() -> None:
                await asyncio.gather(*(start(client, f"claim-{thread}-{n}") for n in range(50)))

            asyncio.run(many())

        await asyncio.gather(*(asyncio.to_thread(start_many, thread) for thread in range(4)))
        assert (await client.count_workflows()).count == 200


async def test_a_result_is_waited_for_without_polling_and_comes_at_once(address: str) -> None:
    async with await Client.connect(address) as client:
        handle = await start(client, "claim-1")
        waiting = asyncio.create_task(handle.result())
        abandoned = asyncio.create_task(handle.result())
        await handle.describe()
        abandoned.cancel()
        await handle.terminate(reason="enough")
        with pytest.raises(WorkflowFailureError, match="enough"):
            await asyncio.wait_for(waiting, DEADLINE)


async def test_an_unknown_namespace_is_refused_at_connect(address: str) -> None:
    before = service_threads()
    with pytest.raises(RPCError, match="default") as caught:
        await Client.connect(address, namespace="nope")
    assert caught.value.code is RejectionCode.NAMESPACE_NOT_FOUND
    assert service_threads() == before


async def test_a_file_that_is_no_store_is_refused_at_connect(tmp_path: Path) -> None:
    before = service_threads()
    path = tmp_path / "notes.txt"
    path.write_text("not a database, but long enough to have a header of its own" * 5)
    with pytest.raises(RPCError, match=r"notes\.txt"):
        await Client.connect(f"sqlite:{path}")
    with pytest.raises(RPCError, match="missing"):
        await Client.connect(f"sqlite:{tmp_path / 'missing' / 'claims.db'}")
    assert service_threads() == before


def _run_program(code: str, address: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, address], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


HOLDER = """
import asyncio, sys
from clew.client import Client

async def main():
    client = await Client.connect(sys.argv[1])
    for number in range(10_000):
        await client.start_workflow("Claim", id=f"claim-{number}", task_queue="claims")
        print(number, flush=True)

asyncio.run(main())
"""


@pytest.mark.e2e
async def test_a_second_process_joins_and_takes_over_after_a_kill(address: str) -> None:
    holder = _run_program(HOLDER, address)
    assert holder.stdout is not None
    try:
        for _ in range(20):
            assert holder.stdout.readline()
        async with await Client.connect(address) as client:
            assert (await client.count_workflows()).count >= 20
            holder.send_signal(signal.SIGKILL)
            acknowledged = [int(line) for line in holder.stdout.read().split()]
            ids = {run.id async for run in client.list_workflows()}
    finally:
        holder.kill()
        holder.stdout.close()
        holder.wait(DEADLINE)
    assert {f"claim-{number}" for number in [*range(20), *acknowledged]} <= ids


@pytest.mark.e2e
async def test_a_second_process_is_refused_where_the_owner_does_not_answer(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clew.joining.JOIN_SECONDS_MAX", 0.2)
    holder = _run_program(HOLDER, address)
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline()
        os.unlink(address.removeprefix("sqlite:") + ".sock")
        with pytest.raises(RPCError) as caught:
            await Client.connect(address)
        assert caught.value.rejection.details["reason"] == "StoreInUse"
        assert str(holder.pid) in caught.value.message
    finally:
        holder.kill()
        holder.stdout.close()
        holder.wait(DEADLINE)


FORGETFUL = """
import asyncio, sys
from clew.client import Client

async def main():
    client = await Client.connect(sys.argv[1])
    await client.start_workflow("Claim", id="claim-1", task_queue="claims")

asyncio.run(main())
"""


@pytest.mark.e2e
async def test_a_program_that_forgets_to_close_still_ends(address: str) -> None:
    program = _run_program(FORGETFUL, address)
    output, _ = await asyncio.to_thread(program.communicate, timeout=DEADLINE)
    assert (program.returncode, output) == (0, "")
    async with await Client.connect(address) as client:
        assert (await client.count_workflows()).count == 1


@pytest.mark.e2e
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
async def test_a_forked_child_is_told_that_it_has_no_engine(address: str) -> None:
    async with await Client.connect(address) as client:
        await start(client, "claim-1")
        context = multiprocessing.get_context("fork")
        answers: Any = context.Queue()
        child = context.Process(target=_try_in_child, args=(client, answers))
        child.start()
        answer = await asyncio.to_thread(answers.get, True, DEADLINE)
        await asyncio.to_thread(child.join, DEADLINE)
        assert "forked child has no engine" in answer
        await start(client, "claim-2")


def _try_in_child(client: Client, answers: Any) -> None:
    async def attempt() -> str:
        try:
            await start(client, "claim-3")
        except RPCError as error:
            return error.message
        return "accepted"

    answers.put(asyncio.run(attempt()))
