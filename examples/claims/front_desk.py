"""The front desk: everything that people do with claims, played from the plan.

It remembers nothing. After a restart it does all of it again, which is harmless, because each act can be repeated: a
claim that exists is not started twice, a photo that is there is not added twice, and the first decision counts.
"""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

from clew.client import Client, RPCError, RPCStatusCode, WorkflowAlreadyStartedError, WorkflowHandle
from clew.common import WorkflowIDReusePolicy
from examples.claims.models import ClaimResult, Decision
from examples.claims.plan import Plan, PlannedClaim
from examples.claims.workflows import ClaimProcess

TASK_QUEUE = "claims"
DESK_ROUND_SECONDS = 0.05
"""How often the assessor looks for new claims on the desk."""


class FrontDesk:
    """Plays customers and assessors.

    Args:
        assessor_desk: The folder in which the process puts claims that need a decision.
    """

    def __init__(self, client: Client, plan: Plan, assessor_desk: Path) -> None:
        self._client = client
        self._plan = plan
        self._desk = assessor_desk
        self._is_honest = {planned.claim.claim_id: planned.is_honest for planned in plan.claims}

    async def run(self) -> None:
        """Play the plan until every claim is closed."""
        async with asyncio.TaskGroup() as group:  # an error of the assessor or of a customer ends the desk
            assessor = group.create_task(self._assess_forever())
            await asyncio.gather(*(self._play_customer(planned) for planned in self._plan.claims))
            assessor.cancel()

    async def _play_customer(self, planned: PlannedClaim) -> None:
        await self._wait_until(planned.arrives_after_seconds)
        handle = await self._register(planned)
        if planned.photos_after_days is not None:
            await self._wait_until(planned.arrives_after_seconds + planned.photos_after_days * self._plan.day_seconds)
            try:
                await handle.signal(ClaimProcess.photos_received, ["front.jpg", "side.jpg"])
            except RPCError as error:
                if error.status is not RPCStatusCode.NOT_FOUND:
                    raise  # NOT_FOUND: the claim is closed, and the photos come too late
        await handle.result()

    async def _register(self, planned: PlannedClaim) -> WorkflowHandle[ClaimProcess, ClaimResult]:
        claim = planned.claim
        try:
            return await self._client.start_workflow(
                ClaimProcess.run,
                args=[claim, self._plan.day],
                id=claim.claim_id,
                task_queue=TASK_QUEUE,
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
            )
        except WorkflowAlreadyStartedError:
            return self._client.get_workflow_handle_for(ClaimProcess.run, claim.claim_id)

    async def _wait_until(self, seconds_after_start: float) -> None:
        await asyncio.sleep(self._plan.started_at + seconds_after_start - time.time())

    async def _assess_forever(self) -> None:
        while True:
            for file in sorted(self._desk.glob("*.json")):
                await self._assess(json.loads(file.read_text(encoding="utf-8"))["claim_id"])
                file.unlink()
            await asyncio.sleep(DESK_ROUND_SECONDS)

    async def _assess(self, claim_id: str) -> None:
        handle = self._client.get_workflow_handle_for(ClaimProcess.run, claim_id)
        state = await handle.query(ClaimProcess.state)  # works for closed claims too
        if state.decision is not None:
            return
        assessor = "Ada" if state.amount_cents % 2 else "Grace"
        try:
            await handle.signal(ClaimProcess.decide, Decision(self._is_honest[claim_id], assessor))
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise  # NOT_FOUND: closed meanwhile
