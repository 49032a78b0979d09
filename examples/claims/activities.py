"""What the claim process does to the world.

An activity may run twice: the worker can die after the act and before its outcome is recorded. So every act here is
made harmless to repeat with the *idempotency key*, which is the same for each attempt of one intention to act.
"""

from __future__ import annotations

import json
import os
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from clew import activity
from clew.exceptions import ApplicationError
from examples.claims.http_json import post_json
from examples.claims.models import Claim, Letter, Payment

FRAUD_TIMEOUT_SECONDS = 0.5
PAYMENT_TIMEOUT_SECONDS = 1.0


@dataclass(frozen=True)
class Offices:
    """Where the outside world is."""

    fraud_url: str
    payment_url: str
    register: Path
    letters: Path
    assessor_desk: Path


class ClaimActivities:
    """The activities share what they need to reach the outside world; a worker registers the bound methods."""

    def __init__(self, offices: Offices) -> None:
        self._offices = offices

    @activity.defn
    def register_claim(self, claim: Claim) -> None:
        """Enter the claim in the register.

        Raises:
            ApplicationError: There is no such policy; final.
        """
        if not claim.policy_number.startswith("P-"):
            raise ApplicationError(
                f"there is no policy {claim.policy_number!r}", type="UnknownPolicy", non_retryable=True
            )
        write_once(self._offices.register / f"{claim.claim_id}.json", asdict(claim))

    @activity.defn
    def score_fraud(self, claim: Claim) -> float:
        """Ask the fraud service, which is slow or broken now and then: how suspicious is this, from 0 to 1?"""
        answer = post_json(f"{self._offices.fraud_url}/score", asdict(claim), timeout=FRAUD_TIMEOUT_SECONDS)
        return float(answer["score"])

    @activity.defn
    def ask_assessor(self, claim: Claim) -> None:
        """Put the claim on the assessor's desk; the decision comes back as a signal."""
        write_once(self._offices.assessor_desk / f"{claim.claim_id}.json", asdict(claim))

    @activity.defn
    def pay_out(self, claim: Claim) -> Payment:
        """Pay, exactly once: the provider knows the idempotency key and answers a repeat as it did the first time."""
        answer = post_json(
            f"{self._offices.payment_url}/payments",
            {"reference": claim.claim_id, "payee": claim.customer, "amount_cents": claim.amount_cents},
            headers={"Idempotency-Key": activity.info().idempotency_key},
            timeout=PAYMENT_TIMEOUT_SECONDS,
        )
        return Payment(payment_id=answer["payment_id"], amount_cents=answer["amount_cents"])

    @activity.defn
    def send_letter(self, letter: Letter) -> None:
        """Post a letter. It is a file named by the idempotency key, so sending it twice makes one letter."""
        write_once(self._offices.letters / f"{activity.info().idempotency_key}.json", asdict(letter))


def write_once(path: Path, content: Any) -> None:
    """Make the file appear whole or not at all; writing the same again changes nothing."""
    draft = path.with_suffix(f".{os.getpid()}-{threading.get_ident()}.draft")
    draft.write_text(json.dumps(content), encoding="utf-8")
    draft.replace(path)
