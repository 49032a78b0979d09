"""The runs that this node has in memory.

Owns: `RunEntry` (a run's state with what the node keeps beside it) and the cache of them.
Never: decides, commits or offers.

How it works: there is at most one entry for a run; it is found by run key, or by the workflow id while the run is open.
An entry is ahead of the store by what is in the pipeline; when a commit fails it is discarded and the next caller loads
the run again. Entries that nobody needs are dropped, those of parked runs when one of their deadlines is looked at and
all kinds when there are many, so a parked run, or one whose task waits in a queue, costs no memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Generator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from clew.core.codec import decode_state
from clew.core.state import ExecutionState
from clew.engine.summary import Label, labels_of
from clew.model.events import (
    ActivityTaskCanceled,
    ActivityTaskCompleted,
    ActivityTaskFailed,
    ActivityTaskScheduled,
    ActivityTaskTimedOut,
    BaseEvent,
    ChildWorkflowExecutionStarted,
    Event,
    ExternalWorkflowExecutionCancelRequested,
    ExternalWorkflowExecutionSignaled,
    RequestCancelExternalWorkflowExecutionFailed,
    RequestCancelExternalWorkflowExecutionInitiated,
    SignalExternalWorkflowExecutionFailed,
    SignalExternalWorkflowExecutionInitiated,
    StartChildWorkflowExecutionFailed,
    StartChildWorkflowExecutionInitiated,
    WorkflowExecutionStarted,
    decode_event_batches,
)
from clew.model.policies import WorkflowExecutionStatus
from clew.ports.store import HistoryBatch, RunRow, Store, StoreCorrupt
from clew.service.requests import QueryResult, QueryTask

if TYPE_CHECKING:
    from clew.engine.early_causes import EarlyCause
    from clew.engine.pipeline import Submission
    from clew.service.reply import Reply

ENTRIES_MAX: Final = 500
"""Entries from which on those that nobody needs are looked for. One takes 5 KB; reading it again takes 0.2 ms."""

DROP_EVERY: Final = 200
"""Entries that come in beyond the limit before idle ones are looked for: a look at each time would cost more than all
the rest of a start."""

FEW_ACTIVITIES: Final = 16
"""A run with more pending activities is kept while any of them may be out: it takes long to read."""

logger = logging.getLogger("clew.engine")

TAIL_EVENTS_MAX: Final = 2_000
"""Recent events kept beside a run to build its next workflow task without reading the store."""


class BufferedQuery:
    """A question that waits for the run's next workflow task.

    Attributes:
        follows: Whether any run of the workflow id may answer, not only the one that was the latest when it was asked.
    """

    __slots__ = ("follows", "future", "task")

    def __init__(self, task: QueryTask, future: asyncio.Future[QueryResult], *, follows: bool) -> None:
        self.task = task
        self.future = future
        self.follows = follows


class RunEntry:
    """One run in memory.

    Attributes:
        state: The state after everything submitted so far.
        tail: The latest events, dense up to the newest; `tail_from` is the id of the first of them.
        scheduled: Events of pending activities that this node has seen, which hold their inputs.
        initiated: Events that ask something of another execution and are not answered yet, as far as this node has
            seen them.
    """

    __slots__ = (
        "after_settled",
        "armed_at",
        "durable_last_event_id",
        "early",
        "expected_latest_run_key",
        "initiated",
        "is_discarded",
        "items_are_rows",
        "next_at",
        "open_head",
        "persisted_attention_at",
        "persisted_labels",
        "persisted_status",
        "persisted_version",
        "plain_at",
        "queries",
        "queries_on_task",
        "run_key",
        "scheduled",
        "settled_count",
        "shard",
        "started_event",
        "state",
        "submitted_count",
        "successor",
        "tail",
        "tail_from",
        "update_waiters",
    )

    def __init__(self, state: ExecutionState, shard: int, run_key: int) -> None:
        self.state = state
        self.shard = shard
        self.run_key = run_key
        self.tail: list[Event] = []
        self.tail_from = 1
        self.scheduled: dict[int, ActivityTaskScheduled] = {}
        self.initiated: dict[int, Event] = {}
        self.started_event: WorkflowExecutionStarted | None = None
        self.expected_latest_run_key = 0
        self.persisted_version = 0
        self.persisted_status: WorkflowExecutionStatus | None = None
        self.persisted_attention_at: datetime | None = None
        self.persisted_labels: tuple[Label, ...] = ()
        self.items_are_rows = False
        self.is_discarded = False
        self.armed_at: datetime | None = None
        self.next_at: datetime | None = None
        self.open_head: Submission | None = None
        """The first of what was submitted since the last flush."""
        self.early: EarlyCause | None = None
        """What is not durable yet, and has given its workflow task to a worker all the same (``engine.early``)."""
        self.plain_at = -1
        """The count of submissions at which the run was seen to be plain (see ``engine.express``)."""
        self.submitted_count = 0
        self.settled_count = 0
        self.durable_last_event_id = 0
        self.after_settled: list[tuple[int, Callable[[], None]]] = []
        self.queries: list[BufferedQuery] = []
        self.queries_on_task: list[BufferedQuery] = []
        self.update_waiters: dict[str, list[asyncio.Future[Any] | Reply[Any]]] = {}
        self.successor: RunEntry | None = None
        """The run that followed; those who waited here for an update that moved wait there."""

    @property
    def unsettled_count(self) -> int:
        """Submissions on their way to the store."""
        return self.submitted_count - self.settled_count

    def remember(self, events: list[Event]) -> None:
        """Keep new events at hand."""
        self.tail += events
        for event in events:
            keep = _KEEP.get(type(event))
            if keep is not None:
                keep(self, event)

    def forget_until(self, event_id: int) -> None:
        """Drop kept events up to and including `event_id`: the worker has them cached."""
        drop = event_id - self.tail_from + 1
        if drop > 0:
            del self.tail[:drop]
            self.tail_from = event_id + 1

    def trim_tail(self) -> None:
        """Bound the memory of a run whose worker does not keep up."""
        extra = len(self.tail) - TAIL_EVENTS_MAX
        if extra > 0:
            del self.tail[:extra]
            self.tail_from += extra

    def events_from(self, event_id: int) -> list[Event] | None:
        """Kept events from `event_id` on; None when they are not all at hand."""
        if event_id < self.tail_from:
            return None
        return self.tail[event_id - self.tail_from :]

    @property
    def is_needed(self) -> bool:
        """Whether memory holds what the store does not: the run is changing, or being asked, or out at workers.

        A task that waits in a queued row is not out: whoever claims the row loads the run.
        """
        if self.unsettled_count or self.after_settled or self.queries or self.queries_on_task or self.update_waiters:
            return True
        state = self.state
        if state.close_event_id:
            return False
        task = state.workflow_task
        if task is not None and (task.started_event_id or task.sticky_session):
            return True
        activities = state.activities
        if len(activities) > FEW_ACTIVITIES:
            return state.is_busy
        return any(activity.started_time is not None and activity.session for activity in activities.values())

    def event_at(self, event_id: int) -> Event | None:
        """One event, if it is at hand."""
        event = self.initiated.get(event_id)
        if event is None and event_id >= self.tail_from:
            index = event_id - self.tail_from
            return self.tail[index] if index < len(self.tail) else None
        return event

    def keep_initiated(self, events: list[Event]) -> None:
        """Keep those of the stored events that ask for a child which is not known to have started."""
        children = self.state.children
        for event in events:
            child = children.get(event.event_id)
            if child is not None and not child.started_event_id:
                self.initiated[event.event_id] = event

    def attention_to_persist(self) -> datetime | None:
        """The instant to store for this run.

        While the run is busy an earlier stored instant may stand (it costs a spurious look, and saves an index change
        on every step); a parked run stores the exact one.
        """
        wanted = self.next_at = self.state.next_attention()
        stored = self.persisted_attention_at
        if wanted is not None and stored is not None and stored <= wanted and self.state.is_busy:
            return stored
        self.persisted_attention_at = wanted
        return wanted


class RunCache:
    """See the module docstring. All methods belong to the engine's loop."""

    def __init__(
        self,
        store: Store,
        *,
        on_stale: Callable[[RunEntry], None] | None = None,
        on_unneeded: Callable[[RunEntry], None] | None = None,
    ) -> None:
        self._store = store
        self._on_stale = on_stale
        self._on_unneeded = on_unneeded
        self._entries: OrderedDict[int, RunEntry] = OrderedDict()
        self._open_by_id: dict[tuple[str, str], int] = {}
        self._added_count = 0
        """Entries added beyond the limit since it was last looked for idle ones."""
        self._loading: dict[int, asyncio.Future[RunEntry | None]] = {}
        self._readers: list[set[int]] = []
        """For each read of the store that is under way, the runs that left memory since it began."""

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, run_key: int) -> RunEntry | None:
        """The entry, when the run is in memory."""
        return self._entries.get(run_key)

    def get_open(self, namespace: str, workflow_id: str) -> RunEntry | None:
        """The entry of the open run of this workflow id, when it is in memory."""
        run_key = self._open_by_id.get((namespace, workflow_id))
        return None if run_key is None else self._entries.get(run_key)

    def add(self, entry: RunEntry) -> None:
        """Take in a new run."""
        state = entry.state
        self._entries[entry.run_key] = entry
        if state.is_open:
            self._open_by_id[(state.namespace, state.workflow_id)] = entry.run_key
        if len(self._entries) > ENTRIES_MAX:
            self._added_count += 1
            if self._added_count >= DROP_EVERY:
                self._added_count = 0
                self._drop_idle()

    def discard(self, entry: RunEntry) -> None:
        """Forget an entry whose state cannot be trusted, or is not needed."""
        entry.is_discarded = True
        self._note_left(entry)
        if self._entries.get(entry.run_key) is entry:
            del self._entries[entry.run_key]
        key = (entry.state.namespace, entry.state.workflow_id)
        if self._open_by_id.get(key) == entry.run_key:
            del self._open_by_id[key]

    def drop_closed(self, entry: RunEntry) -> None:
        """Forget a run that is closed and durable, unless somebody still asks it something."""
        if not (entry.queries or entry.queries_on_task or entry.update_waiters):
            self._note_left(entry)
            self._entries.pop(entry.run_key, None)

    def drop_unneeded(self, entry: RunEntry) -> None:
        """Forget a run of which memory holds no more than the store."""
        assert not entry.is_needed, "somebody counts on this entry"
        self.discard(entry)
        if self._on_unneeded is not None:
            self._on_unneeded(entry)

    def mark_closed(self, entry: RunEntry) -> None:
        """The run is closed: its workflow id no longer leads here."""
        key = (entry.state.namespace, entry.state.workflow_id)
        if self._open_by_id.get(key) == entry.run_key:
            del self._open_by_id[key]

    async def load(self, shard: int, run_key: int) -> RunEntry | None:
        """The entry, read from the store when it is not in memory; None when there is no such run."""
        entry = self._entries.get(run_key)
        if entry is not None:
            return entry
        loading = self._loading.get(run_key)
        if loading is None:
            loading = asyncio.ensure_future(self._read(shard, run_key))
            self._loading[run_key] = loading
            loading.add_done_callback(lambda _: self._loading.pop(run_key, None))
        return await asyncio.shield(loading)

    async def _read(self, shard: int, run_key: int) -> RunEntry | None:
        return await self.fetch(lambda: self._store.load_run(shard, run_key))

    async def fetch(self, read: Callable[[], Awaitable[RunRow | None]]) -> RunEntry | None:
        """The entry of the run that `read` finds in the store; None when it finds none.

        Reads again when the run left memory while it was being read.
        """
        while True:
            with self.reading() as left:
                row = await read()
                if row is None:
                    return None
                entry = self.adopt(row, left)
                if entry is not None:
                    return entry

    @contextlib.contextmanager
    def reading(self) -> Generator[set[int]]:
        """Hold this from before a read of the store until its rows are adopted; gives what `adopt` needs to know."""
        left: set[int] = set()
        self._readers.append(left)
        try:
            yield left
        finally:
            self._readers = [reader for reader in self._readers if reader is not left]

    def adopt(self, row: RunRow, left: set[int], history: Sequence[HistoryBatch] = ()) -> RunEntry | None:
        """The entry of a run just read (see `reading`); the one in memory wins, unless another node changed it since.

        Its whole history, if that was read with it, is kept at hand.

        None when the run was in memory and left it while it was being read: the row may be from before its last change,
        and nobody would ever bring such an entry up to date.
        """
        entry = self._entries.get(row.run_key)
        has_left = row.run_key in left
        if entry is not None and self._on_stale is not None and is_behind(entry, row.version):
            self._on_stale(entry)
            entry = self._entries.get(row.run_key)
        if entry is None:
            if has_left:
                return None
            entry = entry_of(row, history)
            # A closed run changes no more: whoever reads it needs no shared entry, and memory need not keep one.
            if row.status.is_open:
                self.add(entry)
        return entry

    def _note_left(self, entry: RunEntry) -> None:
        for left in self._readers:
            left.add(entry.run_key)

    def holders(self, session_id: str) -> list[RunEntry]:
        """Runs in memory that name this session: by a lease, a sticky task, or an attempt of an activity."""
        return [entry for entry in self._entries.values() if _names_session(entry.state, session_id)]

    def _drop_idle(self) -> None:
        # Twice as many as come in between, so that a crowd that has become idle shrinks.
        for entry in list(itertools.islice(self._entries.values(), 2 * DROP_EVERY)):
            if entry.is_needed:
                self._entries.move_to_end(entry.run_key)
            else:
                self.drop_unneeded(entry)


