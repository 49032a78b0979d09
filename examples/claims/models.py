"""What the claim process passes around: plain dataclasses, stored in the history as plain JSON.

Money is counted in whole cents.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


@dataclass(frozen=True)
class Claim:
    """What a customer reports."""

    claim_id: str
    policy_number: str
    customer: str
    amount_cents: int


class ClaimStatus(StrEnum):
    """Where a claim stands; the query ``state`` tells it."""

    REGISTERED = "registered"
    AWAITING_PHOTOS = "awaiting photos"
    CHECKING_FRAUD = "checking for fraud"
    AWAITING_DECISION = "awaiting an assessor's decision"
    PAYING = "paying"
    CLOSED = "closed"


class Outcome(StrEnum):
    """How a claim ended."""

    PAID = "paid"
    REJECTED = "rejected by assessor"
    NO_PHOTOS = "closed: no photos"
    NO_POLICY = "refused: no such policy"


@dataclass(frozen=True)
class Decision:
    """What an assessor says about a suspicious claim."""

    approved: bool
    assessor: str


@dataclass
class ClaimState:
    """The answer to the query ``state``."""

    claim_id: str
    amount_cents: int
    status: ClaimStatus = ClaimStatus.REGISTERED
    photos: list[str] = field(default_factory=list)
    reminder_count: int = 0
    fraud_score: float | None = None
    decision: Decision | None = None


@dataclass(frozen=True)
class Letter:
    """One letter to a customer; `kind` says what it is about."""

    claim_id: str
    customer: str
    kind: str
    text: str


@dataclass(frozen=True)
class Payment:
    """What the payment provider confirmed."""

    payment_id: str
    amount_cents: int


@dataclass(frozen=True)
class ClaimResult:
    """What the workflow returns."""

    claim_id: str
    outcome: Outcome
    payment: Payment | None = None
    assessor: str | None = None
