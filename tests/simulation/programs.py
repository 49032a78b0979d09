"""The workflows of the simulation: an interpreter of small random programs, and a register.

Owns: the workflow code, and what a program must come to (`expected`). Never: how it is run.

How it works: a program is a list of steps in plain JSON. `Program` does them one after the other and adds up what they
give, so that the result of a run tells whether each step counted exactly once. Steps whose outcome races (a timer
against an activity, an activity that may be lost) count in a range. `Register` keeps one number, which clients read and
change, so that a recorded history of their calls can be checked for linearizability.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from clew import workflow
from clew.common import RetryPolicy
from clew.exceptions import ActivityError, ApplicationError, ChildWorkflowError, FailureError
from tests.simulation.listing import changes_after

QUEUE = "simulation"
FAST_RETRY = RetryPolicy(
    initial_interval=timedelta(seconds=0.3), backoff_coefficient=1.5, maximum_interval=timedelta(seconds=3)
)
ONCE = RetryPolicy(maximum_attempts=1)
CANCELLATION = {
    False: workflow.ActivityCancellationType.TRY_CANCEL,
    True: workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
}


@workflow.defn
class Program:
    """Interprets a program; see the module docstring."""

    @workflow.init
    def __init__(self, program: dict[str, Any]) -> None:
        self.total: int = program.get("total", 0)
        self.signals: list[int] = list(program.get("signals", ()))
        self.order: list[int] = list(program.get("order", ()))
        """Signals in the order in which their handlers began; those of `signals` are done."""
        self.updates: list[int] = list(program.get("updates", ()))
        self.patches = 0
        self.is_named: bool = program.get("is_named", False)
        self.heard = 0
        """Results of activities that this run was told."""

    @workflow.run
    async def run(self, program: dict[str, Any]) -> dict[str, Any]:
        steps = program["steps"]
        for position, step in enumerate(steps):
            if step["do"] == "renew":
                await workflow.wait_condition(workflow.all_handlers_finished)
                rest = {**program, "steps": steps[position + 1 :], "total": self.total}
                more = {"signals": self.signals, "order": self.order, "updates": self.updates}
                workflow.continue_as_new({**rest, **more})
            self.total += await self.do(step)
            if program.get("is_listed"):
                workflow.upsert_search_attributes(changes_after(position, step["do"]))
        await workflow.wait_condition(workflow.all_handlers_finished)
        return {"total": self.total, "signals": self.signals, "order": self.order, "updates": self.updates}

    @workflow.signal
    async def add(self, value: int) -> None:
        self.order.append(value)
        if value % 3 == 0:
            await asyncio.sleep(0.2)
        self.signals.append(value)

    @workflow.update
    async def push(self, value: int) -> int:
        if value % 2 == 0:
            name = {"name": f"push-{value}"} if self.is_named else {}
            value = await self.act({"value": value, "takes": 0.1, **name})
        self.updates.append(value)
        return value

    @push.validator
    def check_push(self, value: int) -> None:
        if value < 0:
            raise ValueError("a value below zero is refused")

    @workflow.query
    def seen(self) -> dict[str, Any]:
        """What the code knows, all of which must be durable by the time that somebody is told."""
        run_id = workflow.info().run_id
        return {"run_id": run_id, "heard": self.heard, "signals": self.signals, "updates": len(self.updates)}

    async def do(self, step: dict[str, Any]) -> int:
        """One step, and what it counts."""
        given: int = await getattr(self, f"do_{step['do']}")(step)
        return given

    async def act(self, step: dict[str, Any], retry: RetryPolicy | None = FAST_RETRY, name: str = "work") -> int:
        if step.get("is_plain") and retry is FAST_RETRY:
            retry = None
        heartbeat = timedelta(seconds=step["heartbeat"]) if step.get("heartbeat") else None
        given: int = await workflow.execute_activity(
            name, step, start_to_close_timeout=timedelta(seconds=20), heartbeat_timeout=heartbeat, retry_policy=retry,
            result_type=int, activity_id=step.get("name"),
        )  # fmt: skip
        self.heard += 1
        return given

    async def do_act(self, step: dict[str, Any]) -> int:
        return await self.act(step)

    async def do_once(self, step: dict[str, Any]) -> int:
        try:
            return await self.act(step, ONCE)
        except ActivityError:
            if workflow.cancellation_reason() is not None:
                raise
            return 0

    async def do_limited(self, step: dict[str, Any]) -> int:
        """An activity with timeouts and a policy of its own, which may come to nothing."""
        try:
            given: int = await workflow.execute_activity(
                "outer" if step["do"] == "outer" else "work", step, result_type=int, activity_id=step["name"],
                start_to_close_timeout=timedelta(seconds=step["start_to_close"]),
                schedule_to_close_timeout=seconds_of(step, "schedule_to_close"),
                schedule_to_start_timeout=seconds_of(step, "schedule_to_start"),
                heartbeat_timeout=seconds_of(step, "heartbeat"), retry_policy=policy_of(step["retry"]),
                cancellation_type=CANCELLATION[step.get("is_awaited", False)],
            )  # fmt: skip
        except ActivityError:
            if workflow.cancellation_reason() is not None:
                raise
            return 0
        return given

    async def do_outer(self, step: dict[str, Any]) -> int:
        """The same, and somebody else completes it."""
        return await self.do_limited(step)

    async def do_local(self, step: dict[str, Any]) -> int:
        given: int = await workflow.execute_local_activity(
            "local", step, start_to_close_timeout=timedelta(seconds=20), retry_policy=FAST_RETRY, result_type=int,
            activity_id=step.get("name"),
        )  # fmt: skip
        return given

    async def do_sleep(self, step: dict[str, Any]) -> int:
        await asyncio.sleep(step["seconds"])
        return step.get("value", 0)

    async def do_all(self, step: dict[str, Any]) -> int:
        return sum(await asyncio.gather(*(self.do(one) for one in step["steps"])))

    async def do_branch(self, step: dict[str, Any]) -> int:
        """Steps one after the other, beside other branches: what comes next depends on whose step is done first."""
        return sum([await self.do(one) for one in step["steps"]])

    async def do_race(self, step: dict[str, Any]) -> int:
        try:
            return await asyncio.wait_for(self.act(step), step["seconds"])
        except TimeoutError:
            return 0

    async def do_wait(self, step: dict[str, Any]) -> int:
        try:
            wanted = len(self.signals) + step["count"]
            await workflow.wait_condition(
                lambda: len(self.signals) >= wanted, timeout=timedelta(seconds=step["seconds"])
            )
        except TimeoutError:
            pass
        return 0

    async def do_child(self, step: dict[str, Any]) -> int:
        given = await workflow.execute_child_workflow(
            "Program", step["program"], id=step["id"], task_queue=QUEUE, result_type=dict,
        )  # fmt: skip
        total: int = given["total"]
        return total

    async def do_failing_child(self, step: dict[str, Any]) -> int:
        try:
            return await self.do_child(step)
        except ChildWorkflowError:
            if workflow.cancellation_reason() is not None:
                raise
            return 0

    async def do_leave(self, step: dict[str, Any]) -> int:
        """Start a child and do not wait for its end."""
        await workflow.start_child_workflow(
            "Program", step["program"], id=step["id"], task_queue=QUEUE,
            parent_close_policy=workflow.ParentClosePolicy[step["policy"]],
        )  # fmt: skip
        return 0

    async def do_tell(self, step: dict[str, Any]) -> int:
        try:
            await workflow.get_external_workflow_handle(step["to"]).signal("add", step["number"])
        except FailureError:
            if workflow.cancellation_reason() is not None:
                raise
        return 0

    async def do_stop(self, step: dict[str, Any]) -> int:
        try:
            await workflow.get_external_workflow_handle(step["to"]).cancel()
        except FailureError:
            if workflow.cancellation_reason() is not None:
                raise
        return 0

    async def do_patch(self, step: dict[str, Any]) -> int:
        return step["value"] if workflow.patched(step["id"]) else 0

    async def do_change(self, step: dict[str, Any]) -> int:
        """What another version of the code does otherwise (``deploys``)."""
        if workflow.patched(step["id"]):
            return await self.act(step)
        await asyncio.sleep(step["seconds"])
        return 0

    async def do_transfer(self, step: dict[str, Any]) -> int:
        out = {**step, "change": -step["amount"], "account": step["source"]}
        back = {**step, "change": step["amount"], "account": step["target"]}
        if "name" in step:
            out["name"], back["name"] = f"{step['name']}-out", f"{step['name']}-in"
        await self.act(out, name="bank")
        await asyncio.sleep(step["seconds"])
        await self.act(back, name="bank")
        return 0

    async def do_fail(self, step: dict[str, Any]) -> int:
        raise ApplicationError("as the program says", type="Planned")


@workflow.defn
class Register:
    """A number that clients read and change, until they say `stop`."""

    def __init__(self) -> None:
        self.number = 0
        self.is_over = False

    @workflow.run
    async def run(self) -> int:
        await workflow.wait_condition(lambda: self.is_over)
        await workflow.wait_condition(workflow.all_handlers_finished)
        return self.number

    @workflow.signal
    def stop(self) -> None:
        self.is_over = True

    @workflow.query
    def read(self) -> int:
        return self.number

    @workflow.update
    async def write(self, number: int) -> int:
        if number % 2:
            await asyncio.sleep(0.05)
        before, self.number = self.number, number
        return before

    @workflow.update
    def swap(self, wanted: int, number: int) -> bool:
        if self.number != wanted:
            return False
        self.number = number
        return True


def seconds_of(values: dict[str, Any], name: str) -> timedelta | None:
    """A timeout of a step or a start; None when it has none."""
    return timedelta(seconds=values[name]) if name in values else None


def policy_of(values: dict[str, float]) -> RetryPolicy:
    """A retry policy as plans write it."""
    return RetryPolicy(
        initial_interval=timedelta(seconds=values["initial"]),
        backoff_coefficient=values["coefficient"],
        maximum_interval=timedelta(seconds=values["longest"]),
        maximum_attempts=int(values["attempts"]),
    )


def pause_after(policy: RetryPolicy, attempt: int) -> float:
    """Seconds between the failure of an attempt and the next, by the policy."""
    longest = policy.maximum_interval or policy.initial_interval * 100
    pause = policy.initial_interval.total_seconds() * policy.backoff_coefficient ** (attempt - 1)
    return min(pause, longest.total_seconds())


def expected(steps: list[dict[str, Any]]) -> tuple[int, int] | None:
    """The least and the greatest total of a program; None when it fails."""
    low = high = 0
    for step in steps:
        value = step.get("value", 0)
        match step["do"]:
            case "act" | "local" | "sleep" | "patch":
                low, high = low + value, high + value
            case "once" | "race" | "limited" | "outer" | "change":
                high += value
            case "all" | "branch":
                inner = expected(step["steps"])
                if inner is None:
                    return None
                low, high = low + inner[0], high + inner[1]
            case "child":
                inner = expected(step["program"]["steps"])
                if inner is None:
                    return None
                low, high = low + inner[0], high + inner[1]
            case "failing_child":
                inner = expected(step["program"]["steps"])
                high += inner[1] if inner is not None else 0
            case "fail":
                return None
            case _:
                pass
    return low, high