def _keep_scheduled(entry: RunEntry, event: ActivityTaskScheduled) -> None:
    entry.scheduled[event.event_id] = event


def _drop_scheduled(entry: RunEntry, event: ActivityTaskCompleted) -> None:
    entry.scheduled.pop(event.scheduled_event_id, None)


def _keep_initiated(entry: RunEntry, event: Event) -> None:
    entry.initiated[event.event_id] = event


def _drop_initiated(entry: RunEntry, event: ChildWorkflowExecutionStarted) -> None:
    entry.initiated.pop(event.initiated_event_id, None)


def _keep_started(entry: RunEntry, event: WorkflowExecutionStarted) -> None:
    if entry.state.needs_started_event:
        entry.started_event = event


_KEEP: Final[dict[type[BaseEvent], Callable[[RunEntry, Any], None]]] = {
    WorkflowExecutionStarted: _keep_started,
    ActivityTaskScheduled: _keep_scheduled,
    ActivityTaskCompleted: _drop_scheduled,
    ActivityTaskFailed: _drop_scheduled,
    ActivityTaskTimedOut: _drop_scheduled,
    ActivityTaskCanceled: _drop_scheduled,
    StartChildWorkflowExecutionInitiated: _keep_initiated,
    ChildWorkflowExecutionStarted: _drop_initiated,
    StartChildWorkflowExecutionFailed: _drop_initiated,
    SignalExternalWorkflowExecutionInitiated: _keep_initiated,
    ExternalWorkflowExecutionSignaled: _drop_initiated,
    SignalExternalWorkflowExecutionFailed: _drop_initiated,
    RequestCancelExternalWorkflowExecutionInitiated: _keep_initiated,
    ExternalWorkflowExecutionCancelRequested: _drop_initiated,
    RequestCancelExternalWorkflowExecutionFailed: _drop_initiated,
}
"""The events that are kept at hand, and those that end the need for one."""


