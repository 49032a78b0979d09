"""What is tried again and what is not: activities, whole workflows, and how the last error reaches the caller."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

from temporalio import activity, workflow
from temporalio.client import Client, WorkflowFailureError
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, RetryState
from temporalio.worker import Worker

FAST = RetryPolicy(
    initial_interval=timedelta(milliseconds=1),
    backoff_coefficient=1.5,
    maximum_attempts=3,
    non_retryable_error_types=["Forbidden"],
)


@activity.defn
def call(kind: str) -> int:
    attempt = activity.info().attempt
    if kind == "third time" and attempt < 3:
        raise ConnectionError(f"attempt {attempt}")
    if kind == "never":
        raise ApplicationError("always", {"attempt": attempt}, type="Always")
    if kind == "forbidden":
        raise ApplicationError("no", type="Forbidden")
    if kind == "at once":
        raise (
            ApplicationError("later", next_retry_delay=timedelta(milliseconds=1)) if attempt < 2 else ValueError("bad")
        )
    return attempt


@workflow.defn
class Caller:
    @workflow.run
    async def run(self, kind: str) -> int:
        return await workflow.execute_activity(
            call, kind, start_to_close_timeout=timedelta(seconds=5), retry_policy=FAST
        )


@workflow.defn
class Stubborn:
    @workflow.run
    async def run(self) -> int:
        attempt = workflow.info().attempt
        if attempt < 2:
            raise ApplicationError("again, please")
        return attempt


async def main(address: str) -> dict[str, Any]:
    client = await Client.connect(address)
    seen: dict[str, Any] = {}
    with ThreadPoolExecutor(4) as pool:
        async with Worker(
            client, task_queue="calls", workflows=[Caller, Stubborn], activities=[call], activity_executor=pool
        ):
            for kind in ("third time", "never", "forbidden", "at once"):
                try:
                    seen[kind] = await client.execute_workflow(Caller.run, kind, id=f"call {kind}", task_queue="calls")
                except WorkflowFailureError as error:
                    assert isinstance(error.cause, ActivityError)
                    cause = error.cause.cause
                    assert isinstance(cause, ApplicationError)
                    state = error.cause.retry_state
                    assert isinstance(state, RetryState)
                    seen[kind] = [cause.type, str(cause.message), list(cause.details), state.name]
            seen["stubborn"] = await client.execute_workflow(
                Stubborn.run, id="stubborn", task_queue="calls", retry_policy=RetryPolicy(maximum_attempts=2)
            )
    return seen


EXPECTED = {
    "third time": 3,
    "never": ["Always", "always", [{"attempt": 3}], "MAXIMUM_ATTEMPTS_REACHED"],
    "forbidden": ["Forbidden", "no", [], "NON_RETRYABLE_FAILURE"],
    "at once": ["ValueError", "bad", [], "MAXIMUM_ATTEMPTS_REACHED"],
    "stubborn": 2,
}
