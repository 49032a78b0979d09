"""The script of the demo: which claims come in when, and what customers and assessors will do.

The plan is a file, so that a front desk that was killed goes on from the same script, and so that the report can tell
afterwards what should have become of each claim.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import msgspec

from examples.claims.models import Claim, Outcome
from examples.claims.services.fraud import fraud_score
from examples.claims.workflows import SUSPICIOUS_SCORE


@dataclass(frozen=True)
class PlannedClaim:
    """One customer.

    Args:
        arrives_after_seconds: When the claim comes in, counted from the start of the demo.
        photos_after_days: When the customer sends photos, in (demo) days from then; None for never.
        is_honest: What the assessor will find, if asked.
    """

    claim: Claim
    arrives_after_seconds: float
    photos_after_days: float | None
    is_honest: bool

    @property
    def expected_outcome(self) -> Outcome:
        """What becomes of the claim, if the photos are not delayed by a dead front desk."""
        if not self.claim.policy_number.startswith("P-"):
            return Outcome.NO_POLICY
        if self.photos_after_days is None:
            return Outcome.NO_PHOTOS
        if fraud_score(self.claim.claim_id) > SUSPICIOUS_SCORE and not self.is_honest:
            return Outcome.REJECTED
        return Outcome.PAID


@dataclass(frozen=True)
class Plan:
    """The whole script.

    Args:
        started_at: Seconds since the epoch.
        day_seconds: How long a day of the demo is.
    """

    started_at: float
    day_seconds: float
    claims: list[PlannedClaim]

    @property
    def day(self) -> timedelta:
        """How long a day of the demo is."""
        return timedelta(seconds=self.day_seconds)

    def write(self, path: Path) -> None:
        """Write the plan where the worker will read it."""
        path.write_bytes(msgspec.json.encode(self))

    @classmethod
    def read(cls, path: Path) -> Plan:
        """Read a plan."""
        return msgspec.json.decode(path.read_bytes(), type=cls)


def make_plan(*, claim_count: int, seed: int, started_at: float, day_seconds: float, spread_seconds: float) -> Plan:
    """Throw the dice for every customer; the same seed gives the same plan.

    Args:
        spread_seconds: The claims come in evenly over this time.
    """
    dice = random.Random(seed)
    claims = [
        _plan_claim(number, dice, spread_seconds * number / max(claim_count, 1)) for number in range(1, claim_count + 1)
    ]
    return Plan(started_at, day_seconds, claims)


def _plan_claim(number: int, dice: random.Random, arrives_after_seconds: float) -> PlannedClaim:
    has_policy = dice.random() < 0.96
    claim = Claim(
        claim_id=f"claim-{number:04}",
        policy_number=f"{'P' if has_policy else 'X'}-{dice.randrange(100_000):05}",
        customer=f"customer-{dice.randrange(1_000):03}",
        amount_cents=dice.randrange(5_000, 500_000),
    )
    # Most send photos at once, some only when reminded, some never.
    photos_after_days = dice.choices([dice.uniform(0.2, 1.5), dice.uniform(3, 4.5), None], [70, 18, 12])[0]
    return PlannedClaim(claim, arrives_after_seconds, photos_after_days, is_honest=dice.random() < 0.5)
