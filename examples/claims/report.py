"""What became of the claims: the figures at the end of the demo, and whether they are as they must be.

It believes nobody. Outcomes and retries come from the histories, payments from the provider's books, letters from the
post office; then the three are compared.
"""

from __future__ import annotations

import json
import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from clew.client import (
    Client,
    RPCError,
    RPCStatusCode,
    WorkflowExecutionStatus,
    WorkflowHistory,
    format_compact_history,
)
from clew.model.events import ActivityTaskStarted, Event, TimerFired, TimerStarted, WorkflowExecutionSignaled
from examples.claims.models import ClaimResult, Outcome
from examples.claims.plan import Plan, PlannedClaim
from examples.claims.services.ledger import Ledger, LedgerSummary
from examples.claims.workflows import ClaimProcess

LETTERS_EXPECTED = {
    Outcome.PAID: {"photos", "closing"},
    Outcome.REJECTED: {"photos", "closing"},
    Outcome.NO_PHOTOS: {"photos", "reminder", "closing"},
    Outcome.NO_POLICY: {"closing"},
}
"""Which letters each outcome needs; a reminder may come on top where photos came late."""


@dataclass
class ClaimRecord:
    """What the store knows of one claim."""

    planned: PlannedClaim
    status: WorkflowExecutionStatus | None = None
    """None when the store has never heard of the claim."""
    result: ClaimResult | None = None
    history: WorkflowHistory | None = None

    @property
    def events(self) -> Sequence[Event]:
        """The claim's history, event by event."""
        return self.history.events if self.history else ()

    @property
    def claim_id(self) -> str:
        """The claim's number, which is also the workflow id."""
        return self.planned.claim.claim_id


@dataclass
class Report:
    """The end of the demo in figures."""

    outcomes: Counter[str] = field(default_factory=Counter)
    retry_count: int = 0
    late_photos_count: int = 0
    ledger: LedgerSummary = field(default_factory=lambda: LedgerSummary(0, 0, 0, {}))
    letter_count: int = 0
    problems: list[str] = field(default_factory=list)
    """Everything that must not be; empty when all went well."""

    @property
    def paid_count(self) -> int:
        """Claims whose workflow says that they were paid."""
        return self.outcomes[Outcome.PAID]


async def read_records(client: Client, plan: Plan) -> list[ClaimRecord]:
    """Ask the store about every planned claim."""
    return [await _read_record(client, planned) for planned in plan.claims]


async def _read_record(client: Client, planned: PlannedClaim) -> ClaimRecord:
    handle = client.get_workflow_handle_for(ClaimProcess.run, planned.claim.claim_id)
    try:
        description = await handle.describe()
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return ClaimRecord(planned)
        raise
    is_completed = description.status is WorkflowExecutionStatus.COMPLETED
    return ClaimRecord(
        planned,
        status=description.status,
        result=await handle.result() if is_completed else None,
        history=await handle.fetch_history(),
    )


def read_letters(folder: Path) -> list[tuple[str, str]]:
    """Claim and kind of every letter that was posted."""
    letters = (json.loads(file.read_text(encoding="utf-8")) for file in folder.glob("*.json"))
    return [(letter["claim_id"], letter["kind"]) for letter in letters]


def read_ledger(path: Path) -> LedgerSummary:
    """Read the provider's books."""
    ledger = Ledger(path)
    try:
        return ledger.summarize()
    finally:
        ledger.close()


def make_report(records: Iterable[ClaimRecord], ledger: LedgerSummary, letters: Iterable[tuple[str, str]]) -> Report:
    """Compare what the histories, the books and the post office say."""
    report = Report(ledger=ledger)
    letters_by_claim: dict[str, Counter[str]] = {}
    for claim_id, kind in letters:
        letters_by_claim.setdefault(claim_id, Counter())[kind] += 1
        report.letter_count += 1
    paid_cents = 0
    for record in records:
        report.retry_count += count_retries(record.events)
        report.problems += [f"{record.claim_id}: {early}" for early in find_early_timers(record.events)]
        if record.result is None:
            report.problems.append(_describe_unfinished(record))
            continue
        outcome = Outcome(record.result.outcome)
        report.outcomes[outcome] += 1
        _check_outcome(report, record, outcome)
        _check_payment(report, record, outcome)
        _check_letters(report, record, outcome, letters_by_claim.get(record.claim_id, Counter()))
        if outcome is Outcome.PAID:
            paid_cents += record.planned.claim.amount_cents
    if ledger.payment_count != report.paid_count:
        report.problems.append(f"{ledger.payment_count} payments were made for {report.paid_count} paid claims")
    if ledger.amount_cents != paid_cents:
        report.problems.append(f"{ledger.amount_cents} cents were paid, but the paid claims are worth {paid_cents}")
    return report


