"""Chaos over every workflow of the examples: each way that one can go, through every fault."""

from __future__ import annotations

import ast
import re
from datetime import timedelta
from pathlib import Path

import pytest

from clew import activity
from clew.client import Client
from clew.exceptions import ApplicationError
from clew.worker import Worker
from examples.claims.models import Claim, ClaimResult, Decision, Letter, Outcome, Payment
from examples.claims.workflows import ClaimProcess
from examples.tour import Tour, greet

ROOT = Path(__file__).resolve().parents[2]
DAY = timedelta(days=1)
CLAIM = Claim("claim-1", "P-1", "customer-1", 12_345)


class Offices:
    """What the activities reach, in memory: harmless to repeat with the same key, like the real ones."""

    def __init__(self, score: float = 0.1, is_known: bool = True) -> None:
        self.score = score
        self.is_known = is_known
        self.register: set[str] = set()
        self.desk: set[str] = set()
        self.payments: dict[str, Payment] = {}
        self.letters: dict[str, str] = {}

    @activity.defn
    async def register_claim(self, claim: Claim) -> None:
        if not self.is_known:
            raise ApplicationError("no such policy", type="UnknownPolicy", non_retryable=True)
        self.register.add(claim.claim_id)

    @activity.defn
    async def score_fraud(self, claim: Claim) -> float:
        return self.score

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

    def worker(self, client: Client) -> Worker:
        activities = [self.register_claim, self.score_fraud, self.ask_assessor, self.pay_out, self.send_letter]
        return Worker(client, task_queue="claims", workflows=[ClaimProcess], activities=activities)


async def result_of(
    client: Client, offices: Offices, *, photos: list[str] | None, decision: Decision | None = None
) -> ClaimResult:
    async with offices.worker(client):
        handle = await client.start_workflow(ClaimProcess.run, args=[CLAIM, DAY], id="claim-1", task_queue="claims")
        if photos is not None:
            await handle.signal(ClaimProcess.photos_received, photos)
        if decision is not None:
            await handle.signal(ClaimProcess.decide, decision)
        return await handle.result()


@pytest.mark.clew_chaos(seconds=20)
async def test_a_suspicious_claim_is_paid_once(clew_client: Client) -> None:
    offices = Offices(score=0.9)
    decision = Decision(approved=True, assessor="Iris")
    result = await result_of(clew_client, offices, photos=["front.jpg"], decision=decision)
    assert (result.outcome, result.assessor) == (Outcome.PAID, "Iris")
    assert len(offices.payments) == 1
    assert list(offices.letters.values()) == ["photos", "closing"]


@pytest.mark.clew_chaos(seconds=20)
async def test_a_claim_that_an_assessor_refuses_is_not_paid(clew_client: Client) -> None:
    offices = Offices(score=0.9)
    decision = Decision(approved=False, assessor="Iris")
    result = await result_of(clew_client, offices, photos=["front.jpg"], decision=decision)
    assert (result.outcome, offices.payments) == (Outcome.REJECTED, {})


@pytest.mark.clew_chaos(seconds=20)
async def test_a_claim_without_photos_is_closed_after_a_reminder(clew_client: Client) -> None:
    offices = Offices()
    result = await result_of(clew_client, offices, photos=None)
    assert result.outcome is Outcome.NO_PHOTOS
    assert list(offices.letters.values()) == ["photos", "reminder", "closing"]


@pytest.mark.clew_chaos(seconds=20)
async def test_a_claim_without_a_policy_is_closed_at_once(clew_client: Client) -> None:
    offices = Offices(is_known=False)
    result = await result_of(clew_client, offices, photos=None)
    assert (result.outcome, list(offices.letters.values())) == (Outcome.NO_POLICY, ["closing"])


@pytest.mark.clew_chaos(seconds=20)
async def test_the_tour_greets_both(clew_client: Client) -> None:
    async with Worker(clew_client, task_queue="tour", workflows=[Tour], activities=[greet]):
        handle = await clew_client.start_workflow(Tour.run, "Ariadne", id="tour-1", task_queue="tour")
        await handle.signal(Tour.also_greet, "Theseus")
        assert await handle.result() == ["Hello, Ariadne!", "Hello, Theseus!"]


def test_no_workflow_of_the_examples_is_left_out() -> None:
    tested = {ClaimProcess.__name__, Tour.__name__}
    assert workflows_below(ROOT / "examples") == tested


def workflows_below(directory: Path) -> set[str]:
    """The classes that are marked as workflows, by name."""
    found: set[str] = set()
    for path in directory.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                marks = {ast.unparse(mark) for mark in node.decorator_list}
                if any(re.match(r"workflow\.defn\b", mark) for mark in marks):
                    found.add(node.name)
    return found
