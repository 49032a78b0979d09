"""The one funnel: every input that changes a run goes through `Funnel.apply`.

Owns: load → decide → hand over → commit → effects (design §5), and the answers to callers.
Never: knows what a decision means, or which call it came from.

How it works: an `Operation` is one input: the decision to take, and the future to answer. `apply` takes the decision on
the entry's state; what it asks to be worked on is matched to waiting workers before the commit, so that a task is
committed already leased; then the transition goes to the pipeline. After the commit the offers go out, the caller is
answered, and whoever waits on the run's history is woken. A refusal is told only once everything before it is durable.
A lost guard reloads the run and decides again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Generator
from datetime import datetime
from typing import Any, Final

import msgspec

from clew.core.state import ExecutionState
from clew.core.transition import (
    ActivityCancelWanted,
    ActivityTaskReady,
    RunClosed,
    Transition,
    WorkflowTaskReady,
)
from clew.engine.background import Background
from clew.engine.early import EarlyTasks, worthless
from clew.engine.early_causes import DURABLE, EarlyCause
from clew.engine.offers import Offer, OfferDesk, WorkflowOffer
from clew.engine.outbox_rows import OUTBOX_EFFECTS
from clew.engine.peers import Peers
from clew.engine.pipeline import CommitPipeline, Outcome
from clew.engine.runs import RunCache, RunEntry
from clew.model.rejection import Rejection, RejectionCode
from clew.ports.clock import Clock
from clew.ports.store import (
    CommitStatus,
    OutboxRow,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnstorable,
)
from clew.service.errors import RPCError
from clew.service.reply import Reply

logger = logging.getLogger("clew.engine")

ATTEMPTS_MAX: Final = 10
"""Times one operation decides again after it lost a guard, before the caller is told to try later."""

LOOK_AGAIN_SECONDS: Final = 0.25
"""How long after a failed look at a run whose commit has an unknown outcome it is looked at again."""

Decision = Callable[[ExecutionState, datetime], "Transition | Rejection | None"]


class Operation:
    """One input on one run.

    Args:
        decide: The decision; None from it means there is nothing to do.
        locate: Finds the entry again after a lost guard; None when the run must be in memory.
        future: Answered once the outcome is durable; may be None.
        reply: Makes the answer from the committed transition; by default the transition's own reply.
        tasks_delete, outbox_delete: Rows to remove in the same commit.
        on_committed: Called after the commit, before the answer.
        may_be_early: Whether the workflow task that it makes ready may be begun before the commit.
        rests_on: What had given out the task that this answers and was not durable then; should that be lost, this is
            never decided again (see ``engine.early``).
    """

    __slots__ = (
        "attempts",
        "decide",
        "future",
        "locate",
        "may_be_early",
        "on_committed",
        "outbox_delete",
        "reply",
        "rests_on",
        "tasks_delete",
    )

    def __init__(
        self,
        decide: Decision,
        future: asyncio.Future[Any] | Reply[Any] | None = None,
        *,
        locate: Callable[[], Awaitable[RunEntry]] | None = None,
        reply: Callable[[RunEntry, Transition], Any] | None = None,
        tasks_delete: list[int] | None = None,
        outbox_delete: int | None = None,
        on_committed: Callable[[RunEntry, Transition], None] | None = None,
        may_be_early: bool = False,
        rests_on: EarlyCause | None = None,
    ) -> None:
        self.decide = decide
        self.future = future
        self.locate = locate
        self.reply = reply
        self.tasks_delete = tasks_delete
        self.outbox_delete = outbox_delete
        self.on_committed = on_committed
        self.may_be_early = may_be_early
        self.rests_on = rests_on
        self.attempts = 0

    @property
    def is_worthless(self) -> bool:
        """Whether it answers a task whose cause was lost, or may have been."""
        return self.rests_on is not None and self.rests_on.early != DURABLE

    def answer(self, value: Any) -> None:
        """Give the caller its answer, if anyone still waits."""
        self.locate = None  # It may refer to this operation, and only the cycle collector would free both.
        if self.future is not None and not self.future.done():
            self.future.set_result(value)

    def refuse(self, error: BaseException) -> None:
        """Give the caller an error, if anyone still waits."""
        self.locate = None
        if self.future is not None and not self.future.done():
            self.future.set_exception(error)


class OpSubmission(EarlyCause, eq=False):
    """A submission with its operation and the offers to make once it is durable."""

    operation: Operation | None = None
    offers: list[Offer] = msgspec.field(default_factory=list[Any])
    sticky_elsewhere: str = ""
    """The session of another node that the workflow task waits for."""


def submission_of(
    entry: RunEntry,
    transition: Transition,
    on_settled: Callable[[Any, Outcome], None],
    operation: Operation | None = None,
) -> OpSubmission:
    """The submission of a transition; its events are the transition's, also those that it absorbs later."""
    return OpSubmission(entry, transition.events, on_settled, transition, operation=operation)


