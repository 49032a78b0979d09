"""The commit pipeline: the one place where transitions become durable.

Owns: the gathering of ready transitions into batches, the snapshot and history encoding, versions, and the order in
which a run's submissions are answered.
Never: decides anything, or performs an effect (it calls back).

How it works: `submit` appends a transition to the open write of its run. A flush takes every open write at once and
hands them to the store as one batch; while that is being made durable, the next batch fills. There is no fixed delay:
a lone transition is flushed in the same turn of the loop. Transitions of one run that meet in a batch share one
snapshot and one compare-and-swap, but keep a history row each. When a unit loses its guard, or the store fails, the
run's entry is discarded (its state is ahead of the truth) and every submission on it is told, also those still open.

A second batch of a run may be on its way while the first may yet lose its guard to another node. So in a fleet no two
nodes may make the same version of a run, or the second batch could pass for one that follows what the other node wrote.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from clew.core.codec import encode_item, encode_state, item_keys
from clew.core.state import ExecutionState
from clew.core.transition import Transition
from clew.engine.outbox_rows import outbox_rows
from clew.engine.runs import RunEntry
from clew.engine.summary import labels_of, visibility_of
from clew.model.events import (
    BaseEvent,
    Event,
    UpsertWorkflowSearchAttributes,
    WorkflowPropertiesModified,
    encode_events,
)
from clew.ports.store import (
    CommitStatus,
    HistoryBatch,
    OutboxRow,
    PendingItem,
    RunWrite,
    Store,
    StoreError,
    StoreUnavailable,
    StoreUnstorable,
    TaskRow,
)
from clew.service.reply import Reply

if TYPE_CHECKING:
    from clew.engine.ids import Ids

BATCHES_IN_FLIGHT_MAX: Final = 2
"""One being made durable, one queued behind it, so that the writer never waits for the loop."""

BATCH_RUNS_MAX: Final = 1_000
"""Runs in one batch; bounds the time a batch takes and the memory it holds."""

BATCH_EVENTS_MAX: Final = 2_500
"""Events in one row of history; more than one transition has, unless it wakes thousands of timers or copies a run."""

AWAITED: Final = -1
"""In place of the number of a flush: held back until an instant."""

HELD_FLUSHES_MAX: Final = 64
"""So many flushes pass over what is held back, each after a share of the turns of workflow code."""

SEARCHABLE_CHANGES: Final[tuple[type[BaseEvent], ...]] = (UpsertWorkflowSearchAttributes, WorkflowPropertiesModified)

NO_CHANGES: Final = ((), ())

_encode_into: Final = msgspec.json.Encoder().encode_into
"""What `encode_events` and, for a run that is not wide, `encode_state` do, without the call around it."""

_ABANDONED: Final = "an earlier change of this run could not be made durable; nothing of this one was done; try again"

Outcome = CommitStatus | StoreError


def _next_version(version: int) -> int:
    return version + 1


class Submission(Reply[Any], eq=False):
    """One transition on its way to the store, who waits for it, and (being a reply) what its caller is told.

    Args:
        entry: The run.
        events: What happened, in order; the pipeline encodes it.
        on_settled: Called once, after the commit or its failure.
        transition: The whole of what was decided; None for an express one, which has nothing but its events.
        due_at: For an express one: the deadline that it adds to the run; None when it closes the run.
        is_parked: For an express one: it gives nothing to a worker.
        reaches_out: Whether an effect on another execution is among the transition's.
        outbox_put: Those effects as rows, once they have been written.
        held_at: The number of the flush from which on it is held back, since an answer is about to join it; `AWAITED`
            if the answer comes from afar; else 0.
        more: Later submissions of the same run in the same write; kept at the first of them.
        unit: The first submissions of all runs that stand or fall together; None while the run stands alone.
    """

    entry: RunEntry
    events: list[Event]
    on_settled: Callable[[Any, Outcome], None]
    transition: Transition | None = None
    tasks_put: list[TaskRow] | None = None
    tasks_delete: list[int] | None = None
    outbox_put: list[OutboxRow] | None = None
    outbox_delete: int | None = None
    held_at: int = 0
    due_at: datetime | None = None
    is_parked: bool = False
    reaches_out: bool = False
    more: list[Submission] | None = None
    unit: list[Submission] | None = None

    def note_overdue(self) -> None:
        """It was held back for as long as it may be."""

    @property
    def decided(self) -> Transition:
        """The transition of one that is not express."""
        assert self.transition is not None, "an express submission has no transition"
        return self.transition


class CommitPipeline:
    """See the module docstring. All methods belong to the engine's loop."""

    def __init__(
        self,
        store: Store,
        ids: Ids,
        *,
        on_discard: Callable[[RunEntry], None],
        on_finished: Callable[[RunEntry], None],
        on_batch: Callable[[int, int], None] | None = None,
        version_after: Callable[[int], int] = _next_version,
    ) -> None:
        self._store = store
        self._ids = ids
        self._on_discard = on_discard
        self._on_finished = on_finished
        self._on_batch = on_batch
        self._version_after = version_after
        self._buffer = bytearray()
        """Rows are encoded here, and copied in their size: half as dear as memory that grows for each."""
        self._loop = loop = asyncio.get_running_loop()
        # Turns of workflow code that this round of a service loop runs come first: their answers join what is written.
        self._call_last: Callable[[Callable[[], None]], object] = getattr(loop, "call_after_turns", loop.call_soon)
        self._open: list[Submission] = []
        """The first submission of each run since its last flush; also at the entry, which finds it by that."""
        self._held: deque[Submission] = deque()
        """What is held back, in order; what has been released since is still there until a flush comes past it."""
        self._awaited: deque[tuple[float, Submission]] = deque()
        """The same for what is held back until an instant; all for the same time, so in order."""
        self._awaited_timer: asyncio.TimerHandle | None = None
        self._flush_number = 1
        self._in_flight = 0
        self._is_guard_lost = False
        """Whether an entry is being discarded because its unit lost a guard."""
        self._flush_is_scheduled = False
        self._idle_waiters: list[asyncio.Future[None]] = []

    def submit(self, submission: Submission) -> None:
        """Queue a transition; its `on_settled` is called once, after the commit or its failure."""
        entry = submission.entry
        entry.submitted_count += 1
        if entry.is_discarded:
            self._loop.call_soon(self._refuse_stray, submission)
            return
        head = entry.open_head
        if head is None:
            entry.open_head = submission
            self._open.append(submission)
        else:
            if head.held_at:
                self.release(head)
            if head.more is None:
                head.more = [submission]
            else:
                head.more.append(submission)
        if not self._flush_is_scheduled and self._in_flight < BATCHES_IN_FLIGHT_MAX:
            self._flush_is_scheduled = True
            self._call_last(self._flush)

    def hold(self, submission: Submission) -> None:
        """Submit, but let flushes pass over it, as an answer is about to join it; not for long, and not if anything
        else of its run is or has been submitted."""
        if self._keep_back(submission, self._flush_number):
            self._held.append(submission)
            if not self._flush_is_scheduled:
                self._schedule_flush()

    def hold_for(self, submission: Submission, seconds: float) -> None:
        """The same for an answer that comes from afar: flushes pass over it for so long, which is always the same."""
        if self._keep_back(submission, AWAITED):
            self._awaited.append((self._loop.time() + seconds, submission))
            if self._awaited_timer is None:
                self._awaited_timer = self._loop.call_later(seconds, self._look_at_awaited)

    def _keep_back(self, submission: Submission, held_at: int) -> bool:
        """Make it the first of its run, which no flush takes yet; gives whether that could be done. Else: submit it."""
        entry = submission.entry
        if entry.open_head is not None or entry.is_discarded:
            self.submit(submission)
            return False
        entry.submitted_count += 1
        entry.open_head = submission
        submission.held_at = held_at
        return True

    def release(self, head: Submission) -> None:
        """Let the next flush take what is held back."""
        if head.held_at:
            head.held_at = 0
            self._open.append(head)
            if not self._flush_is_scheduled:
                self._schedule_flush()

    def submit_together(self, first: Submission, second: Submission) -> None:
        """Queue two runs' transitions that stand or fall together (a close, and the run that follows)."""
        if first.entry.is_discarded:
            self._on_discard(second.entry)
        self.submit(first)
        self.submit(second)
        heads = first.entry.open_head, second.entry.open_head
        if heads[0] is not None and heads[1] is not None:
            _join(heads[0], heads[1])

    def after_current(self, entry: RunEntry, callback: Callable[[], None]) -> None:
        """Call back once everything submitted for this run so far is settled; at once when nothing is.

        A refusal may rest on facts that are not durable yet, so it is not told before they are (law 3).
        """
        if entry.unsettled_count == 0:
            callback()
        else:
            self.hasten(entry)
            entry.after_settled.append((entry.submitted_count, callback))

    def hasten(self, entry: RunEntry) -> None:
        """Somebody waits for what this run has submitted: hold nothing back for an answer from afar."""
        head = entry.open_head
        if head is not None and head.held_at == AWAITED:
            self.release(head)

    def abandon(self, entry: RunEntry) -> None:
        """The entry is discarded: what is open of it rests on a state that is not the run's, so it must not be stored.

        It was never sent. Left there it would be stored with that state, together with what a newer entry of the same
        run submits.
        """
        head = entry.open_head
        if head is None:
            return
        unit = head.unit or [head]
        for member in unit:
            member.entry.open_head = None
            if member.held_at:
                member.held_at = 0
            else:
                self._open.remove(member)
        # After a lost guard it is decided again; a store that fails is for the caller to know.
        self._settle_unit(head, CommitStatus.VERSION_CONFLICT if self._is_guard_lost else StoreUnavailable(_ABANDONED))
        self._wake_if_idle()

    async def wait_idle(self) -> None:
        """Wait until nothing is open or in flight."""
        self._release_awaited(float("inf"))
        while self._open or self._in_flight or self._held:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._idle_waiters.append(waiter)
            await waiter

    def _schedule_flush(self) -> None:
        if not self._flush_is_scheduled and self._in_flight < BATCHES_IN_FLIGHT_MAX:
            self._flush_is_scheduled = True
            self._call_last(self._flush)

    def _flush(self) -> None:
        self._flush_is_scheduled = False
        if self._in_flight >= BATCHES_IN_FLIGHT_MAX:
            return
        if self._held:
            self._look_at_held()
        taken = self._take_open()
        if not taken:
            self._wake_if_idle()
            return
        # A unit of several runs is met once, at its first member.
        heads = [head for head in taken if head.unit is None or head.unit[0] is head]
        rows: list[tuple[RunWrite, ...]] = []
        try:
            for head in heads:
                if head.transition is None and head.more is None and head.unit is None:
                    rows.append((_express_row(head, self._version_after, self._buffer),))
                else:
                    rows.append(self._rows(head))
        except Exception as error:  # noqa: BLE001 - a value that has no stored form; those it belongs to are told
            heads, rows = self._without_unstorable(heads, rows, error)
            if not rows:
                self._schedule_flush()
                self._wake_if_idle()
                return
        self._in_flight += 1
        if self._on_batch is not None:
            self._on_batch(len(taken), sum(1 + len(head.more or ()) for head in taken))
        if self._open or self._held:
            self._schedule_flush()
        future = asyncio.ensure_future(self._store.commit_if_current(rows))
        if future.done():  # A store that was quicker than the change of thread.
            self._settle(heads, future)
        else:
            future.add_done_callback(partial(self._settle, heads))

    def _look_at_held(self) -> None:
        """Drop what has been released, and release what has been held for long, or in vain: the turns are over, and
        there is no answer. Look again after the next turns."""
        held, oldest = self._held, self._flush_number - HELD_FLUSHES_MAX
        if not getattr(self._loop, "has_turns", True):
            oldest = self._flush_number
        self._flush_number += 1
        while held and (not held[0].held_at or held[0].held_at <= oldest):
            self.release(held.popleft())
        if held:
            self._schedule_flush()

    def _look_at_awaited(self) -> None:
        """Release what has been held back for as long as it may be, and look again when the next will have been."""
        now = self._loop.time()
        self._awaited_timer = None
        self._release_awaited(now)
        if self._awaited:
            self._awaited_timer = self._loop.call_later(self._awaited[0][0] - now, self._look_at_awaited)

    def _release_awaited(self, now: float) -> None:
        awaited = self._awaited
        while awaited and (awaited[0][1].held_at != AWAITED or awaited[0][0] <= now):
            submission = awaited.popleft()[1]
            if submission.held_at == AWAITED:
                submission.note_overdue()
                self.release(submission)

    def _without_unstorable(
        self, heads: list[Submission], rows: list[tuple[RunWrite, ...]], error: Exception
    ) -> tuple[list[Submission], list[tuple[RunWrite, ...]]]:
        """The units that can be stored with their rows; the one after `rows` met `error`. The others are refused."""
        refused = [(heads[len(rows)], error)]
        sound = heads[: len(rows)]
        for head in heads[len(rows) + 1 :]:
            try:
                rows.append(self._rows(head))
                sound.append(head)
            except Exception as other:  # noqa: BLE001 - likewise
                refused.append((head, other))
        for head, reason in refused:
            self._settle_unit(head, _unstorable(reason))
        return sound, rows

    def _refuse_stray(self, submission: Submission) -> None:
        """A decision on a discarded entry rests on a state that is not the run's."""
        submission.on_settled(submission, StoreUnavailable(_ABANDONED))
        self._note_settled(submission.entry, 1)

    def _take_open(self) -> list[Submission]:
        """What is written next, in order: everything, or as many whole units as one batch takes."""
        taken = self._open
        if len(taken) <= BATCH_RUNS_MAX:
            self._open = []
        else:
            chosen: dict[int, Submission] = {}
            for head in taken:
                if len(chosen) >= BATCH_RUNS_MAX:
                    break
                for member in head.unit or (head,):
                    chosen[member.entry.run_key] = member
            self._open = [head for head in taken if head.entry.run_key not in chosen]
            taken = list(chosen.values())
        for head in taken:
            head.entry.open_head = None
        return taken

    def _rows(self, head: Submission) -> tuple[RunWrite, ...]:
        return tuple([self._row(member) for member in head.unit or (head,)])

    def _row(self, head: Submission) -> RunWrite:
        if head.transition is None and head.more is None:
            return _express_row(head, self._version_after, self._buffer)
        entry, state = head.entry, head.entry.state
        batches: list[HistoryBatch] = []
        tasks_put: tuple[TaskRow, ...] = ()
        tasks_delete: tuple[int, ...] = ()
        outbox_delete: tuple[int, ...] = ()
        outbox = None
        labels = labels_of(state)
        needs_visibility = (
            entry.persisted_version == 0
            or entry.persisted_status is not state.status
            or entry.persisted_labels != labels
        )
        dirty: set[tuple[int, int]] | None = None
        for submission in (head,) if head.more is None else (head, *head.more):
            transition = submission.transition
            events = submission.events
            if events:
                batches += _batches(state, events)
                if not needs_visibility:
                    for event in events:
                        if type(event) in SEARCHABLE_CHANGES:
                            needs_visibility = True
            if submission.tasks_put:
                tasks_put += tuple(submission.tasks_put)
            if submission.tasks_delete:
                tasks_delete += tuple(submission.tasks_delete)
            if submission.outbox_delete is not None:
                outbox_delete += (submission.outbox_delete,)
            if transition is None:
                continue
            if submission.reaches_out:
                submission.outbox_put = outbox_rows(entry, transition, self._ids)
                outbox = [*(outbox or ()), *submission.outbox_put]
            if transition.dirty_items and state.is_wide:
                dirty = transition.dirty_items if dirty is None else dirty | transition.dirty_items
        items_put, items_delete = _item_changes(entry, dirty) if state.is_wide else NO_CHANGES
        expected = entry.persisted_version
        version = entry.persisted_version = state.version = self._version_after(expected)
        entry.persisted_status = state.status
        entry.persisted_labels = labels
        return RunWrite(
            shard=entry.shard,
            run_key=entry.run_key,
            namespace=state.namespace,
            workflow_id=state.workflow_id,
            run_id=state.run_id,
            expected_version=expected,
            expected_latest_run_key=entry.expected_latest_run_key,
            version=version,
            status=state.status,
            attention_at=entry.attention_to_persist(),
            is_busy=state.is_busy,
            state=encode_state(state),
            history_length=state.next_event_id - 1,
            history_size_bytes=state.history_size_bytes,
            visibility=visibility_of(state) if needs_visibility else None,
            batches=tuple(batches),
            items_put=items_put,
            items_delete=items_delete,
            tasks_put=tasks_put,
            tasks_delete=tasks_delete,
            outbox_put=tuple(outbox) if outbox else (),
            outbox_delete=outbox_delete,
        )

    def _settle(self, heads: list[Submission], done: asyncio.Future[list[CommitStatus]]) -> None:
        self._in_flight -= 1
        if self._open or self._held:
            self._schedule_flush()
        outcomes: list[Outcome]
        error = done.exception()
        if error is None:
            outcomes = list(done.result())
        elif isinstance(error, StoreError):
            outcomes = [error] * len(heads)
        else:
            unexpected = StoreError(f"the store failed unexpectedly: {error!r}")
            unexpected.__cause__ = error
            outcomes = [unexpected] * len(heads)
        for head, outcome in zip(heads, outcomes, strict=True):
            if head.more is None and head.unit is None and outcome is CommitStatus.COMMITTED:
                head.on_settled(head, outcome)
                entry = head.entry
                entry.settled_count += 1
                if entry.after_settled or entry.state.close_event_id:
                    self._note_settled(entry, 0)
            else:
                self._settle_unit(head, outcome)
        self._wake_if_idle()

    def _settle_unit(self, head: Submission, outcome: Outcome) -> None:
        unit = head.unit or [head]
        for member in list(unit):
            if outcome is not CommitStatus.COMMITTED:
                self._is_guard_lost = isinstance(outcome, CommitStatus)
                self._on_discard(member.entry)
                self._is_guard_lost = False
            submissions = (member, *(member.more or ()))
            for submission in submissions:
                submission.on_settled(submission, outcome)
            # Each member refers to its unit, and that to it: only the cycle collector could free them.
            member.unit = member.more = None
            self._note_settled(member.entry, len(submissions))

    def _wake_if_idle(self) -> None:
        if not self._open and not self._in_flight and not self._held:
            waiters, self._idle_waiters = self._idle_waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)

    def _note_settled(self, entry: RunEntry, count: int) -> None:
        settled = entry.settled_count = entry.settled_count + count
        waiting = entry.after_settled
        while waiting and waiting[0][0] <= settled:
            waiting.pop(0)[1]()
        if entry.state.close_event_id and entry.settled_count == entry.submitted_count:
            self._on_finished(entry)


