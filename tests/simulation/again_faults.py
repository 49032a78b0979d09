"""Faults in what tells runs of one workflow id apart, and in what code is told of old runs, planted like
those of ``planted``.

Owns: `AGAIN_FAULTS`, and `AGAIN_REGRESSIONS`, as those of ``regressions``. Never: plants them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

import msgspec

from clew.model import commands as c
from clew.model.events import UpdateRequest
from clew.model.policies import WorkflowIDConflictPolicy
from clew.model.rejection import RejectionCode
from clew.service import requests as r
from clew.service.errors import RPCError
from tests.conformance.service.scripted import payloads, soon
from tests.simulation.fault import Fault
from tests.simulation.faulty_shop import FaultyShop, in_shop, until

AGAIN_FAULTS: Final = (
    Fault(
        "fail-policy-uses-existing",
        "a start that is to fail beside an open run is answered with that run",
        "clew.core.start:_open_verdict",
        'return _already_started(request, existing, "is running; wait for it, use its handle, or choose another id")',
        "return UseExisting(run_id=existing.run_id, first_execution_run_id=existing.first_execution_run_id)",
    ),
    Fault(
        "replace-policy-uses-existing",
        "a start that is to replace the open run is answered with that run",
        "clew.core.start:_open_verdict",
        "return TerminateThenStart(run_id=existing.run_id, reason=TERMINATED_BY_START)",
        "return UseExisting(run_id=existing.run_id, first_execution_run_id=existing.first_execution_run_id)",
    ),
    Fault(
        "use-policy-replaces",
        "a start that is to use the open run replaces it",
        "clew.core.start:_open_verdict",
        "return UseExisting(run_id=existing.run_id, first_execution_run_id=existing.first_execution_run_id)",
        "return TerminateThenStart(run_id=existing.run_id, reason=TERMINATED_BY_START)",
    ),
    Fault(
        "reuse-policy-ignored",
        "a start follows a run of its id that has completed, though it may follow failed ones only",
        "clew.core.start:_closed_verdict",
        "if existing.status in _FAILED_STATUSES:",
        "if True:",
    ),
    Fault(
        "open-run-of-another-namespace",
        "an open run is found by its workflow id in whatever namespace it is",
        "clew.engine.runs:RunCache.get_open",
        "run_key = self._open_by_id.get((namespace, workflow_id))",
        "run_key = next((key for (_, name), key in self._open_by_id.items() if name == workflow_id), None)",
    ),
    # --- code that changes while runs are open
    Fault(
        "patched-for-old-runs",
        "code is told that a run has a patch which went past it before there was one",
        "clew.replay.runtime:WorkflowRuntime.patched",
        "answer = not self.is_replaying_now or patch_id in self.recorded_patches",
        "answer = True",
    ),
    Fault(
        "once-start-uses-a-start-that-loses",
        "a start that is to use the open run is refused, as there is none, when the start it relied on has lost",
        "clew.engine.starts:Starter._use_existing",
        "races < RACES_MAX",
        "races < 0",
    ),
    Fault(
        "once-signal-with-start-of-a-start-that-loses",
        "a signal with start is refused, as there is no such workflow, when it met a run whose start has lost",
        "clew.engine.engine:Engine.signal_with_start",
        "(RejectionCode.WORKFLOW_ALREADY_COMPLETED, RejectionCode.WORKFLOW_NOT_FOUND)",
        "(RejectionCode.WORKFLOW_ALREADY_COMPLETED,)",
    ),
    Fault(
        "once-update-of-a-start-that-loses",
        "an update is refused, as there is no such workflow, when it met a run whose start has lost",
        "clew.engine.updates:UpdateDesk._following",
        "is_lost = error.code",
        "is_lost = False and error.code",
    ),
)


async def two_starts_that_use_each_other_follow_a_closed_run() -> None:
    """The second relied on the first, which took the id for a new one and had to look again."""

    async def check(shop: FaultyShop) -> None:
        await shop.start(request_id="one")
        worker = await shop.worker()
        await worker.complete(await worker.workflow_task(), c.CompleteWorkflowExecution(result=payloads(1)))
        start = r.StartWorkflowRequest(
            namespace="default", workflow_id="w1", workflow_type="W", task_queue="q", request_id="two",
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        )  # fmt: skip
        other = msgspec.structs.replace(start, request_id="three")
        both = shop.service.start_workflow(start), shop.service.start_workflow(other)
        told = await soon(asyncio.gather(*both, return_exceptions=True))
        assert all(isinstance(answer, r.StartWorkflowResponse) for answer in told), told
        assert len({answer.run_id for answer in told}) == 1, told
        assert sorted(answer.started for answer in told) == [False, True], told

    await in_shop(check)


async def an_update_meets_a_start_that_follows_a_closed_run() -> None:
    """It met the run that the start was about to make when it took the id for a new one."""

    async def check(shop: FaultyShop) -> None:
        await shop.start(request_id="one")
        worker = await shop.worker()
        await worker.complete(await worker.workflow_task(), c.CompleteWorkflowExecution(result=payloads(1)))
        start = r.StartWorkflowRequest(
            namespace="default", workflow_id="w1", workflow_type="W", task_queue="q", request_id="two"
        )
        starting = asyncio.ensure_future(_awaited(shop.service.start_workflow(start)))
        await asyncio.sleep(0)
        request = UpdateRequest(update_id="u", name="push", input=payloads(1))
        asked = r.UpdateWorkflowRequest(namespace="default", workflow_id="w1", request=request)
        updating = asyncio.ensure_future(_awaited(shop.service.update_workflow(asked)))
        run_id = (await soon(starting)).run_id

        def is_admitted() -> bool:
            entry = shop.engine._cache.get_open("default", "w1")
            return entry is not None and entry.state.run_id == run_id and bool(entry.state.updates)

        await until(lambda: updating.done() or is_admitted())
        refusal = updating.exception() if updating.done() else None
        updating.cancel()
        code = refusal.code if isinstance(refusal, RPCError) else None
        assert code in (None, RejectionCode.WORKFLOW_ALREADY_COMPLETED), refusal

    await in_shop(check)


async def _awaited(call: Awaitable[Any]) -> Any:
    return await call


AGAIN_REGRESSIONS: Final[dict[str, Callable[[], Coroutine[object, object, None]]]] = {
    "once-update-of-a-start-that-loses": an_update_meets_a_start_that_follows_a_closed_run,
    "once-start-uses-a-start-that-loses": two_starts_that_use_each_other_follow_a_closed_run,
}