class Funnel:
    """See the module docstring. All methods belong to the engine's loop."""

    def __init__(
        self,
        *,
        clock: Clock,
        cache: RunCache,
        pipeline: CommitPipeline,
        desk: OfferDesk,
        early: EarlyTasks,
        adopt_new_run: Callable[[RunEntry, ExecutionState], RunEntry],
        on_changed: Callable[[RunEntry, Transition], None],
        on_outbox: Callable[[list[OutboxRow]], None],
        on_discard: Callable[[RunEntry], None],
        on_failed: Callable[[RunEntry, StoreError], None],
        peers: Peers,
        is_current: Callable[[RunEntry], Awaitable[bool]],
    ) -> None:
        self._clock = clock
        self._cache = cache
        self._pipeline = pipeline
        self._desk = desk
        self._early = early
        self._adopt_new_run = adopt_new_run
        self._on_changed = on_changed
        self._on_outbox = on_outbox
        self._on_discard = on_discard
        self._on_failed = on_failed
        self._peers = peers
        self._is_current = is_current
        self._is_closed = False
        self._loop = asyncio.get_running_loop()
        self._background = Background("engine")

    # --- inputs -----------------------------------------------------------------------------------------------------

    def apply(self, entry: RunEntry, operation: Operation) -> None:
        """Take the operation's decision on this entry, and see it through."""
        if entry.is_discarded and operation.locate is not None:
            self.spawn(self.retry(operation))
            return
        now = self._clock.now()
        try:
            outcome = operation.decide(entry.state, now)
        except Exception as error:  # noqa: BLE001 - a bug in a decision parks this run and leaves the others be
            self.park(entry, operation, error)
            return
        if isinstance(outcome, Rejection):
            rejection = outcome
            if operation.tasks_delete:
                self._desk.forget_rows(operation.tasks_delete)
            self._after_current(entry, operation, lambda: operation.refuse(RPCError(rejection)))
            return
        if outcome is None:
            self._after_current(entry, operation, lambda: operation.answer(None))
            return
        try:
            self.submit(entry, outcome, operation, now)
        except Exception as error:  # noqa: BLE001 - likewise: what was decided is not committed, so it must not stay
            self.park(entry, operation, error)

    def submit(self, entry: RunEntry, transition: Transition, operation: Operation | None, now: datetime) -> None:
        """Hand over what the transition made ready, and commit it."""
        submission = submission_of(entry, transition, self.settle, operation)
        if transition.effects:
            self.hand_over(submission, now)
        if operation is not None:
            submission.tasks_delete = operation.tasks_delete
            submission.outbox_delete = operation.outbox_delete
        if transition.events:
            entry.remember(transition.events)
        new_run = transition.new_run
        if new_run is not None:
            self._submit_with_new_run(submission, *new_run, now)
        elif operation is None or not operation.may_be_early or not self._begin_early(submission):
            self._pipeline.submit(submission)

    def _begin_early(self, submission: OpSubmission) -> bool:
        """Let a worker of this process begin with the workflow task, if that is all that this transition gives out."""
        if len(submission.offers) != 1 or submission.tasks_put or submission.tasks_delete:
            return False
        offer = submission.offers[0]
        if type(offer) is not WorkflowOffer or offer.session.early_sink is None or offer.started.attempt > 1:
            return False
        task = self._desk.task_at_hand(offer)
        return task is not None and self._early.begin(submission, task, offer.session)

    def submit_prepared(self, submission: OpSubmission) -> None:
        """Commit a submission whose tasks are handed over already."""
        if submission.events:
            submission.entry.remember(submission.events)
        self._pipeline.submit(submission)

    async def retry(self, operation: Operation) -> None:
        """Find the run again and decide anew."""
        assert operation.locate is not None, "an operation that can lose its guard must know how to find its run again"
        try:
            entry = await operation.locate()
        except RPCError as error:
            operation.refuse(error)
            return
        except StoreError as error:
            operation.refuse(store_error(error))
            return
        except Exception as error:
            operation.refuse(error)
            raise
        self.apply(entry, operation)

    def spawn(self, work: Awaitable[None]) -> None:
        """Run background work that belongs to an operation; its errors are the operation's."""
        self._background.spawn(work)

    def close(self) -> None:
        """Try nothing again any more that waits for the store to recover."""
        self._is_closed = True
        self._desk.close()

    async def wait_spawned(self) -> None:
        """Wait for background work that is still on its way."""
        await self._background.wait()

    def after_current(self, entry: RunEntry, callback: Callable[[], None]) -> None:
        """Call back once all that this run has submitted so far is settled."""
        self._pipeline.after_current(entry, callback)

    def _after_current(self, entry: RunEntry, operation: Operation, tell: Callable[[], None]) -> None:
        """Tell what was decided on this state once that state is durable; decide again if it never became so."""

        def settled() -> None:
            if operation.is_worthless:
                operation.refuse(worthless())
            elif entry.is_discarded and operation.locate is not None:
                self.spawn(self.retry(operation))
            elif operation.future is None or self._peers.is_alone:
                tell()
            else:
                self.spawn(self._tell_if_current(entry, operation, tell))

        self._pipeline.after_current(entry, settled)

    async def _tell_if_current(self, entry: RunEntry, operation: Operation, tell: Callable[[], None]) -> None:
        """Tell what was decided without a commit, unless another node has changed the run: then decide again."""
        try:
            is_current = await self._is_current(entry)
        except StoreError as error:
            operation.refuse(store_error(error))
            return
        operation.attempts += 1
        if is_current or operation.locate is None or operation.attempts >= ATTEMPTS_MAX:
            tell()
        else:
            await self.retry(operation)

    # --- hand-over --------------------------------------------------------------------------------------------------

    def hand_over(self, submission: OpSubmission, now: datetime) -> None:
        """Match ready tasks to waiting workers now, so that they are committed already leased.

        Decisions absorbed here may make further effects; those are looked at in turn.
        """
        try:
            self._match_all(submission, now)
        except Exception:
            for offer in submission.offers:
                self._desk.withdraw(offer)
            raise

    def _match_all(self, submission: OpSubmission, now: datetime) -> None:
        effects = submission.decided.effects
        position = 0
        while position < len(effects):
            effect = effects[position]
            position += 1
            if type(effect) is WorkflowTaskReady:
                self._desk.match_workflow_task(submission, effect, now)
            elif type(effect) is ActivityTaskReady:
                self._desk.match_activity_task(submission, effect, now)
            elif type(effect) in OUTBOX_EFFECTS:
                submission.reaches_out = True

    def _submit_with_new_run(
        self, submission: OpSubmission, state: ExecutionState, transition: Transition, now: datetime
    ) -> None:
        successor = self._adopt_new_run(submission.entry, state)
        follow = submission_of(successor, transition, self.settle)
        if transition.effects:
            self.hand_over(follow, now)
        successor.remember(transition.events)
        successor.trim_tail()
        self._pipeline.submit_together(submission, follow)

    # --- after the commit -------------------------------------------------------------------------------------------

    def settle(self, submission: OpSubmission, outcome: Outcome) -> None:
        """The pipeline's word on a submission: perform its effects and answer, or take its offers back."""
        if outcome is not CommitStatus.COMMITTED:
            self.lost(submission, outcome)
            return
        entry, transition, operation = submission.entry, submission.decided, submission.operation
        if not submission.early or self._early.note_durable(submission):
            for offer in submission.offers:
                self._desk.send(offer)
        if submission.tasks_put:
            self._desk.note_rows(submission.tasks_put)
        if submission.sticky_elsewhere:
            self._peers.on_sticky(entry, submission.sticky_elsewhere)
        if transition.effects:
            self._perform(entry, transition)
        if submission.outbox_put:
            self._on_outbox(submission.outbox_put)
        if operation is not None:
            if operation.on_committed is not None:
                operation.on_committed(entry, transition)
            if isinstance(transition.reply, Rejection):
                operation.refuse(RPCError(transition.reply))
            elif operation.reply is not None:
                operation.answer(operation.reply(entry, transition))
            else:
                operation.answer(None)
        self._on_changed(entry, transition)

    def _perform(self, entry: RunEntry, transition: Transition) -> None:
        for effect in transition.effects:
            kind = type(effect)
            if kind is ActivityCancelWanted:
                self._desk.send_cancel(entry, effect)  # type: ignore[arg-type]
            elif kind is RunClosed:
                self._cache.mark_closed(entry)

    def lost(self, submission: OpSubmission, outcome: Outcome) -> None:
        """A submission was not committed, or nobody knows: take its offers back, and decide again if that may help."""
        operation = submission.operation
        if submission.early and not (isinstance(outcome, StoreError) and self._early.may_offer_again(submission)):
            # The worker gives the slot back by itself.
            submission.offers = []
        if operation is not None and operation.is_worthless:
            operation.refuse(worthless())
        if isinstance(outcome, StoreError):
            self._on_failed(submission.entry, outcome)
            if submission.offers or submission.tasks_put or submission.tasks_delete:
                self.spawn(self._find_out(submission))
            if operation is not None:
                operation.refuse(store_error(outcome))
            return
        for offer in submission.offers:
            self._desk.withdraw(offer)
        if submission.tasks_delete:
            self.spawn(self._desk.release_rows(submission.tasks_delete))
        if operation is None:
            return
        operation.attempts += 1
        if operation.locate is None or operation.attempts >= ATTEMPTS_MAX:
            operation.refuse(
                RPCError(
                    Rejection(
                        code=RejectionCode.UNAVAILABLE,
                        message=f"run {submission.entry.state.run_id} was changed by another node at the same time "
                        f"({operation.attempts} times over); nothing was done; try again",
                    )
                )
            )
            return
        self.spawn(self.retry(operation))

    async def _find_out(self, submission: OpSubmission) -> None:
        """The store failed, so nobody knows whether this is durable: do what follows from what the store now says."""
        old = submission.entry
        entry: RunEntry | None = None
        while not self._is_closed:
            try:
                entry = await self._cache.load(old.shard, old.run_key)
                break
            except StoreError as error:
                logger.warning("engine.outcome_unknown run_id=%s error=%s", old.state.run_id, error)
                await asyncio.sleep(LOOK_AGAIN_SECONDS)
        for offer in submission.offers:
            if entry is not None and offer.is_held(entry):
                offer.entry = entry
                self._desk.send(offer)
            else:
                self._desk.withdraw(offer)
        if submission.tasks_put:
            self._desk.note_rows(submission.tasks_put)
        if submission.tasks_delete:
            await self._desk.release_rows(submission.tasks_delete)

    def park(self, entry: RunEntry, operation: Operation, error: Exception) -> None:
        """A bug in a decision: forget the half-changed state, tell the caller, leave the stored run as it is."""
        logger.error("engine.decision_failed run_id=%s", entry.state.run_id, exc_info=error)
        self._on_discard(entry)
        operation.refuse(
            RPCError(
                Rejection(
                    code=RejectionCode.INTERNAL,
                    message=f"internal error while deciding on run {entry.state.run_id}: {error!r}; "
                    "the run was left as it is stored; please report this with the engine's log",
                )
            )
        )


@contextlib.contextmanager
def telling_store_errors() -> Generator[None]:
    """Turn an error of the store into what a caller is told."""
    try:
        yield
    except StoreError as error:
        raise store_error(error) from error


def store_error(error: StoreError) -> RPCError:
    """What a caller is told when the store failed."""
    if isinstance(error, StoreFull):
        code = RejectionCode.STORE_FULL
    elif isinstance(error, StoreReadOnly):
        code = RejectionCode.STORE_READ_ONLY
    elif isinstance(error, StoreCorrupt):
        code = RejectionCode.STORE_CORRUPT
    elif isinstance(error, StoreUnstorable):
        code = RejectionCode.INVALID_ARGUMENT
    else:
        code = RejectionCode.UNAVAILABLE
    refusal = RPCError(Rejection(code=code, message=str(error)))
    refusal.__cause__ = error
    return refusal
