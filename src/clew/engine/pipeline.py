"""The commit pipeline: the one place where transitions become durable.

Owns: the gathering of ready transitions into batches, the snapshot and history encoding, versions, and the order in
which a run's submissions are answered.
Never: decides anything, or performs an effect (it calls back).

How it works: `submit` appends a transition to the open write of its run. A flush takes every open write at once and
hands them to the store as one batch; while that is being made durable, the next batch fills. There is no fixed delay:
a lone transition is flushed in the same turn of the loop. Transitions of one run that meet in a batch share one
snapshot and one compare-and-swap, but keep a history row each. When a unit loses its guard, or the store fails, the
run's entry is discarded (its state is ahead of the truth) and every submission on it is told, also those still open.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from clew.core.codec import encode_item, encode_state, item_keys
from clew.core.transition import Transition
from clew.engine.outbox_rows import outbox_rows
from clew.engine.runs import RunEntry
from clew.engine.summary import labels_of, visibility_of
from clew.model.events import BaseEvent, UpsertWorkflowSearchAttributes, WorkflowPropertiesModified, encode_events
from clew.ports.store import (
    CommitStatus,
    HistoryBatch,
    PendingItem,
    RunWrite,
    Store,
    StoreError,
    StoreUnavailable,
    StoreUnstorable,
    TaskRow,
)

if TYPE_CHECKING:
    from clew.engine.ids import IdBlocks

BATCHES_IN_FLIGHT_MAX: Final = 2
"""One being made durable, one queued behind it, so that the writer never waits for the loop."""

BATCH_RUNS_MAX: Final = 1_000
"""Runs in one batch; bounds the time a batch takes and the memory it holds."""

SEARCHABLE_CHANGES: Final[tuple[type[BaseEvent], ...]] = (UpsertWorkflowSearchAttributes, WorkflowPropertiesModified)

NO_CHANGES: Final = ((), ())

_ABANDONED: Final = "an earlier change of this run could not be made durable; nothing of this one was done; try again"

Outcome = CommitStatus | StoreError


class Submission:
    """One transition on its way to the store, and who waits for it."""

    __slots__ = ("entry", "on_settled", "reaches_out", "tasks_delete", "tasks_put", "transition")

    def __init__(
        self,
        entry: RunEntry,
        transition: Transition,
        on_settled: Callable[[Submission, Outcome], None],
        tasks_put: list[TaskRow] | None = None,
        tasks_delete: list[int] | None = None,
    ) -> None:
        self.entry = entry
        self.transition = transition
        self.on_settled = on_settled
        self.tasks_put = tasks_put
        self.tasks_delete = tasks_delete
        self.reaches_out = False
        """Whether an effect on another execution is among the transition's."""


class _OpenWrite:
    """What has been submitted for one run since its last flush."""

    __slots__ = ("entry", "outbox_delete", "submissions", "unit")

    def __init__(self, entry: RunEntry, unit: list[_OpenWrite]) -> None:
        self.entry = entry
        self.unit = unit
        self.submissions: list[Submission] = []
        self.outbox_delete: list[int] = []
        unit.append(self)


