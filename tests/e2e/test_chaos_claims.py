"""Chaos over the example: a suspicious claim with a late photo, decided by an assessor, through every fault."""

from __future__ import annotations

from datetime import timedelta

import pytest

from clew import activity
from clew.client import Client
from clew.worker import Worker
from examples.claims.models import Claim, ClaimResult, Decision, Letter, Outcome, Payment
from examples.claims.workflows import ClaimProcess

CLAIM = Claim("claim-1", "P-1", "customer-1", 12_345)


class World:
    """What the activities do, in memory: harmless to repeat with the same key, like the real ones."""

    def __init__(self) -> None:
        self.register: set[str] = set()
        self.desk: set[str] = set()
        self.payments: dict[str, Payment] = {}
        self.letters: dict[str, str] = {}

    @activity.defn
    async def register_claim(self, claim: Claim) -> None:
        self.register.add(claim.claim_id)

    @activity.defn
    async def score_fraud(self, claim: Claim) -> float:
        return 0.9

    @activity.defn
    async def ask_assessor(self, claim: Claim) -> None:
        self.desk.add(claim.claim_id)

    @activity.defn
    async def pay_out(self, claim: Claim) -> Payment:
        key = activity.info().idempotency_key
        return self.payments.setdefault(key, Payment(f"pay-{key[:8]}", claim.amount_cents))

    @activity.defn
    async def send_letter(self, letter: Letter) -> None:
        self.letters.setdefault(activity.info().idempotency_key, letter.kind)


@pytest.mark.clew_chaos(seconds=20)
async def test_a_suspicious_claim_is_paid_once_through_every_fault(clew_client: Client) -> None:
    world = World()
    activities = [world.register_claim, world.score_fraud, world.ask_assessor, world.pay_out, world.send_letter]
    async with Worker(clew_client, task_queue="claims", workflows=[ClaimProcess], activities=activities):
        handle = await clew_client.start_workflow(
            ClaimProcess.run, args=[CLAIM, timedelta(days=1)], id="claim-1", task_queue="claims"
        )
        await handle.signal(ClaimProcess.photos_received, ["front.jpg"])
        await handle.signal(ClaimProcess.decide, Decision(approved=True, assessor="Iris"))
        result: ClaimResult = await handle.result()
    assert (result.outcome, result.assessor) == (Outcome.PAID, "Iris")
    assert [payment.amount_cents for payment in world.payments.values()] == [12_345]
    assert sorted(world.letters.values()) == ["closing", "photos"]
    assert world.register == world.desk == {"claim-1"}


@pytest.mark.clew_chaos(seconds=20)
async def test_a_claim_without_photos_is_reminded_once_and_closed(clew_client: Client) -> None:
    world = World()
    activities = [world.register_claim, world.score_fraud, world.ask_assessor, world.pay_out, world.send_letter]
    async with Worker(clew_client, task_queue="claims", workflows=[ClaimProcess], activities=activities):
        result = await clew_client.execute_workflow(
            ClaimProcess.run, args=[CLAIM, timedelta(days=1)], id="claim-1", task_queue="claims"
        )
    assert result.outcome is Outcome.NO_PHOTOS
    assert world.payments == {}
    assert sorted(world.letters.values()) == ["closing", "photos", "reminder"]
