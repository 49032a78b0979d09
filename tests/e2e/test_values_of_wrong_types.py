"""Values of wrong types: refused where they are given, and one that gets through harms only its own run."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import msgspec
import pytest

from clew import activity, workflow
from clew.client import Client, WorkerDeploymentHandle
from clew.client._request_check import checked
from clew.common import PinnedVersioningOverride, RetryPolicy, WorkerDeploymentVersion
from clew.model.rejection import RejectionCode
from clew.service.errors import RPCError
from clew.service.requests import DescribeWorkflowRequest, StartWorkflowRequest
from clew.worker import Worker
from tests.cases.harness import QUEUE, engine, eventually, settled, within, worker

SECONDS = timedelta(seconds=10)


@activity.defn
async def echo(text: str) -> str:
    return text


@workflow.defn
class Asks:
    """Asks for one activity with the options that the test wants."""

    options: ClassVar[dict[str, Any]] = {}

    @workflow.run
    async def run(self) -> str:
        return str(await workflow.execute_activity("echo", "hello", **self.options))


@workflow.defn
class Plain:
    def __init__(self) -> None:
        self.is_told = False

    @workflow.signal
    def tell(self) -> None:
        self.is_told = True

    @workflow.run
    async def run(self, waits: bool) -> str:
        await workflow.wait_condition(lambda: self.is_told or not waits)
        return "done"


@pytest.mark.parametrize(
    "options",
    [
        {"start_to_close_timeout": 10},
        {"start_to_close_timeout": SECONDS, "heartbeat_timeout": "1s"},
        {"start_to_close_timeout": SECONDS, "task_queue": 5},
        {"start_to_close_timeout": SECONDS, "priority": 5},
        {"start_to_close_timeout": SECONDS, "retry_policy": RetryPolicy(non_retryable_error_types=[ValueError])},  # type: ignore[list-item]
    ],
    ids=lambda options: list(options)[-1],
)
async def test_workflow_code_is_told_at_the_call(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Asks, "options", options)
    async with engine() as client, worker(client, [Asks, Plain], [echo]):
        handle = await client.start_workflow(Asks.run, id="asks", task_queue=QUEUE)

        async def says_why() -> bool:
            waiting_for = " ".join((await handle.describe()).waiting_for)
            return "TypeError" in waiting_for and "activity 'echo'" in waiting_for

        await eventually(says_why)
        assert await within(client.execute_workflow(Plain.run, False, id="plain", task_queue=QUEUE)) == "done"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"activity_id": "\ud800"}, "cannot be stored"),
        ({"activity_id": "x" * 2_000}, "at most 1000 are allowed"),
    ],
    ids=["no stored form", "bad command"],
)
async def test_an_answer_that_the_engine_cannot_take_fails_its_task_at_once(
    options: dict[str, Any], told: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Asks, "options", {"start_to_close_timeout": SECONDS, **options})
    async with engine() as client, worker(client, [Asks], [echo]):
        handle = await client.start_workflow(Asks.run, id="asks", task_queue=QUEUE)

        async def says_why() -> bool:
            return told in " ".join((await handle.describe()).waiting_for)

        await eventually(says_why, seconds_max=5)
        await eventually(lambda: any(told in record.message for record in caplog.records), "the worker's log says it")


@workflow.defn
class UsesClient:
    client: ClassVar[Client]

    @workflow.run
    async def run(self, how: str) -> None:
        if how == "connect":
            await Client.connect("sqlite::memory:")
        elif how == "start":
            await self.client.start_workflow(Plain.run, False, id="inner", task_queue=QUEUE)
        else:
            await asyncio.open_connection("127.0.0.1", 1)


@pytest.mark.parametrize("how", ["connect", "start", "socket"])
async def test_workflow_code_that_reaches_outside_is_told(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with engine() as client, worker(client, [UsesClient, Plain]):
        monkeypatch.setattr(UsesClient, "client", client, raising=False)
        handle = await client.start_workflow(UsesClient.run, how, id="outer", task_queue=QUEUE)

        async def says_why() -> str:
            text = " ".join((await handle.describe()).waiting_for)
            return text if "RestrictedWorkflowAccessError" in text else ""

        text = await eventually(says_why)
        assert "activity" in text
        assert how != "socket" or __file__ in text, "it names the user's line, not one of asyncio"


async def test_a_change_that_cannot_be_stored_is_refused_and_all_others_are_committed() -> None:
    async with engine() as client, worker(client, [Plain]):
        service = client.connection.service
        good = await client.start_workflow(Plain.run, True, id="good", task_queue=QUEUE)

        def start(workflow_id: str, identity: Any) -> Any:
            request = StartWorkflowRequest(
                namespace="default", workflow_id=workflow_id, workflow_type="Plain", task_queue=QUEUE,
                request_id=workflow_id, input=(msgspec.Raw(b"false"),), identity=identity,
            )  # fmt: skip
            return client.connection.call(service.start_workflow, request)

        for identity in ("\ud800", object()):
            with pytest.raises(RPCError, match="cannot be stored") as caught:
                await within(start("bad", identity))
            assert caught.value.code is RejectionCode.INVALID_ARGUMENT
        await good.signal(Plain.tell)
        assert await settled(good) == "done"
        with pytest.raises(RPCError) as missing:
            await client.get_workflow_handle("bad").describe()
        assert missing.value.code is RejectionCode.WORKFLOW_NOT_FOUND


async def test_a_stored_run_that_cannot_be_read_stands_alone(tmp_path: Path) -> None:
    database = tmp_path / "one-broken.db"
    async with engine(database=database) as client:
        await client.start_workflow(Plain.run, True, id="broken", task_queue=QUEUE)
        await client.start_workflow(Plain.run, False, id="behind", task_queue=QUEUE)
    with sqlite3.connect(database) as connection:
        changed = connection.execute("UPDATE executions SET state = '[5]' WHERE workflow_id = 'broken'").rowcount
        assert changed == 1
    connection.close()
    async with engine(database=database) as client, worker(client, [Plain]):
        assert await settled(client.get_workflow_handle("behind")) == "done"
        await _is_told_of_the_broken_run(client)


async def _is_told_of_the_broken_run(client: Client) -> None:
    with pytest.raises(RPCError, match="cannot be read") as caught:
        await within(client.get_workflow_handle("broken").describe())
    assert caught.value.code is RejectionCode.STORE_CORRUPT
    with pytest.raises(RPCError, match="cannot be read"):
        await within(client.start_workflow(Plain.run, True, id="broken", task_queue=QUEUE))


Call: TypeAlias = Callable[[Client, Any], Awaitable[Any]]

CALLS: dict[str, Call] = {
    "list_workflows query": lambda client, bad: first(client.list_workflows(bad)),
    "list_workflows page_size": lambda client, bad: first(client.list_workflows(page_size=bad)),
    "list_workflows next_page_token": lambda client, bad: first(client.list_workflows(next_page_token=bad)),
    "count_workflows query": lambda client, bad: client.count_workflows(bad),
    "handle workflow_id": lambda client, bad: client.get_workflow_handle(bad).describe(),
    "handle run_id": lambda client, bad: client.get_workflow_handle("w", run_id=bad).describe(),
    "query reject_condition": lambda client, bad: client.get_workflow_handle("w").query("q", reject_condition=bad),
    "update_options": lambda client, bad: client.get_workflow_handle("w").update_options(versioning_override=bad),
    "deployment name": lambda client, bad: client.get_worker_deployment_handle(bad).describe(),
    "current": lambda client, bad: deployment(client).set_current_version(bad, allow_no_pollers=True),
    "current flag": lambda client, bad: deployment(client).set_current_version("v", allow_no_pollers=bad),
    "ramping": lambda client, bad: deployment(client).set_ramping_version(bad, 5, allow_no_pollers=True),
    "ramping share": lambda client, bad: deployment(client).set_ramping_version("v", bad, allow_no_pollers=True),
    "ramping token": lambda client, bad: deployment(client).set_ramping_version("v", 5, conflict_token=bad),
    "deleted version": lambda client, bad: deployment(client).delete_version(bad),
}


async def is_refused(call: Call, client: Client, bad: Any) -> bool:
    try:
        await within(call(client, bad))
    except (TypeError, ValueError):
        return True
    return False


def deployment(client: Client) -> WorkerDeploymentHandle:
    return client.get_worker_deployment_handle("shop")


async def first(found: AsyncIterator[Any]) -> Any:
    async for one in found:
        return one
    return None


async def test_a_call_with_a_value_of_another_type_is_refused_and_nothing_is_stored(tmp_path: Path) -> None:
    database = tmp_path / "types.db"
    async with engine(database=database) as client:
        await client.start_workflow(Plain.run, True, id="w", task_queue=QUEUE)
        for name, call in CALLS.items():
            for bad in (object(), b"bytes", ["list"], {"a": 1}, Plain, "\ud800"):
                assert await is_refused(call, client, bad), f"{name} took {bad!r}"
    async with engine(database=database) as client:
        assert list(await client.list_worker_deployments()) == []
        assert (await client.get_workflow_handle("w").describe()).id == "w"


class SafeText(str):
    """As frameworks have it."""


class Count(int):
    pass


async def test_text_and_numbers_of_subclasses_are_taken_as_what_they_are() -> None:
    async with await Client.connect("sqlite::memory:") as client:
        await client.start_workflow(Plain.run, True, id="safe", task_queue=QUEUE)
        handle = client.get_workflow_handle(SafeText("safe"))
        description = await handle.describe()
        assert description.id == "safe"
        named = client.get_workflow_handle("safe", run_id=SafeText(description.run_id))
        assert (await named.describe()).run_id == description.run_id
        listed = [run.id async for run in client.list_workflows(SafeText("WorkflowId = 'safe'"), limit=Count(1))]
        assert listed == ["safe"]
        await handle.cancel(reason=SafeText("no longer wanted"))
        await handle.terminate(reason=SafeText("at once"))
        [last] = [event async for event in handle.fetch_history_events()][-1:]
        assert getattr(last, "reason", None) == "at once"
    with pytest.raises(TypeError, match=r"^describe: .*object.* - at `\$\.run_id`"):
        checked("describe", DescribeWorkflowRequest(namespace="default", workflow_id="safe", run_id=object()))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"task_queue": 5}, "task_queue has 5"),
        ({"identity": b"me"}, "identity has b'me'"),
        ({"task_queue": "\ud800"}, "half of a surrogate pair"),
        ({"deployment_config": "shop.v1"}, "instead of a WorkerDeploymentConfig"),
        ({"workflows": [Plain.run]}, "not a workflow class"),
        ({"workflows": ["Plain"]}, "not a workflow class"),
        ({"activities": ["echo"]}, "echo"),
    ],
    ids=["queue", "identity", "surrogate", "deployment", "method", "name", "activity"],
)
async def test_a_worker_with_a_value_of_another_type_is_not_made(options: dict[str, Any], says: str) -> None:
    async with engine() as client:
        with pytest.raises((TypeError, ValueError), match=says):
            Worker(client, **{"task_queue": QUEUE, "workflows": [Plain], **options})


def test_a_version_or_override_of_other_types_is_not_made() -> None:
    wrong: Any = 5
    for make in (
        lambda: WorkerDeploymentVersion("shop", wrong),
        lambda: WorkerDeploymentVersion(wrong, "v1"),
        lambda: PinnedVersioningOverride(wrong),
    ):
        with pytest.raises(TypeError, match=r"5 \(of type int\)"):
            make()
