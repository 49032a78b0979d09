"""The claim process as it was when its history was recorded; see README.md. Never edited."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum

from clew import activity, workflow
from clew.common import RetryPolicy
from clew.exceptions import ActivityError, ApplicationError

DAYS_UNTIL_REMINDER = 2
DAYS_AFTER_REMINDER = 5
SUSPICIOUS_SCORE = 0.8
PATIENTLY = RetryPolicy(initial_interval=timedelta(milliseconds=100), maximum_interval=timedelta(seconds=2))
ATTEMPT_TIMEOUT = timedelta(seconds=5)


@dataclass(frozen=True)
class Claim:
    claim_id: str
    policy_number: str
    customer: str
    amount_cents: int


class ClaimStatus(StrEnum):
    REGISTERED = "registered"
    AWAITING_PHOTOS = "awaiting photos"
    CHECKING_FRAUD = "checking for fraud"
    AWAITING_DECISION = "awaiting an assessor's decision"
    PAYING = "paying"
    CLOSED = "closed"


class Outcome(StrEnum):
    PAID = "paid"
    REJECTED = "rejected by assessor"
    NO_PHOTOS = "closed: no photos"
    NO_POLICY = "refused: no such policy"


@dataclass(frozen=True)
class Decision:
    approved: bool
    assessor: str


@dataclass
class ClaimState:
    claim_id: str
    amount_cents: int
    status: ClaimStatus = ClaimStatus.REGISTERED
    photos: list[str] = field(default_factory=list)
    reminder_count: int = 0
    fraud_score: float | None = None
    decision: Decision | None = None


@dataclass(frozen=True)
class Letter:
    claim_id: str
    customer: str
    kind: str
    text: str


@dataclass(frozen=True)
class Payment:
    payment_id: str
    amount_cents: int


@dataclass(frozen=True)
class ClaimResult:
    claim_id: str
    outcome: Outcome
    payment: Payment | None = None
    assessor: str | None = None


class ClaimActivities:
    """Names and types alone: a replay runs no activity."""

    @activity.defn
    def register_claim(self, claim: Claim) -> None:
        raise NotImplementedError

    @activity.defn
    def score_fraud(self, claim: Claim) -> float:
        raise NotImplementedError

    @activity.defn
    def ask_assessor(self, claim: Claim) -> None:
        raise NotImplementedError

    @activity.defn
    def pay_out(self, claim: Claim) -> Payment:
        raise NotImplementedError

    @activity.defn
    def send_letter(self, letter: Letter) -> None:
        raise NotImplementedError


@workflow.defn
class ClaimProcess:
    """One insurance claim.

    Args:
        claim: What the customer reported.
        day: How long a day is; the demo's days are short.
    """

    @workflow.init
    def __init__(self, claim: Claim, day: timedelta) -> None:
        self._claim = claim
        self._day = day
        self._state = ClaimState(claim_id=claim.claim_id, amount_cents=claim.amount_cents)

    @workflow.run
    async def run(self, claim: Claim, day: timedelta) -> ClaimResult:
        outcome = await self._assess()
        payment = await self._pay_out() if outcome is Outcome.PAID else None
        await self._send_letter("closing", f"Your claim {claim.claim_id}: {outcome}.")
        self._state.status = ClaimStatus.CLOSED
        decision = self._state.decision
        return ClaimResult(claim.claim_id, outcome, payment, decision.assessor if decision else None)

    # --- what happens outside comes in as signals; queries look without touching --------------------------------------

    @workflow.signal
    def photos_received(self, photos: list[str]) -> None:
        """Customers may send the same photo twice, and so may a mail room that was restarted."""
        self._state.photos += [photo for photo in photos if photo not in self._state.photos]

    @workflow.signal
    def decide(self, decision: Decision) -> None:
        """The first decision counts."""
        if self._state.decision is None:
            self._state.decision = decision

    @workflow.query
    def state(self) -> ClaimState:
        return self._state

    # --- the steps ----------------------------------------------------------------------------------------------------

    async def _assess(self) -> Outcome:
        if not await self._register():
            return Outcome.NO_POLICY
        if not await self._collect_photos():
            return Outcome.NO_PHOTOS
        if not await self._is_trusted():
            return Outcome.REJECTED
        return Outcome.PAID

    async def _register(self) -> bool:
        try:
            await workflow.execute_activity_method(
                ClaimActivities.register_claim,
                self._claim,
                start_to_close_timeout=ATTEMPT_TIMEOUT,
                retry_policy=PATIENTLY,
            )
        except ActivityError as error:
            if isinstance(error.cause, ApplicationError) and error.cause.type == "UnknownPolicy":
                return False
            raise
        return True

    async def _collect_photos(self) -> bool:
        self._state.status = ClaimStatus.AWAITING_PHOTOS
        await self._send_letter("photos", "Please send us photos of the damage.")
        if await self._photos_within(DAYS_UNTIL_REMINDER):
            return True
        self._state.reminder_count += 1
        await self._send_letter("reminder", f"We still need your photos. We wait {DAYS_AFTER_REMINDER} more days.")
        return await self._photos_within(DAYS_AFTER_REMINDER)

    async def _photos_within(self, days: int) -> bool:
        try:
            await workflow.wait_condition(lambda: bool(self._state.photos), timeout=days * self._day)
        except TimeoutError:
            return False
        return True

    async def _is_trusted(self) -> bool:
        self._state.status = ClaimStatus.CHECKING_FRAUD
        score = self._state.fraud_score = await workflow.execute_activity_method(
            ClaimActivities.score_fraud,
            self._claim,
            start_to_close_timeout=ATTEMPT_TIMEOUT,
            retry_policy=PATIENTLY,
        )
        if score <= SUSPICIOUS_SCORE:
            return True
        self._state.status = ClaimStatus.AWAITING_DECISION
        await workflow.execute_activity_method(
            ClaimActivities.ask_assessor,
            self._claim,
            start_to_close_timeout=ATTEMPT_TIMEOUT,
            retry_policy=PATIENTLY,
        )
        await workflow.wait_condition(lambda: self._state.decision is not None)
        return self._state.decision is not None and self._state.decision.approved

    async def _pay_out(self) -> Payment:
        self._state.status = ClaimStatus.PAYING
        return await workflow.execute_activity_method(
            ClaimActivities.pay_out,
            self._claim,
            start_to_close_timeout=ATTEMPT_TIMEOUT,
            retry_policy=PATIENTLY,
        )

    async def _send_letter(self, kind: str, text: str) -> None:
        await workflow.execute_activity_method(
            ClaimActivities.send_letter,
            Letter(self._claim.claim_id, self._claim.customer, kind, text),
            start_to_close_timeout=ATTEMPT_TIMEOUT,
            retry_policy=PATIENTLY,
        )


WORKFLOWS = [ClaimProcess]
