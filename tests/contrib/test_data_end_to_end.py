"""Codecs and context variables with a real engine: what is stored, and what happens when two sides differ."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from clew import activity, workflow
from clew.client import Client, WorkflowHandle
from clew.common import RetryPolicy
from clew.contrib.codec_chain import CodecChain
from clew.contrib.compression import CompressionCodec
from clew.contrib.context_propagation import ContextPropagationInterceptor
from clew.contrib.encryption import EncryptionCodec, MissingKeyError
from clew.contrib.payload_store import FileSystemPayloadStore, PayloadStoreCodec
from clew.converter import DataConverter, DefaultFailureConverterWithEncodedAttributes, PayloadCodec
from clew.exceptions import ActivityError, ApplicationError, DecodeError
from clew.testing import WorkflowEnvironment
from clew.worker import Replayer, Worker

QUEUE = "data"
SECRET = "4711-secret"
KEYS = {"old": b"o" * 32, "new": b"n" * 32}
SHORT = {"start_to_close_timeout": timedelta(seconds=30), "retry_policy": RetryPolicy(maximum_attempts=1)}


@activity.defn
async def double(text: str) -> str:
    activity.heartbeat(text)
    return text + text


@activity.defn
async def refuse(text: str) -> None:
    raise ApplicationError(f"no {text}", {"about": text}, non_retryable=True)


@workflow.defn
class Secretive:
    def __init__(self) -> None:
        self.told: list[str] = []

    @workflow.run
    async def run(self, text: str) -> str:
        result = await workflow.execute_activity(double, text, **SHORT)
        try:
            await workflow.execute_activity(refuse, text, **SHORT)
            raise AssertionError("the activity fails")
        except ActivityError as error:
            details = error.cause.details if isinstance(error.cause, ApplicationError) else None
            if details != ({"about": text},):
                raise ApplicationError(f"lost details: {details}", non_retryable=True) from error
        await workflow.wait_condition(lambda: bool(self.told))
        workflow.upsert_memo({"told": self.told[0]})
        return result + self.told[0]

    @workflow.signal
    def tell(self, text: str) -> None:
        self.told.append(text)

    @workflow.query
    def all_told(self, prefix: str) -> list[str]:
        return [text for text in self.told if text.startswith(prefix)]


@dataclass
class ClaimV1:
    number: int


@dataclass
class ClaimV2:
    number: int
    currency: str


@workflow.defn(name="Claims")
class ClaimsV2:
    @workflow.run
    async def run(self, claim: ClaimV2) -> str:
        return claim.currency


@workflow.defn(name="Claims")
class ClaimsV1:
    @workflow.run
    async def run(self, claim: ClaimV1) -> str:
        return "no currency"


WORKFLOWS = [Secretive]
ACTIVITIES = [double, refuse]


@pytest.fixture
async def environment(tmp_path: Path) -> AsyncIterator[WorkflowEnvironment]:
    async with await WorkflowEnvironment.start_local(database=str(tmp_path / "clew.db")) as environment:
        yield environment


def client_of(environment: WorkflowEnvironment, codec: PayloadCodec | None = None, **options: Any) -> Client:
    converter = DataConverter(payload_codec=codec, failure_converter_class=DefaultFailureConverterWithEncodedAttributes)
    return Client(environment.client.connection, data_converter=converter, **options)


def worker_of(client: Client, workflows: list[type[Any]] = WORKFLOWS) -> Worker:
    return Worker(client, task_queue=QUEUE, workflows=workflows, activities=ACTIVITIES)


def everything_stored(database: Path) -> bytes:
    """All bytes of all tables, as anybody with the file can read them."""
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        rows = [row for table in tables for row in connection.execute(f"SELECT * FROM {table}")]
    connection.close()
    return "\n".join(
        value.decode(errors="replace") if isinstance(value, bytes) else str(value) for row in rows for value in row
    ).encode()


def codecs(directory: Path) -> dict[str, Callable[[], PayloadCodec]]:
    store = FileSystemPayloadStore(directory / "payloads")
    encryption = EncryptionCodec(KEYS, current_key_id="new")
    return {
        "encryption": lambda: encryption,
        "compression": lambda: CompressionCodec(bytes_min=0),
        "payload_store": lambda: PayloadStoreCodec(store, threshold_bytes=0),
        "chain": lambda: CodecChain(
            CompressionCodec(bytes_min=0), encryption, PayloadStoreCodec(store, threshold_bytes=0)
        ),
    }


@pytest.mark.parametrize("name", ["encryption", "compression", "payload_store", "chain"])
async def test_a_whole_run_goes_through_the_codec(environment: WorkflowEnvironment, tmp_path: Path, name: str) -> None:
    client = client_of(environment, codecs(tmp_path)[name]())
    long = SECRET * 50
    async with worker_of(client):
        handle = await client.start_workflow(
            Secretive.run, long, id="s", task_queue=QUEUE, memo={"m": SECRET}, static_summary=SECRET
        )
        await handle.signal(Secretive.tell, long)
        assert await handle.result() == long * 3
        assert await handle.query(Secretive.all_told, SECRET) == [long]
    description = await handle.describe()
    assert await description.memo() == {"m": SECRET, "told": long}
    assert await description.static_summary() == SECRET
    if name != "compression":
        assert SECRET.encode() not in everything_stored(tmp_path / "clew.db")
    if name == "chain":
        stored = b"".join(path.read_bytes() for path in (tmp_path / "payloads").rglob("*") if path.is_file())
        assert stored
        assert SECRET.encode() not in stored


async def test_a_history_with_encrypted_payloads_is_replayed(environment: WorkflowEnvironment) -> None:
    client = client_of(environment, EncryptionCodec(KEYS, current_key_id="new"))
    async with worker_of(client):
        handle = await client.start_workflow(Secretive.run, SECRET, id="s", task_queue=QUEUE)
        await handle.signal(Secretive.tell, SECRET)
        await handle.result()
    replayer = Replayer(workflows=WORKFLOWS, data_converter=client.data_converter)
    await replayer.replay_workflow(await handle.fetch_history())


async def _until_failing(handle: WorkflowHandle[Any, Any]) -> Any:
    async with asyncio.timeout(20):
        while True:
            task = (await handle.describe()).pending_workflow_task
            if task is not None and task.last_failure is not None:
                return task.last_failure
            await asyncio.sleep(0.02)


async def test_a_worker_without_the_key_says_so_and_the_run_goes_on_once_it_has_it(
    environment: WorkflowEnvironment,
) -> None:
    writer = client_of(environment, EncryptionCodec(KEYS, current_key_id="new"))
    handle = await writer.start_workflow(Secretive.run, SECRET, id="s", task_queue=QUEUE)
    lacking = client_of(environment, EncryptionCodec({"old": KEYS["old"]}, current_key_id="old"))
    async with worker_of(lacking):
        failure = await _until_failing(handle)
    told = str(await lacking.data_converter.decode_failure(failure))
    assert "encrypted with key 'new', which this process does not have; it has 'old'" in told
    assert (await handle.describe()).status.name == "RUNNING"
    rotated = client_of(environment, EncryptionCodec(KEYS, current_key_id="old"))
    async with worker_of(rotated):
        await handle.signal(Secretive.tell, SECRET)
        assert await asyncio.wait_for(handle.result(), 30) == SECRET * 3
    with pytest.raises(MissingKeyError, match="'old'"):
        await (
            client_of(environment, EncryptionCodec({"new": KEYS["new"]}, current_key_id="new"))
            .get_workflow_handle("s")
            .result()
        )


async def test_a_worker_without_any_codec_says_which_encoding_it_met(environment: WorkflowEnvironment) -> None:
    writer = client_of(environment, EncryptionCodec(KEYS, current_key_id="new"))
    handle = await writer.start_workflow(Secretive.run, SECRET, id="s", task_queue=QUEUE)
    plain = client_of(environment)
    async with worker_of(plain):
        failure = await _until_failing(handle)
    assert "binary/encrypted" in str(await plain.data_converter.decode_failure(failure))
    assert (await handle.describe()).status.name == "RUNNING"
    async with worker_of(writer):
        await handle.signal(Secretive.tell, SECRET)
        assert await asyncio.wait_for(handle.result(), 30) == SECRET * 3


class FailsToEncode(PayloadCodec):
    """Reads, and cannot write while `is_broken`."""

    def __init__(self) -> None:
        self.is_broken = False

    async def encode(self, payloads: Any) -> Any:
        if self.is_broken:
            raise OSError("the key service does not answer")
        return list(payloads)

    async def decode(self, payloads: Any) -> Any:
        return list(payloads)


async def test_a_codec_that_cannot_write_fails_the_task_and_not_the_run(environment: WorkflowEnvironment) -> None:
    codec = FailsToEncode()
    writer = client_of(environment)
    handle = await writer.start_workflow(Secretive.run, "x", id="s", task_queue=QUEUE)
    codec.is_broken = True
    async with worker_of(client_of(environment, codec)):
        failure = await _until_failing(handle)
        assert "the key service does not answer" in str(await writer.data_converter.decode_failure(failure))
        codec.is_broken = False
        await handle.signal(Secretive.tell, "y")
        assert await asyncio.wait_for(handle.result(), 30) == "xxy"
    broken = FailsToEncode()
    broken.is_broken = True
    with pytest.raises(OSError, match="key service"):
        await client_of(environment, broken).start_workflow(Secretive.run, "x", id="t", task_queue=QUEUE)


async def test_a_deleted_payload_stops_the_task_until_it_is_back(
    environment: WorkflowEnvironment, tmp_path: Path
) -> None:
    client = client_of(environment, codecs(tmp_path)["payload_store"]())
    handle = await client.start_workflow(Secretive.run, "x", id="s", task_queue=QUEUE)
    [file] = [path for path in (tmp_path / "payloads").rglob("*") if path.is_file()]
    hidden = file.rename(tmp_path / "hidden")
    async with worker_of(client):
        failure = await _until_failing(handle)
        assert f"Payload {file.name}" in str(await client.data_converter.decode_failure(failure))
        hidden.rename(file)
        await handle.signal(Secretive.tell, "y")
        assert await asyncio.wait_for(handle.result(), 30) == "xxy"


async def test_a_payload_of_another_version_of_a_dataclass(environment: WorkflowEnvironment) -> None:
    client = client_of(environment)
    handle = await client.start_workflow("Claims", ClaimV1(1), id="c", task_queue=QUEUE, result_type=str)
    async with worker_of(client, [ClaimsV2]):
        failure = await _until_failing(handle)
        told = str(await client.data_converter.decode_failure(failure))
        assert "'claim'" in told
        assert "currency" in told
        assert "ClaimV2" in told
    async with worker_of(client, [ClaimsV1]):
        assert await asyncio.wait_for(handle.result(), 30) == "no currency"


user: ContextVar[str] = ContextVar("user")
role: ContextVar[str] = ContextVar("role", default="guest")


@activity.defn
async def who_in_task() -> str:
    return f"{user.get('nobody')}/{role.get()}"


@activity.defn
def who_in_thread() -> str:
    return user.get("nobody")


@workflow.defn
class Who:
    def __init__(self) -> None:
        self.by: str | None = None

    @workflow.run
    async def run(self, depth: int) -> list[str]:
        seen = [user.get("nobody")]
        seen.append(await workflow.execute_activity(who_in_task, **SHORT))
        seen.append(await workflow.execute_activity(who_in_thread, **SHORT))
        seen.append(await workflow.execute_local_activity(who_in_task, **SHORT))
        if depth == 2:
            workflow.continue_as_new(0)
        if depth == 1:
            child = await workflow.start_child_workflow(Who.run, 0, id="child")
            seen.extend(await child)
            await workflow.wait_condition(lambda: self.by is not None)
            seen.append(str(self.by))
        return seen

    @workflow.signal
    async def sign(self) -> None:
        self.by = await workflow.execute_activity(who_in_task, **SHORT)

    @workflow.query
    def asker(self) -> str:
        return user.get("nobody")

    @workflow.update
    def updater(self) -> str:
        return user.get("nobody")

    @updater.validator
    def _check(self) -> None:
        if user.get("nobody") == "mallory":
            raise ValueError("mallory may not")


@pytest.mark.parametrize("cache", [100, 0])
async def test_context_variables_go_along(environment: WorkflowEnvironment, cache: int) -> None:
    client = client_of(environment, interceptors=[ContextPropagationInterceptor(user, role)])
    async with Worker(
        client,
        task_queue=QUEUE,
        workflows=[Who],
        activities=[who_in_task, who_in_thread],
        max_cached_workflows=cache,
    ):
        user.set("kim")
        handle = await client.start_workflow(Who.run, 1, id="w", task_queue=QUEUE)
        following = await client.start_workflow(Who.run, 2, id="again", task_queue=QUEUE)
        user.set("lee")
        assert await handle.query(Who.asker) == "lee"
        assert await handle.execute_update(Who.updater) == "lee"
        await handle.signal(Who.sign)
        one = ["kim", "kim/guest", "kim", "kim/guest"]
        assert await asyncio.wait_for(handle.result(), 30) == [*one, *one, "lee/guest"]
        assert await asyncio.wait_for(following.result(), 30) == one


async def test_a_variable_that_is_not_set_stays_so(environment: WorkflowEnvironment) -> None:
    client = client_of(environment, interceptors=[ContextPropagationInterceptor(user)])
    async with Worker(client, task_queue=QUEUE, workflows=[Who], activities=[who_in_task, who_in_thread]):
        result = await client.execute_workflow(Who.run, 0, id="w", task_queue=QUEUE)
    assert result == ["nobody", "nobody/guest", "nobody", "nobody/guest"]


def test_at_least_one_variable_is_named() -> None:
    with pytest.raises(ValueError, match="at least one context variable"):
        ContextPropagationInterceptor()


async def test_a_codec_error_of_the_client_is_the_codecs_own(environment: WorkflowEnvironment) -> None:
    writer = client_of(environment, CompressionCodec(bytes_min=0))
    reader = client_of(environment, CompressionCodec(decoded_bytes_max=10))
    async with worker_of(writer):
        handle = await writer.start_workflow(Secretive.run, "x" * 500, id="s", task_queue=QUEUE)
        await handle.signal(Secretive.tell, "y")
        await handle.result()
    with pytest.raises(DecodeError, match="raise decoded_bytes_max"):
        await reader.get_workflow_handle("s").result()