def entry_of(row: RunRow, history: Sequence[HistoryBatch] = ()) -> RunEntry:
    """A fresh entry from a stored row, with its whole history at hand if that is given.

    Raises:
        StoreCorrupt: The row cannot be read; no other run is concerned.
    """
    try:
        state = decode_state(row.state, [(item.kind, item.item_id, item.data) for item in row.items])
    except Exception as error:
        raise StoreCorrupt(
            f"run {row.run_id} of workflow {row.workflow_id!r} cannot be read ({type(error).__name__}: {error}). It "
            "stands still; other runs are not concerned. Please report this, with the run's row of `executions`"
        ) from error
    state.version = row.version
    state.history_size_bytes = row.history_size_bytes
    entry = RunEntry(state, row.shard, row.run_key)
    entry.persisted_version = row.version
    entry.persisted_status = row.status
    entry.persisted_attention_at = row.attention_at
    entry.persisted_labels = labels_of(state)
    entry.items_are_rows = state.is_wide
    entry.tail_from = state.next_event_id
    entry.durable_last_event_id = state.next_event_id - 1
    if history:
        _keep_at_hand(entry, history)
    return entry


def _keep_at_hand(entry: RunEntry, history: Sequence[HistoryBatch]) -> None:
    """Keep the whole history of a run just read; if it cannot be read, whoever needs it is told when asking."""
    try:
        events = decode_event_batches([batch.events for batch in history])
    except Exception as error:  # noqa: BLE001 (whatever it is, the run itself is sound: its deadlines hold)
        logger.error("runs.history_unreadable run_id=%s error=%s: %s", entry.state.run_id, type(error).__name__, error)
        return
    if events and events[0].event_id == 1 and events[-1].event_id == entry.durable_last_event_id:
        entry.tail_from = 1
        entry.remember(events)
        entry.trim_tail()


def is_behind(entry: RunEntry, stored_version: int | None) -> bool:
    """Whether another node has changed the run since, or deleted it (then the store has no version of it); unknown, so
    no, while a change of this node is on its way."""
    return not entry.unsettled_count and (stored_version is None or entry.persisted_version < stored_version)


def sessions_named(state: ExecutionState) -> set[str]:
    """The worker sessions that an open run counts on."""
    if not state.is_open:
        return set()
    named = {activity.session for activity in state.activities.values() if activity.started_time is not None}
    task = state.workflow_task
    if task is not None:
        named |= {task.session if task.started_event_id else "", task.sticky_session}
    named.add(state.sticky_session)
    named.discard("")
    return named


def _names_session(state: ExecutionState, session_id: str) -> bool:
    if not state.is_open:
        return False
    task = state.workflow_task
    if state.sticky_session == session_id or (task is not None and session_id in (task.session, task.sticky_session)):
        return True
    return any(activity.session == session_id for activity in state.activities.values())