class CommitPipeline:
    """See the module docstring. All methods belong to the engine's loop."""

    def __init__(
        self,
        store: Store,
        ids: IdBlocks,
        *,
        on_discard: Callable[[RunEntry], None],
        on_finished: Callable[[RunEntry], None],
        on_batch: Callable[[int, int], None] | None = None,
    ) -> None:
        self._store = store
        self._ids = ids
        self._on_discard = on_discard
        self._on_finished = on_finished
        self._on_batch = on_batch
        self._loop = asyncio.get_running_loop()
        self._open: dict[int, _OpenWrite] = {}
        self._in_flight = 0
        self._flush_is_scheduled = False
        self._idle_waiters: list[asyncio.Future[None]] = []

    def submit(self, submission: Submission, *, outbox_delete: int | None = None) -> None:
        """Queue a transition; its `on_settled` is called once, after the commit or its failure."""
        entry = submission.entry
        if entry.is_discarded:
            entry.submitted_count += 1
            self._loop.call_soon(self._refuse_stray, submission)
            return
        write = self._write_of(entry)
        write.submissions.append(submission)
        entry.submitted_count += 1
        if outbox_delete is not None:
            write.outbox_delete.append(outbox_delete)
        self._schedule_flush()

    def submit_together(self, first: Submission, second: Submission) -> None:
        """Queue two runs' transitions that stand or fall together (a close, and the run that follows)."""
        if first.entry.is_discarded:
            self._on_discard(second.entry)
        else:
            self._join(self._write_of(first.entry), self._write_of(second.entry))
        self.submit(first)
        self.submit(second)

    def after_current(self, entry: RunEntry, callback: Callable[[], None]) -> None:
        """Call back once everything submitted for this run so far is settled; at once when nothing is.

        A refusal may rest on facts that are not durable yet, so it is not told before they are (law 3).
        """
        if entry.unsettled_count == 0:
            callback()
        else:
            entry.after_settled.append((entry.submitted_count, callback))

    def abandon(self, entry: RunEntry) -> None:
        """The entry is discarded: what is open of it rests on a state that is not the run's, so it must not be stored.

        It was never sent. Left there it would be stored with that state, together with what a newer entry of the same
        run submits.
        """
        write = self._open.get(entry.run_key)
        if write is None or write.entry is not entry:
            return
        for member in write.unit:
            del self._open[member.entry.run_key]
        self._settle_unit(write.unit, StoreUnavailable(_ABANDONED))
        self._wake_if_idle()

    async def wait_idle(self) -> None:
        """Wait until nothing is open or in flight."""
        while self._open or self._in_flight:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._idle_waiters.append(waiter)
            await waiter

    def _write_of(self, entry: RunEntry) -> _OpenWrite:
        write = self._open.get(entry.run_key)
        if write is None:
            write = self._open[entry.run_key] = _OpenWrite(entry, [])
        assert write.entry is entry, f"two entries of run {entry.state.run_id} submit at once"
        return write

    def _join(self, first: _OpenWrite, second: _OpenWrite) -> None:
        if first.unit is second.unit:
            return
        for write in second.unit:
            write.unit = first.unit
            first.unit.append(write)

    def _schedule_flush(self) -> None:
        if not self._flush_is_scheduled and self._in_flight < BATCHES_IN_FLIGHT_MAX:
            self._flush_is_scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_is_scheduled = False
        if not self._open or self._in_flight >= BATCHES_IN_FLIGHT_MAX:
            return
        writes = self._take_open()
        # A unit of several runs is met once, at its first member.
        units = [write.unit for write in writes if write.unit[0] is write]
        rows: list[tuple[RunWrite, ...]] = []
        try:
            for unit in units:
                rows.append((self._row(unit[0]),) if len(unit) == 1 else tuple([self._row(write) for write in unit]))
        except Exception as error:  # noqa: BLE001 - a value that has no stored form; those it belongs to are told
            units, rows = self._without_unstorable(units, rows, error)
            if not rows:
                self._wake_if_idle()
                return
        self._in_flight += 1
        if self._on_batch is not None:
            self._on_batch(len(writes), sum(len(w.submissions) for w in writes))
        future = asyncio.ensure_future(self._store.commit_if_current(rows))
        future.add_done_callback(partial(self._settle, units))

    def _without_unstorable(
        self, units: list[list[_OpenWrite]], rows: list[tuple[RunWrite, ...]], error: Exception
    ) -> tuple[list[list[_OpenWrite]], list[tuple[RunWrite, ...]]]:
        """The units that can be stored with their rows; the one after `rows` met `error`. The others are refused."""
        refused = [(units[len(rows)], error)]
        sound = units[: len(rows)]
        for unit in units[len(rows) + 1 :]:
            try:
                rows.append(tuple([self._row(write) for write in unit]))
                sound.append(unit)
            except Exception as other:  # noqa: BLE001 - likewise
                refused.append((unit, other))
        for unit, reason in refused:
            self._settle_unit(unit, _unstorable(reason))
        return sound, rows

    def _refuse_stray(self, submission: Submission) -> None:
        """A decision on a discarded entry rests on a state that is not the run's."""
        submission.on_settled(submission, StoreUnavailable(_ABANDONED))
        self._answer_waiting(submission.entry, 1)

    def _take_open(self) -> list[_OpenWrite]:
        if len(self._open) <= BATCH_RUNS_MAX:
            writes = list(self._open.values())
            self._open = {}
            return writes
        taken: dict[int, _OpenWrite] = {}
        for write in list(self._open.values()):
            if len(taken) >= BATCH_RUNS_MAX:
                break
            for member in write.unit:
                taken[member.entry.run_key] = member
        for run_key in taken:
            del self._open[run_key]
        return list(taken.values())

    def _row(self, write: _OpenWrite) -> RunWrite:
        entry, state = write.entry, write.entry.state
        batches: list[HistoryBatch] = []
        tasks_put: tuple[TaskRow, ...] = ()
        tasks_delete: tuple[int, ...] = ()
        outbox = None
        labels = labels_of(state)
        needs_visibility = (
            entry.persisted_version == 0
            or entry.persisted_status is not state.status
            or entry.persisted_labels != labels
        )
        dirty: set[tuple[int, int]] | None = None
        for submission in write.submissions:
            transition = submission.transition
            events = transition.events
            if events:
                encoded = encode_events(events)
                state.history_size_bytes += len(encoded)
                batches.append(
                    HistoryBatch(first_event_id=events[0].event_id, last_event_id=events[-1].event_id, events=encoded)
                )
                if not needs_visibility:
                    for event in events:
                        if type(event) in SEARCHABLE_CHANGES:
                            needs_visibility = True
            if submission.reaches_out:
                outbox = [*(outbox or ()), *outbox_rows(entry, transition, self._ids)]
            if submission.tasks_put:
                tasks_put += tuple(submission.tasks_put)
            if submission.tasks_delete:
                tasks_delete += tuple(submission.tasks_delete)
            if transition.dirty_items and state.is_wide:
                dirty = transition.dirty_items if dirty is None else dirty | transition.dirty_items
        items_put, items_delete = _item_changes(entry, dirty) if state.is_wide else NO_CHANGES
        expected = entry.persisted_version
        entry.persisted_version = state.version = expected + 1
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
            version=expected + 1,
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
            outbox_delete=tuple(write.outbox_delete) if write.outbox_delete else (),
        )

    def _settle(self, units: list[list[_OpenWrite]], done: asyncio.Future[list[CommitStatus]]) -> None:
        self._in_flight -= 1
        if self._open:
            self._schedule_flush()
        outcomes: list[Outcome]
        error = done.exception()
        if error is None:
            outcomes = list(done.result())
        elif isinstance(error, StoreError):
            outcomes = [error] * len(units)
        else:
            unexpected = StoreError(f"the store failed unexpectedly: {error!r}")
            unexpected.__cause__ = error
            outcomes = [unexpected] * len(units)
        for unit, outcome in zip(units, outcomes, strict=True):
            self._settle_unit(unit, outcome)
        self._wake_if_idle()

    def _settle_unit(self, unit: list[_OpenWrite], outcome: Outcome) -> None:
        for write in unit:
            if outcome is not CommitStatus.COMMITTED:
                self._on_discard(write.entry)
            for submission in write.submissions:
                submission.on_settled(submission, outcome)
            self._answer_waiting(write.entry, len(write.submissions))
        unit.clear()  # Each write refers to its unit: without this only the cycle collector could free them.

    def _wake_if_idle(self) -> None:
        if not self._open and not self._in_flight:
            waiters, self._idle_waiters = self._idle_waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)

    def _answer_waiting(self, entry: RunEntry, count: int) -> None:
        entry.settled_count += count
        waiting = entry.after_settled
        while waiting and waiting[0][0] <= entry.settled_count:
            waiting.popleft()[1]()
        if entry.settled_count == entry.submitted_count and entry.state.close_event_id:
            self._on_finished(entry)


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