def count_retries(events: Iterable[Event]) -> int:
    """How many attempts of activities went before those that were recorded."""
    return sum(event.attempt - 1 for event in events if isinstance(event, ActivityTaskStarted))


def find_early_timers(events: Iterable[Event]) -> list[str]:
    """Timers that fired before they were due."""
    due = {}
    early = []
    for event in events:
        if isinstance(event, TimerStarted):
            due[event.event_id] = event.event_time + event.start_to_fire_timeout
        elif isinstance(event, TimerFired) and event.event_time < due[event.started_event_id]:
            early.append(f"timer {event.timer_id} fired {due[event.started_event_id] - event.event_time} early")
    return early


def _describe_unfinished(record: ClaimRecord) -> str:
    if record.status is None:
        return f"{record.claim_id} is lost: the store does not know it"
    if record.status is WorkflowExecutionStatus.RUNNING:
        return f"{record.claim_id} is stuck: still open after {len(record.events)} events"
    return f"{record.claim_id} ended as {record.status.name}, not as a completed claim"


def _check_outcome(report: Report, record: ClaimRecord, outcome: Outcome) -> None:
    expected = record.planned.expected_outcome
    if outcome is expected:
        return
    if outcome is Outcome.NO_PHOTOS and record.planned.photos_after_days is not None:
        # The front desk was dead when the customer came. That is only fair if the deadline really passed first.
        if _photos_came_in_time(record.events):
            report.problems.append(f"{record.claim_id} was closed for want of photos that had come in time")
        else:
            report.late_photos_count += 1
        return
    report.problems.append(f"{record.claim_id} ended as {outcome!s}, expected {expected!s}")


def _photos_came_in_time(events: Iterable[Event]) -> bool:
    deadlines_passed = 0
    for event in events:
        if isinstance(event, TimerFired):
            deadlines_passed += 1
        elif isinstance(event, WorkflowExecutionSignaled) and event.signal_name == "photos_received":
            return deadlines_passed < 2
    return False


def _check_payment(report: Report, record: ClaimRecord, outcome: Outcome) -> None:
    payment_count = report.ledger.references.get(record.claim_id, 0)
    wanted = 1 if outcome is Outcome.PAID else 0
    if payment_count != wanted:
        report.problems.append(f"{record.claim_id} ({outcome!s}) was paid {payment_count} times, expected {wanted}")


def _check_letters(report: Report, record: ClaimRecord, outcome: Outcome, letters: Counter[str]) -> None:
    twice = sorted(kind for kind, count in letters.items() if count > 1)
    missing = sorted(LETTERS_EXPECTED[outcome] - set(letters))
    if twice:
        report.problems.append(f"{record.claim_id} got two letters of the same kind: {', '.join(twice)}")
    if missing:
        report.problems.append(f"{record.claim_id} ({outcome!s}) never got its letter: {', '.join(missing)}")


def format_report(report: Report, *, kill_count: int, seconds: float) -> str:
    """The table that ends the demo."""
    rows: list[tuple[str, object]] = [(str(outcome), report.outcomes[outcome]) for outcome in Outcome]
    claim_count = sum(report.outcomes.values())
    rows += [
        ("claims closed", claim_count),
        ("", ""),
        ("times the worker was killed (SIGKILL)", kill_count),
        ("retries of activities", report.retry_count),
        ("repeated requests the provider absorbed", report.ledger.repeat_count),
        ("claims closed before late photos came", report.late_photos_count),
        ("letters posted, none twice", report.letter_count),
        ("payments == claims paid", f"{report.ledger.payment_count} == {report.paid_count}"),
        ("paid out", f"{report.ledger.amount_cents / 100:,.2f}"),
        ("seconds", f"{seconds:.1f}"),
    ]
    width = max(len(label) for label, _ in rows)
    return "\n".join(f"  {label:<{width}}  {value!s:>12}".rstrip() for label, value in rows)


def format_history(record: ClaimRecord) -> str:
    """One claim's compact history."""
    return textwrap.indent(format_compact_history(record.events), "  ")


def pick_example(records: Iterable[ClaimRecord]) -> ClaimRecord | None:
    """The paid claim with the most to tell."""
    paid = [record for record in records if record.result and record.result.outcome is Outcome.PAID]
    return max(paid, key=_eventfulness, default=None)


def _eventfulness(record: ClaimRecord) -> tuple[bool, int, int]:
    has_assessor = record.result is not None and record.result.assessor is not None
    return has_assessor, count_retries(record.events), len(record.events)
