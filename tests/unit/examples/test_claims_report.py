"""The report of the claims demo finds what is wrong."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from clew.client import WorkflowExecutionStatus, WorkflowHistory
from clew.model.events import ActivityTaskStarted, Event, TimerFired, TimerStarted, WorkflowExecutionSignaled
from examples.claims.models import Claim, ClaimResult, Outcome, Payment
from examples.claims.plan import PlannedClaim, make_plan
from examples.claims.report import ClaimRecord, Report, count_retries, make_report
from examples.claims.services.ledger import LedgerSummary

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)
HONEST_ID = "claim-0002"
"""A claim with a low score."""


def planned(photos_after_days: float | None = 1.0) -> PlannedClaim:
    return PlannedClaim(Claim(HONEST_ID, "P-1", "customer-1", 1000), 0.0, photos_after_days, is_honest=True)


def record(outcome: Outcome, *events: Event, photos_after_days: float | None = 1.0) -> ClaimRecord:
    payment = Payment("pay-1", 1000) if outcome is Outcome.PAID else None
    return ClaimRecord(
        planned(photos_after_days),
        WorkflowExecutionStatus.COMPLETED,
        ClaimResult(HONEST_ID, outcome, payment),
        WorkflowHistory(HONEST_ID, list(events)),
    )


def books(*references: str, amount_cents: int = 1000) -> LedgerSummary:
    counts = {reference: references.count(reference) for reference in references}
    return LedgerSummary(len(references), amount_cents * len(references), 0, counts)


LETTERS = [(HONEST_ID, "photos"), (HONEST_ID, "closing")]


def problems(item: ClaimRecord, ledger: LedgerSummary, letters: list[tuple[str, str]] = LETTERS) -> str:
    return "\n".join(make_report([item], ledger, letters).problems)


def test_good_claim_has_no_problem() -> None:
    report = make_report([record(Outcome.PAID)], books(HONEST_ID), LETTERS)
    assert report.problems == []
    assert (report.paid_count, report.letter_count) == (1, 2)


def test_lost_claim() -> None:
    assert "lost" in problems(ClaimRecord(planned()), books())


def test_stuck_claim() -> None:
    assert "stuck" in problems(ClaimRecord(planned(), WorkflowExecutionStatus.RUNNING), books())


def test_failed_claim() -> None:
    assert "ended as FAILED" in problems(ClaimRecord(planned(), WorkflowExecutionStatus.FAILED), books())


def test_paid_twice() -> None:
    assert "was paid 2 times, expected 1" in problems(record(Outcome.PAID), books(HONEST_ID, HONEST_ID))


def test_never_paid() -> None:
    found = problems(record(Outcome.PAID), books())
    assert "was paid 0 times, expected 1" in found
    assert "0 payments were made for 1 paid claims" in found


def test_paid_for_a_claim_that_no_one_made() -> None:
    assert "2 payments were made for 1 paid claims" in problems(record(Outcome.PAID), books(HONEST_ID, "claim-9999"))


def test_wrong_sum() -> None:
    assert "paid claims are worth 1000" in problems(record(Outcome.PAID), books(HONEST_ID, amount_cents=999))


def test_wrong_outcome() -> None:
    assert "ended as rejected by assessor, expected paid" in problems(record(Outcome.REJECTED), books())


@pytest.mark.parametrize(
    ("letters", "problem"),
    [
        (LETTERS[:1], "never got its letter: closing"),
        ([*LETTERS, LETTERS[0]], "two letters of the same kind: photos"),
    ],
)
def test_letters(letters: list[tuple[str, str]], problem: str) -> None:
    assert problem in problems(record(Outcome.PAID), books(HONEST_ID), letters)


def timer(event_id: int, fired_after_seconds: float = 1.0) -> tuple[Event, Event]:
    """A timer of one second."""
    return (
        TimerStarted(event_id=event_id, event_time=NOON, timer_id="1", start_to_fire_timeout=timedelta(seconds=1)),
        TimerFired(
            event_id=event_id + 1,
            event_time=NOON + timedelta(seconds=fired_after_seconds),
            timer_id="1",
            started_event_id=event_id,
        ),
    )


def photos(event_id: int) -> Event:
    return WorkflowExecutionSignaled(event_id=event_id, event_time=NOON, signal_name="photos_received")


ALL_LETTERS = [*LETTERS, (HONEST_ID, "reminder")]


def test_photos_after_the_last_deadline_are_late() -> None:
    item = record(Outcome.NO_PHOTOS, *timer(10), *timer(20), photos(22))
    report = make_report([item], books(), ALL_LETTERS)
    assert (report.problems, report.late_photos_count) == ([], 1)


def test_photos_before_the_last_deadline_must_count() -> None:
    item = record(Outcome.NO_PHOTOS, *timer(10), photos(15), *timer(20))
    assert "had come in time" in problems(item, books(), ALL_LETTERS)


def test_timer_that_fires_early() -> None:
    assert "timer 1 fired 0:00:00.500000 early" in problems(
        record(Outcome.PAID, *timer(10, fired_after_seconds=0.5)), books(HONEST_ID)
    )
    assert problems(record(Outcome.PAID, *timer(10)), books(HONEST_ID)) == ""


def test_retries_are_attempts_after_the_first() -> None:
    events = [
        ActivityTaskStarted(event_id=number, event_time=NOON, scheduled_event_id=1, attempt=attempt)
        for number, attempt in enumerate([1, 3, 2], 5)
    ]
    assert count_retries(events) == 3
    assert isinstance(make_report([], books(), []), Report)


def test_plan_is_repeatable_and_varied() -> None:
    arguments = {"claim_count": 300, "seed": 5, "started_at": 0.0, "day_seconds": 0.5, "spread_seconds": 12.0}
    plan = make_plan(**arguments)  # type: ignore[arg-type]
    assert plan == make_plan(**arguments)  # type: ignore[arg-type]
    assert {planned.expected_outcome for planned in plan.claims} == set(Outcome)
    assert len({planned.claim.claim_id for planned in plan.claims}) == 300
