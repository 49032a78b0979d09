"""Simulated clients: they make the calls of the plan, repeat them until they are answered, and write down what they
saw.

Owns: `Calls`, the record of every call, for the checkers. Never: judges an answer.

How it works: each call of the plan is made by a task of its own in the lane of its client, under a request id that
stays the same however often it is repeated. A refusal that says "try again" is followed by another try.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any

from clew.converter import DataConverter, to_stored_payloads
from clew.model.events import ZERO, UpdateRequest, WorkflowTaskCompleted
from clew.model.failure import ApplicationInfo, Failure
from clew.model.inputs import (
    CancelActivityRequest,
    CompleteActivityRequest,
    FailActivityRequest,
    HeartbeatActivityRequest,
)
from clew.model.policies import RetryPolicy, WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from clew.service import requests as r
from clew.service.errors import RPCError
from clew.service.operations import DeleteWorkflowRequest
from tests.simulation.loop import Lane, SimLoop
from tests.simulation.places import Placed
from tests.simulation.plan import Action
from tests.simulation.programs import QUEUE, policy_of, seconds_of
from tests.simulation.told import Known
from tests.simulation.wire import Wire

CONVERTER = DataConverter.default.payload_converter

POLLING_SHARE = 3
"""One update in so many is waited for by polls."""

RESET_TYPES = {"first": r.ResetType.FIRST_WORKFLOW_TASK, "last": r.ResetType.LAST_WORKFLOW_TASK}

POLICIES = {
    "": WorkflowIDConflictPolicy.UNSPECIFIED,
    "fail": WorkflowIDConflictPolicy.FAIL,
    "use": WorkflowIDConflictPolicy.USE_EXISTING,
    "replace": WorkflowIDConflictPolicy.TERMINATE_EXISTING,
}

REUSES = {
    "": WorkflowIDReusePolicy.ALLOW_DUPLICATE,
    "failed": WorkflowIDReusePolicy.ALLOW_DUPLICATE_FAILED_ONLY,
    "reject": WorkflowIDReusePolicy.REJECT_DUPLICATE,
}


class Call:
    """One call, and what came of it.

    Attributes:
        began_at, ended_at: On the loop's clock, with a number that orders the moments of one instant.
        tried_at: Of the last time that it was made, likewise.
        polls: Of an update: waits for its acceptance, and then polls for its outcome.
        first_known: What was durable when it was made.
        made_in, heard_in: The changes of the store right before it was made, and right before its answer was heard.
        known: What was durable when it was made, or made again.
        ends: Of who waits for a result: the end of each run that followed another.
        answer: What it was answered; None while it was not.
        refusal: The code of the refusal for good.
    """

    def __init__(self, action: Action, request_id: str, began_at: tuple[float, int], *, polls: bool = False) -> None:
        self.action = action
        self.request_id = request_id
        self.began_at = began_at
        self.ended_at: tuple[float, int] | None = None
        self.tried_at = began_at
        self.tries = 0
        self.polls = polls
        self.first_known = self.known = Known(None)
        self.made_in = self.heard_in = 0
        self.ends: list[r.GetHistoryResponse] = []
        self.answer: Any = None
        self.refusal = ""

    @property
    def is_ok(self) -> bool:
        return self.ended_at is not None and not self.refusal

    def __str__(self) -> str:
        return f"{self.action.kind} {self.action.values.get('id')} ({self.request_id})"


class SimClient:
    """One client process.

    Args:
        on_try: Told each call right when it is made, and made again.
        on_answer: Told each call right when it was answered.
        on_accepted: Told each update, and in which run, right when its acceptance was answered.
    """

    def __init__(
        self,
        name: str,
        *,
        loop: SimLoop,
        lane: Lane,
        wire: Wire,
        chance: random.Random,
        moment: Callable[[], tuple[float, int]],
        on_try: Callable[[Call], None],
        on_answer: Callable[[Call], None],
        on_accepted: Callable[[Call, str], None],
    ) -> None:
        self.name = name
        self.lane = lane
        self.link = wire
        self.wire = Placed(wire)
        self.calls: list[Call] = []
        self._loop = loop
        self._chance = chance
        self._moment = moment
        self._on_try = on_try
        self._on_answer = on_answer
        self._on_accepted = on_accepted
        self._open_count = 0

    @property
    def is_idle(self) -> bool:
        """Whether every call made so far has come to an end."""
        return self._open_count == 0

    def make(self, action: Action, number: int) -> None:
        """Begin a call; in the client's lane."""
        call = Call(action, f"r{number}", self._moment(), polls=number % POLLING_SHARE == 0)
        self.calls.append(call)
        self._open_count += 1
        self._loop.create_task(self._see_through(call))

    async def _see_through(self, call: Call) -> None:
        method = getattr(self, f"_do_{call.action.kind}")
        while True:
            call.tries += 1
            call.tried_at = self._moment()
            self._on_try(call)
            try:
                call.answer = await method(call, call.action.values)
            except RPCError as error:
                if error.is_retryable:
                    await asyncio.sleep(0.05 + self._chance.random() * min(0.1 * call.tries, 2.0))
                    continue
                call.refusal = error.code.value
            call.ended_at = self._moment()
            break
        self._open_count -= 1
        self._loop.note(f"{self.name} {call} {call.refusal or 'ok'} after {call.tries}")
        self._on_answer(call)

    # --- calls that change a run ------------------------------------------------------------------------------------

    async def _do_start(self, call: Call, values: dict[str, Any]) -> Any:
        return await self.wire.start_workflow(
            r.StartWorkflowRequest(
                namespace="default", workflow_id=values["id"], workflow_type="Program", task_queue=QUEUE,
                request_id=call.request_id, input=stored(values["program"]),
                id_conflict_policy=POLICIES[values.get("policy", "")],
                id_reuse_policy=REUSES[values.get("reuse", "")],
                workflow_run_timeout=seconds_of(values, "run_timeout") or ZERO,
                workflow_execution_timeout=seconds_of(values, "execution_timeout") or ZERO,
                retry_policy=stored_policy(values["retry"]) if "retry" in values else None,
                cron_schedule=values.get("cron", ""),
            )
        )  # fmt: skip

    async def _do_start_register(self, call: Call, values: dict[str, Any]) -> Any:
        return await self.wire.start_workflow(
            r.StartWorkflowRequest(
                namespace="default", workflow_id=values["id"], workflow_type="Register", task_queue=QUEUE,
                request_id=call.request_id,
            )
        )  # fmt: skip

    async def _do_signal(self, call: Call, values: dict[str, Any]) -> Any:
        return await self._signal(call, values["id"], "add", values["number"])

    async def _do_stop_register(self, call: Call, values: dict[str, Any]) -> Any:
        return await self._signal(call, values["id"], "stop")

    async def _signal(self, call: Call, workflow_id: str, name: str, *args: Any) -> Any:
        return await self.wire.signal_workflow(
            r.SignalWorkflowRequest(
                namespace="default", workflow_id=workflow_id, signal_name=name, request_id=call.request_id,
                input=stored(*args),
            )
        )  # fmt: skip

    async def _do_signal_with_start(self, call: Call, values: dict[str, Any]) -> Any:
        start = r.StartWorkflowRequest(
            namespace="default", workflow_id=values["id"], workflow_type="Program", task_queue=QUEUE,
            request_id=call.request_id, input=stored(values["program"]),
        )  # fmt: skip
        request = r.SignalWithStartRequest(start=start, signal_name="add", signal_input=stored(values["number"]))
        return await self.wire.signal_with_start(request)

    async def _do_update_with_start(self, call: Call, values: dict[str, Any]) -> Any:
        start = r.StartWorkflowRequest(
            namespace="default", workflow_id=values["id"], workflow_type="Program", task_queue=QUEUE,
            request_id=call.request_id, input=stored(values["program"]), id_conflict_policy=POLICIES["use"],
        )  # fmt: skip
        update = UpdateRequest(update_id=call.request_id, name="push", input=stored(values["number"]))
        asked = r.UpdateWorkflowRequest(namespace="default", workflow_id=values["id"], request=update)
        answer = await self.wire.update_with_start(r.UpdateWithStartRequest(start=start, update=asked))
        response = answer.update
        while response.outcome is None:
            response = await self.wire.update_workflow(asked)
        return response

    async def _do_complete(self, call: Call, values: dict[str, Any]) -> Any:
        """What somebody does who was given the token of an attempt."""
        request = CompleteActivityRequest(
            token=values["task"].token, result=stored(values["result"]), identity=self.name
        )
        return await self.wire.complete_activity(request)

    async def _do_report(self, call: Call, values: dict[str, Any]) -> Any:
        """What somebody says of an attempt whose time has long passed."""
        token = values["task"].token
        match values["as"]:
            case "cancelled":
                return await self.wire.cancel_activity(CancelActivityRequest(token=token, identity=self.name))
            case "failed":
                late = Failure(message="too late", info=ApplicationInfo(type="Planned"))
                return await self.wire.fail_activity(FailActivityRequest(token=token, failure=late, identity=self.name))
            case _:
                return await self.wire.heartbeat_activity(HeartbeatActivityRequest(token=token, identity=self.name))

    async def _do_delete(self, call: Call, values: dict[str, Any]) -> Any:
        run_id = ""
        if values["of"] == "first":
            run_id = (await self._do_describe(call, values)).info.first_execution_run_id
        return await self.wire.delete_workflow(
            DeleteWorkflowRequest(namespace="default", workflow_id=values["id"], run_id=run_id)
        )

    async def _do_look(self, call: Call, values: dict[str, Any]) -> Any:
        """Look for a run that was deleted."""
        return await self.wire.describe_workflow(
            r.DescribeWorkflowRequest(namespace="default", workflow_id=values["id"], run_id=values["run_id"])
        )

    async def _do_end_cron(self, call: Call, values: dict[str, Any]) -> Any:
        return await self._do_terminate(call, values)

    async def _do_cancel(self, call: Call, values: dict[str, Any]) -> Any:
        return await self.wire.request_cancel_workflow(
            r.RequestCancelRequest(namespace="default", workflow_id=values["id"], request_id=call.request_id)
        )

    async def _do_terminate(self, call: Call, values: dict[str, Any]) -> Any:
        return await self.wire.terminate_workflow(
            r.TerminateWorkflowRequest(namespace="default", workflow_id=values["id"], reason=call.request_id)
        )

    async def _do_reset(self, call: Call, values: dict[str, Any]) -> Any:
        described = await self._do_describe(call, values)
        info = described.info
        run_id = info.first_execution_run_id if values["of"] == "first" else ""
        point: dict[str, Any] = {}
        if isinstance(values["point"], float):
            page = await self.wire.get_history(
                r.GetHistoryRequest(
                    namespace="default", workflow_id=values["id"], run_id=run_id or info.run_id, events_max=100_000
                )
            )  # fmt: skip
            completed = [event.event_id for event in page.events if isinstance(event, WorkflowTaskCompleted)]
            if completed:
                point["event_id"] = completed[int(values["point"] * len(completed))]
        if not point:
            point["reset_type"] = RESET_TYPES["first" if values["point"] == "first" else "last"]
        return await self.wire.reset_workflow(
            r.ResetWorkflowRequest(
                namespace="default", workflow_id=values["id"], run_id=run_id, reason="simulated",
                request_id=call.request_id, **point,
                reapply_exclude=tuple(r.ResetReapplyExcludeType(kind) for kind in values["without"]),
            )
        )  # fmt: skip

    async def _do_update(self, call: Call, values: dict[str, Any]) -> Any:
        return await self._update(call, values["id"], "push", values["number"])

    async def _do_write(self, call: Call, values: dict[str, Any]) -> Any:
        return await self._update(call, values["id"], "write", values["number"])

    async def _do_swap(self, call: Call, values: dict[str, Any]) -> Any:
        return await self._update(call, values["id"], "swap", values["wanted"], values["number"])

    async def _update(self, call: Call, workflow_id: str, name: str, *args: Any) -> Any:
        """Send an update and wait for its outcome; every third waits for its acceptance first, and then polls."""
        asked = r.UpdateWorkflowRequest(
            namespace="default", workflow_id=workflow_id,
            request=UpdateRequest(update_id=call.request_id, name=name, input=stored(*args)),
            wait_stage=r.UpdateStage.ACCEPTED if call.polls else r.UpdateStage.COMPLETED,
        )  # fmt: skip
        response = await self.wire.update_workflow(asked)
        while response.outcome is None:
            if response.stage is not r.UpdateStage.ACCEPTED or not call.polls:
                response = await self.wire.update_workflow(asked)
                continue
            self._on_accepted(call, response.run_id)
            poll = r.PollUpdateRequest(
                namespace="default", workflow_id=workflow_id, run_id=response.run_id, update_id=call.request_id
            )
            response = await self.wire.poll_update(poll)
        return response

    # --- calls that read --------------------------------------------------------------------------------------------

    async def _do_read(self, call: Call, values: dict[str, Any]) -> Any:
        return await self._query(values["id"], "read")

    async def _do_query(self, call: Call, values: dict[str, Any]) -> Any:
        return await self._query(values["id"], "seen")

    async def _query(self, workflow_id: str, name: str) -> Any:
        return await self.wire.query_workflow(
            r.QueryWorkflowRequest(namespace="default", workflow_id=workflow_id, query_type=name)
        )

    async def _do_describe(self, call: Call, values: dict[str, Any]) -> Any:
        return await self.wire.describe_workflow(
            r.DescribeWorkflowRequest(namespace="default", workflow_id=values["id"])
        )

    async def _do_pages(self, call: Call, values: dict[str, Any]) -> Any:
        """Go through the history of the latest run page by page; who stays does so until it ends."""
        run_id, next_id = "", 1
        while True:
            page = await self.wire.get_history(
                r.GetHistoryRequest(
                    namespace="default", workflow_id=values["id"], run_id=run_id, from_event_id=next_id,
                    events_max=values["size"], wait_new_event=values["stays"],
                )
            )  # fmt: skip
            run_id, next_id = page.run_id, page.next_event_id
            if not next_id:
                return page

    async def _do_history(self, call: Call, values: dict[str, Any]) -> Any:
        """Wait for the end of the run, and of those that follow it, as somebody does who wants its result."""
        run_id, next_id, call.ends = "", 1, []
        while True:
            page = await self.wire.get_history(
                r.GetHistoryRequest(
                    namespace="default", workflow_id=values["id"], run_id=run_id, from_event_id=next_id,
                    wait_new_event=True, close_event_only=True,
                )
            )  # fmt: skip
            run_id = page.run_id
            if page.events:
                call.ends.append(page)
                run_id, next_id = getattr(page.events[-1], "new_execution_run_id", ""), 1
                if not run_id:
                    return page
                continue
            next_id = page.next_event_id or next_id


def stored_policy(values: dict[str, Any]) -> RetryPolicy:
    """A retry policy as the engine takes it."""
    policy = policy_of(values)
    return RetryPolicy(
        initial_interval=policy.initial_interval,
        backoff_coefficient=policy.backoff_coefficient,
        maximum_interval=policy.maximum_interval,
        maximum_attempts=policy.maximum_attempts,
    )


def stored(*values: Any) -> Any:
    """Values as stored payloads."""
    return to_stored_payloads(CONVERTER, values)


def value_of(payloads: Sequence[Any]) -> Any:
    """The one value among stored payloads."""
    return CONVERTER.from_stored(payloads[0], None) if payloads else None
