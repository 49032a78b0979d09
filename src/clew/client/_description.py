"""What a client can read about runs: rows of a list, a description, counts, and pages of them.

Owns: the read-only views and iterators. Never: how they are computed (the engine does).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Generic, TypeVar, final

from clew import converter
from clew.client._values import Values
from clew.common import TypedSearchAttributes, WorkflowExecutionStatus
from clew.model.events import Event, WorkflowExecutionStarted
from clew.model.failure import Failure
from clew.model.history import WorkflowHistory
from clew.service import requests as r

_T = TypeVar("_T")
_UNSET: Final = object()


class WorkflowExecution:
    """One run, as a list shows it."""

    def __init__(self, info: r.WorkflowExecutionInfo, values: Values) -> None:
        self.raw_info = info
        self._values = values

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id!r} run {self.run_id} {self.status.value}>"

    @property
    def namespace(self) -> str:
        """Where it belongs."""
        return self.raw_info.namespace

    @property
    def id(self) -> str:
        """Workflow id."""
        return self.raw_info.workflow_id

    @property
    def run_id(self) -> str:
        """Run id."""
        return self.raw_info.run_id

    @property
    def workflow_type(self) -> str:
        """Type of the workflow."""
        return self.raw_info.workflow_type

    @property
    def task_queue(self) -> str:
        """Where its workers listen."""
        return self.raw_info.task_queue

    @property
    def status(self) -> WorkflowExecutionStatus:
        """State of the run."""
        return self.raw_info.status

    @property
    def start_time(self) -> datetime:
        """When the run was created."""
        return self.raw_info.start_time

    @property
    def execution_time(self) -> datetime | None:
        """When its code was first due to run, which a start delay or cron puts after the start."""
        return self.raw_info.execution_time

    @property
    def close_time(self) -> datetime | None:
        """When it closed; None while open."""
        return self.raw_info.close_time

    @property
    def history_length(self) -> int:
        """Count of its events."""
        return self.raw_info.history_length

    @property
    def parent_id(self) -> str | None:
        """Workflow id of its parent, if it is a child."""
        return self.raw_info.parent.workflow_id if self.raw_info.parent else None

    @property
    def parent_run_id(self) -> str | None:
        """Run id of its parent, if it is a child."""
        return self.raw_info.parent.run_id if self.raw_info.parent else None

    @property
    def root_id(self) -> str | None:
        """Workflow id of the topmost ancestor."""
        return self.raw_info.root.workflow_id if self.raw_info.root else None

    @property
    def root_run_id(self) -> str | None:
        """Run id of the topmost ancestor."""
        return self.raw_info.root.run_id if self.raw_info.root else None

    @property
    def typed_search_attributes(self) -> TypedSearchAttributes:
        """Its search attributes."""
        return converter.decode_typed_search_attributes(self.raw_info.search_attributes or {})

    async def memo(self) -> Mapping[str, Any]:
        """Give the memo, as plain JSON values."""
        return {key: (await self._values.decode((stored,)))[0] for key, stored in (self.raw_info.memo or {}).items()}

    async def memo_value(self, key: str, default: Any = _UNSET, *, type_hint: type | None = None) -> Any:
        """Give one value of the memo.

        Args:
            key: Its name.
            default: What to give when there is none.
            type_hint: The type to convert it to.

        Raises:
            KeyError: There is none, and no default.
        """
        stored = (self.raw_info.memo or {}).get(key)
        if stored is None:
            if default is _UNSET:
                raise KeyError(f"Run {self.run_id} has no memo {key!r}; it has {sorted(self.raw_info.memo or {})}.")
            return default
        return await self._values.decode_result((stored,), type_hint)


@final
class WorkflowExecutionDescription(WorkflowExecution):
    """One run in full, with what it waits for."""

    def __init__(
        self,
        description: r.WorkflowDescription,
        values: Values,
        fetch_start: Callable[[], Awaitable[WorkflowExecutionStarted]],
    ) -> None:
        super().__init__(description.info, values)
        self.raw_description = description
        self._fetch_start = fetch_start

    @property
    def pending_activities(self) -> Sequence[r.PendingActivityInfo]:
        """Activities that are not closed, with their attempts."""
        return self.raw_description.pending_activities

    @property
    def pending_timers(self) -> Sequence[r.PendingTimerInfo]:
        """Timers that have not fired."""
        return self.raw_description.pending_timers

    @property
    def pending_children(self) -> Sequence[r.PendingChildInfo]:
        """Children that are not closed."""
        return self.raw_description.pending_children

    @property
    def pending_workflow_task(self) -> r.PendingWorkflowTaskInfo | None:
        """The workflow task that is under way, with its last failure if it keeps failing."""
        return self.raw_description.pending_workflow_task

    @property
    def waiting_for(self) -> Sequence[str]:
        """In words, one line a thing: what the run waits for, and since when. Empty when closed."""
        return self.raw_description.waiting_for

    @property
    def versioning(self) -> r.VersioningInfo | None:
        """Behaviour, worker version and override of a run that goes by worker versions; None for any other."""
        return self.raw_description.versioning

    async def static_summary(self) -> str | None:
        """Give the summary that the starter wrote for people."""
        return await self._metadata_text("summary")

    async def static_details(self) -> str | None:
        """Give the details that the starter wrote for people."""
        return await self._metadata_text("details")

    async def failure_error(self, failure: Failure) -> BaseException:
        """Give the exception that a failure in this description stands for."""
        return await self._values.decode_failure(failure)

    async def _metadata_text(self, name: str) -> str | None:
        # The engine keeps only what it needs at hand; the texts stand in the first event.
        metadata = self.raw_description.user_metadata or (await self._fetch_start()).user_metadata
        stored = getattr(metadata, name) if metadata else None
        text: str | None = await self._values.decode_result((stored,), str) if stored is not None else None
        return text


@dataclass(frozen=True)
class WorkflowExecutionCountAggregationGroup:
    """One group of a count."""

    count: int
    group_values: Sequence[str]


@dataclass(frozen=True)
class WorkflowExecutionCount:
    """How many runs fit a query; with groups when the query asks for them."""

    count: int
    groups: Sequence[WorkflowExecutionCountAggregationGroup] = ()


class _Pages(Generic[_T]):
    """An async iterator over pages that are fetched as they are needed."""

    def __init__(self, fetch_page: Callable[[Any], Awaitable[tuple[Sequence[_T], Any]]], first: Any) -> None:
        self._fetch_page = fetch_page
        self._next: Any = first
        self._is_over = False
        self._page: Sequence[_T] | None = None
        self._index = 0

    @property
    def current_page(self) -> Sequence[_T] | None:
        """The page fetched last; None before the first."""
        return self._page

    @property
    def current_page_index(self) -> int:
        """How many entries of the current page were given out."""
        return self._index

    @property
    def next_page_token(self) -> Any:
        """Where the next page begins; None when there is none."""
        return None if self._is_over else self._next

    async def fetch_next_page(self) -> None:
        """Fetch the next page now, instead of when it is needed.

        Raises:
            RPCError: It was refused.
        """
        page, following = await self._fetch_page(self._next)
        self._page, self._index, self._next = page, 0, following
        self._is_over = following is None

    def __aiter__(self) -> _Pages[_T]:
        return self

    async def __anext__(self) -> _T:
        while self._page is None or self._index >= len(self._page):
            if self._is_over:
                raise StopAsyncIteration
            await self.fetch_next_page()
            assert self._page is not None, "a fetched page is kept"
        self._index += 1
        return self._page[self._index - 1]


@final
class WorkflowExecutionAsyncIterator(_Pages[WorkflowExecution]):
    """Runs, newest first, fetched page by page."""

    def __init__(
        self,
        fetch_page: Callable[[Any], Awaitable[tuple[Sequence[WorkflowExecution], Any]]],
        first: Any,
        fetch_history: Callable[[WorkflowExecution], Awaitable[WorkflowHistory]],
    ) -> None:
        super().__init__(fetch_page, first)
        self._fetch_history = fetch_history

    async def map_histories(self) -> AsyncIterator[WorkflowHistory]:
        """Give the history of each run, fetched one after the other.

        Raises:
            RPCError: A read was refused.
        """
        async for execution in self:
            yield await self._fetch_history(execution)


@final
class WorkflowHistoryEventAsyncIterator(_Pages[Event]):
    """Events of one run in order, fetched page by page."""
