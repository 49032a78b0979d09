"""What type checkers infer of the author API; checked by mypy and pyright, never run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, assert_type

from clew import activity, workflow

SECOND = timedelta(seconds=1)


@dataclass
class Claim:
    id: str


@activity.defn
async def score(claim: Claim) -> float:
    return 0.5


@activity.defn
def letter(claim: Claim) -> str:
    return claim.id


@activity.defn
async def ping() -> int:
    return 1


@activity.defn
def pong() -> bytes:
    return b""


@activity.defn
async def pay(claim: Claim, amount: int) -> list[str]:
    return []


class Bank:
    @activity.defn
    async def balance(self, account: str) -> int:
        return 0

    @activity.defn
    def close(self) -> bool:
        return True


@workflow.defn
class Child:
    @workflow.run
    async def run(self, claim: Claim) -> int:
        return 1

    @workflow.signal
    def poke(self, how: str) -> None: ...


@workflow.defn
class Parent:
    @workflow.init
    def __init__(self, name: str) -> None:
        self.name = name

    @workflow.run
    async def run(self, name: str) -> str:
        claim = Claim(name)
        assert_type(await workflow.execute_activity(score, claim, start_to_close_timeout=SECOND), float)
        assert_type(await workflow.execute_activity(letter, claim, start_to_close_timeout=SECOND), str)
        assert_type(await workflow.execute_activity(ping, schedule_to_close_timeout=SECOND), int)
        assert_type(await workflow.execute_activity(pong, schedule_to_close_timeout=SECOND), bytes)
        assert_type(
            await workflow.execute_activity(pay, args=[claim, 1], start_to_close_timeout=SECOND, summary="pay"),
            list[str],
        )
        assert_type(await workflow.execute_activity("any", 1, start_to_close_timeout=SECOND), Any)
        assert_type(
            workflow.start_activity(score, claim, start_to_close_timeout=SECOND), workflow.ActivityHandle[float]
        )
        assert_type(await workflow.start_activity(letter, claim, start_to_close_timeout=SECOND), str)
        assert_type(await workflow.execute_activity_method(Bank.balance, "a", start_to_close_timeout=SECOND), int)
        assert_type(await workflow.execute_activity_method(Bank.close, start_to_close_timeout=SECOND), bool)
        assert_type(await workflow.execute_local_activity(score, claim, start_to_close_timeout=SECOND), float)
        assert_type(await workflow.execute_child_workflow(Child.run, claim, id="c"), int)
        handle = await workflow.start_child_workflow(Child.run, claim)
        assert_type(handle, workflow.ChildWorkflowHandle[Child, int])
        assert_type(await handle, int)
        assert_type(handle.id, str)
        await handle.signal(Child.poke, "now")
        other = workflow.get_external_workflow_handle_for(Child.run, "other")
        assert_type(other, workflow.ExternalWorkflowHandle[Child])
        await other.signal(Child.poke, "x")
        await other.cancel()
        done, pending = await workflow.wait([workflow.start_activity(ping, start_to_close_timeout=SECOND)])
        assert_type(done, list[workflow.ActivityHandle[int]])
        assert_type(pending, list[workflow.ActivityHandle[int]])
        async with workflow.saga() as saga:
            saga.add(pay, claim, 1, before=True)
        assert_type(workflow.info().workflow_id, str)
        workflow.continue_as_new(name)

    @workflow.signal
    async def note(self, text: str) -> None: ...

    @workflow.query
    def status(self) -> dict[str, int]:
        return {}

    @workflow.update
    async def change(self, amount: int) -> str:
        return ""

    @change.validator
    def check(self, amount: int) -> None: ...

    @workflow.signal(dynamic=True)
    def anything(self, name: str, args: Sequence[Any]) -> None: ...


async def wrong_calls_are_errors() -> None:
    claim = Claim("1")
    await workflow.execute_activity(
        score,
        1,  # type: ignore[misc]  # pyright: ignore[reportArgumentType]
        start_to_close_timeout=SECOND,
    )
    await workflow.execute_activity(score, claim, timeout=SECOND)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