def _join(first: Submission, second: Submission) -> None:
    """Make one unit of the units of two open runs."""
    unit = first.unit = first.unit or [first]
    others = second.unit or [second]
    if others is unit:
        return
    for other in others:
        other.unit = unit
        unit.append(other)


def _batches(state: ExecutionState, events: list[Event]) -> list[HistoryBatch]:
    """The rows of one transition's events: one, but for the long history that a reset copies."""
    if len(events) <= BATCH_EVENTS_MAX:
        return [_batch(state, events)]
    starts = range(0, len(events), BATCH_EVENTS_MAX)
    return [_batch(state, events[start : start + BATCH_EVENTS_MAX]) for start in starts]


def _batch(state: ExecutionState, events: list[Event]) -> HistoryBatch:
    encoded = encode_events(events)
    state.history_size_bytes += len(encoded)
    return HistoryBatch(events[0].event_id, events[-1].event_id, encoded)


def _express_row(submission: Submission, version_after: Callable[[int], int], buffer: bytearray) -> RunWrite:
    """The row of an express transition standing alone: `CommitPipeline._row` without what such a one never has."""
    entry, events = submission.entry, submission.events
    state = entry.state
    _encode_into(events, buffer)
    encoded = bytes(buffer)
    size = state.history_size_bytes = state.history_size_bytes + len(encoded)
    expected = entry.persisted_version
    version = entry.persisted_version = state.version = version_after(expected)
    status = state.status
    visibility = None
    if entry.persisted_status is not status:
        entry.persisted_status = status
        visibility = visibility_of(state)
    due_at = submission.due_at
    attention_at = entry.persisted_attention_at
    if due_at is None:
        entry.next_at = entry.persisted_attention_at = attention_at = None
    elif submission.is_parked or attention_at is None or due_at < attention_at:
        # Else what is stored is no later than any deadline of the run (see `attention_to_persist`).
        attention_at = entry.attention_to_persist()
    last_event_id = state.next_event_id - 1
    _encode_into(state, buffer)
    return RunWrite(
        entry.shard,
        entry.run_key,
        state.namespace,
        state.workflow_id,
        state.run_id,
        expected,
        version,
        status,
        attention_at,
        state.is_busy if submission.is_parked else True,
        bytes(buffer),
        last_event_id,
        size,
        entry.expected_latest_run_key,
        visibility,
        (HistoryBatch(events[0].event_id, last_event_id, encoded),),
    )


def _unstorable(error: Exception) -> StoreUnstorable:
    told = StoreUnstorable(
        f"a change of the run holds a value that cannot be stored ({type(error).__name__}: {error}), so nothing of it "
        "was done. Expected: text that is valid UTF-8, and in every option a value of the type it is declared with"
    )
    told.__cause__ = error
    return told


def _item_changes(
    entry: RunEntry, dirty: set[tuple[int, int]] | None
) -> tuple[tuple[PendingItem, ...], tuple[tuple[int, int], ...]]:
    """Rows of their own for the pending items of a wide run: all of them once, then only what changed."""
    state = entry.state
    if not entry.items_are_rows:
        entry.items_are_rows = True
        dirty = set(item_keys(state))
    if not dirty:
        return (), ()
    put: list[PendingItem] = []
    delete: list[tuple[int, int]] = []
    for kind, item_id in dirty:
        data = encode_item(state, kind, item_id)
        if data is None:
            delete.append((kind, item_id))
        else:
            put.append(PendingItem(kind=kind, item_id=item_id, data=data))
    return tuple(put), tuple(delete)
