"""Matching of tasks to the workers that wait for them.

Owns: worker sessions with their credits, the task queues they wait on, and the draining of queued rows.
Never: decides about a run, or builds a task (it calls back).

How it works: a task that becomes ready is matched at once to a session with a credit on its queue; the session that has
the run cached is preferred, and if that one has no credit the task waits in its memory (its sticky timeout bounds the
wait). A task that meets no session becomes a row. Rows are claimed in order when credits come in. A claimed row that no
session can have at the moment (none of its worker version, none that knows its type, none with a credit) is set aside
here, and started as soon as one can, so that it costs no hot retries and holds nobody up.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime, timedelta
from functools import partial
from typing import Final, NamedTuple

from clew.core.express import Taker
from clew.engine.background import Background
from clew.engine.peers import Attached, Peers
from clew.model.policies import DeploymentVersion
from clew.ports.clock import Clock
from clew.ports.store import Store, StoreError, TaskKind, TaskRow
from clew.service.contract import EarlyTaskSink, TaskSink
from clew.service.requests import TaskToken, WorkerHello

logger = logging.getLogger("clew.engine")

CLAIM_LEASE: Final = timedelta(seconds=60)
"""A claimed row that was not started is claimable again after this long."""

OVERDRAFT: Final = 200
"""Workflow tasks that a session gets ahead of its credits when nobody else would do them: those of runs it has cached,
and every one while it is alone on its queue. A turn takes microseconds, and a task that waits in the engine instead
costs a commit of its own when its turn comes."""

_WORKFLOW: Final = TaskKind.WORKFLOW
_ACTIVITY: Final = TaskKind.ACTIVITY
"""By these names, since what an enumeration is asked for takes as long as all the rest of a look."""

CLAIM_ROWS_MAX: Final = 200
CLAIM_RETRY_SECONDS: Final = 1.0


_REMOTE_MARK: Final = "~"


def is_remote(session_id: str) -> bool:
    """Whether the worker of this session is behind a link, so that it may outlive the node."""
    return session_id.endswith(_REMOTE_MARK)


class Session:
    """One attached worker (implements ``service.contract.WorkerSession``)."""

    __slots__ = (
        "_matcher",
        "activity_credits",
        "early_pauses_left",
        "early_pauses_next",
        "early_sink",
        "former_sessions",
        "has_granted",
        "hello",
        "is_attached",
        "is_polling",
        "is_suspended",
        "queue",
        "session_id",
        "sink",
        "sticky_waiting",
        "taker",
        "version",
        "workflow_credits",
    )

    def __init__(self, session_id: str, hello: WorkerHello, sink: TaskSink, matcher: Matcher, queue: _Queue) -> None:
        self.session_id = session_id
        self.queue = queue
        self.hello = hello
        self.taker = Taker(session_id, hello.identity)
        self.sink = sink
        self.early_sink = sink if isinstance(sink, EarlyTaskSink) else None
        self.early_pauses_left = 0
        """So many causes of its early tasks are not kept back for the answer, since that came too late before."""
        self.early_pauses_next = 1
        self.workflow_credits = 0
        self.has_granted = False
        self.activity_credits = 0
        self.sticky_waiting: deque[tuple[int, int, int]] = deque()
        self.is_attached = True
        self.is_polling = True
        self.is_suspended = False
        self.former_sessions: tuple[str, ...] = ()
        """Sessions that this worker had at nodes that are gone, once all that it still has of theirs is this one's."""
        self.version = hello.deployment_version if hello.uses_versioning else None
        """The version that is routed by; None for a worker without versioning."""
        self._matcher = matcher

    def grant(self, *, workflow_tasks: int = 0, activity_tasks: int = 0) -> None:
        """Allow this many more offers of each kind."""
        self._matcher.grant(self, workflow_tasks, activity_tasks)

    def stop_polling(self) -> None:
        """Take back all credits."""
        self._matcher.stop_polling(self)

    def note_unanswered(self, token: TaskToken) -> None:
        """An early task will not be answered soon."""
        self._matcher.on_unanswered(token)

    def suspend(self) -> None:
        """The worker cannot be reached for now."""
        self._matcher.suspend(self)

    def resume(self) -> None:
        """The worker can be reached again."""
        self._matcher.resume(self)

    def detach(self) -> None:
        """End the session."""
        self._matcher.detach(self)

    def takes_workflow(self, workflow_type: str, version: DeploymentVersion | None) -> bool:
        """Whether this worker is of the version (None: without versioning) and announced the type."""
        if self.version != version:
            return False
        types = self.hello.workflow_types
        return types is None or workflow_type in types

    def takes_activity(self, activity_type: str, version: DeploymentVersion | None) -> bool:
        """Whether this worker is of the version (None: without versioning) and announced the type."""
        if self.version != version:
            return False
        types = self.hello.activity_types
        return types is None or activity_type in types

    def polls(self, kind: TaskKind) -> bool:
        """Whether this worker takes tasks of this kind at all."""
        return polls(self.hello, kind)

    def takes(self, want: Want) -> bool:
        """Whether this worker may have such a task."""
        return want.fits(self.hello, self.version)

    def credits(self, kind: TaskKind) -> int:
        """How many more tasks of this kind it may be offered."""
        return self.workflow_credits if kind is TaskKind.WORKFLOW else self.activity_credits


class Want(NamedTuple):
    """What a task asks of the session that takes it."""

    kind: TaskKind
    type_name: str
    version: DeploymentVersion | None

    def fits(self, hello: WorkerHello, version: DeploymentVersion | None) -> bool:
        """Whether a worker may have the task that said this of itself, and is routed to by `version`."""
        types = hello.workflow_types if self.kind is TaskKind.WORKFLOW else hello.activity_types
        return version == self.version and polls(hello, self.kind) and (types is None or self.type_name in types)


def polls(hello: WorkerHello, kind: TaskKind) -> bool:
    """Whether a worker that said this of itself takes tasks of the kind at all."""
    return hello.takes_workflow_tasks if kind is TaskKind.WORKFLOW else hello.takes_activity_tasks


class _Queue:
    """One task queue of one namespace, with the sessions on it."""

    __slots__ = (
        "backlog",
        "draining",
        "name",
        "namespace",
        "ready",
        "sessions",
        "set_aside",
        "unpolled_since",
        "version_left",
    )

    def __init__(self, namespace: str, name: str, now: datetime) -> None:
        self.namespace = namespace
        self.name = name
        self.sessions: dict[str, Session] = {}
        self.ready: dict[TaskKind, dict[Session, None]] = {TaskKind.WORKFLOW: {}, TaskKind.ACTIVITY: {}}
        self.backlog: dict[TaskKind, bool] = {TaskKind.WORKFLOW: True, TaskKind.ACTIVITY: True}
        self.draining: dict[TaskKind, bool] = {TaskKind.WORKFLOW: False, TaskKind.ACTIVITY: False}
        self.set_aside: dict[Want, dict[int, TaskRow]] = {}
        self.version_left: dict[DeploymentVersion | None, datetime] = {}
        """When the last session of a version stopped polling."""
        self.unpolled_since: datetime | None = now


class Matcher:
    """See the module docstring. All methods belong to the engine's loop."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        node_id: str,
        start_claimed: Callable[[TaskRow, bool], Awaitable[bool]],
        start_sticky: Callable[[Session, int, int, int], None],
        recheck_sticky: Callable[[Session], None],
        on_suspended: Callable[[Session], None],
        on_detached: Callable[[Session], None],
        on_unanswered: Callable[[TaskToken], None],
        peers: Peers,
        claim_lease: timedelta = CLAIM_LEASE,
    ) -> None:
        self._store = store
        self._clock = clock
        self._node_id = node_id
        self._peers = peers
        self._claim_lease = claim_lease
        self._start_claimed = start_claimed
        self._start_sticky = start_sticky
        self._recheck_sticky = recheck_sticky
        self._on_suspended = on_suspended
        self._on_detached = on_detached
        self.on_unanswered = on_unanswered
        self._queues: dict[tuple[str, str], _Queue] = {}
        self._sessions: dict[str, Session] = {}
        self._session_count = 0
        self._shared: set[int] = set()
        """Tasks that are set aside here and were claimed by another node."""
        self._background = Background("matching")
        self._change_waiters: list[asyncio.Future[None]] = []
        self._is_closed = False

    # --- sessions ---------------------------------------------------------------------------------------------------

    def attach(self, hello: WorkerHello, sink: TaskSink) -> Session:
        """Take in a worker; it gets nothing before it grants credits."""
        self._session_count += 1
        queue = self._queue(hello.namespace, hello.task_queue)
        mark = _REMOTE_MARK if hello.is_remote else ""
        session = Session(f"{self._node_id}/{self._session_count}{mark}", hello, sink, self, queue)
        self._sessions[session.session_id] = session
        self._begin_polling(session)
        return session

    def _begin_polling(self, session: Session) -> None:
        queue = session.queue
        queue.sessions[session.session_id] = session
        queue.unpolled_since = None
        queue.version_left.pop(session.version, None)
        self._changed()
        self._peers.on_workers_changed()

    def rename(self, node_id: str) -> None:
        """This node has another id now, and so have its sessions; what they held under their old ids is lost."""
        self._node_id = node_id
        sessions = list(self._sessions.values())
        self._sessions = {}
        for session in sessions:
            is_polling = session.queue.sessions.pop(session.session_id, None) is not None
            session.session_id = f"{node_id}/{session.session_id.rpartition('/')[2]}"
            session.sticky_waiting.clear()
            self._sessions[session.session_id] = session
            if is_polling:
                session.queue.sessions[session.session_id] = session

    def session(self, session_id: str) -> Session | None:
        """The attached session with this id."""
        return self._sessions.get(session_id)

    def sessions(self) -> Iterable[Session]:
        """Every attached session."""
        return self._sessions.values()

    def grant(self, session: Session, workflow_tasks: int, activity_tasks: int) -> None:
        """Add credits, and use them on what waits."""
        if not session.is_attached:
            return
        if session.is_suspended:
            session.workflow_credits += workflow_tasks
            session.activity_credits += activity_tasks
            return
        queue = session.queue
        if workflow_tasks and session.hello.takes_workflow_tasks:
            session.workflow_credits += workflow_tasks
            session.has_granted = True
            while session.sticky_waiting and session.workflow_credits > -OVERDRAFT:
                session.workflow_credits -= 1
                self._start_sticky(session, *session.sticky_waiting.popleft())
            if session.workflow_credits > 0:
                queue.ready[_WORKFLOW][session] = None
                if queue.set_aside:
                    self._start_set_aside(queue, session, _WORKFLOW)
                if queue.backlog[_WORKFLOW]:
                    self._drain_soon(queue, _WORKFLOW)
        if activity_tasks and session.hello.takes_activity_tasks:
            session.activity_credits += activity_tasks
            queue.ready[_ACTIVITY][session] = None
            if queue.set_aside:
                self._start_set_aside(queue, session, _ACTIVITY)
            if queue.backlog[_ACTIVITY]:
                self._drain_soon(queue, _ACTIVITY)
        if self._change_waiters:
            self._changed()

    def refund(self, session: Session, kind: TaskKind) -> None:
        """Give back the credit of an offer that did not come about."""
        if kind is TaskKind.WORKFLOW:
            self.grant(session, 1, 0)
        else:
            self.grant(session, 0, 1)

    def stop_polling(self, session: Session) -> None:
        """Offer this session nothing more."""
        session.is_polling = False
        session.workflow_credits = session.activity_credits = 0
        self._end_polling(session)

    def suspend(self, session: Session) -> None:
        """Offer this session nothing for now, and give its workflow tasks to others."""
        if not session.is_attached or session.is_suspended:
            return
        session.is_suspended = True
        self._end_polling(session)
        self._on_suspended(session)
        session.sticky_waiting.clear()

    def resume(self, session: Session) -> None:
        """Offer this session tasks again, by the credits that it has left."""
        if not session.is_attached or not session.is_suspended:
            return
        session.is_suspended = False
        if not session.is_polling:
            return
        self._begin_polling(session)
        workflow_tasks, session.workflow_credits = session.workflow_credits, 0
        activity_tasks, session.activity_credits = session.activity_credits, 0
        self.grant(session, workflow_tasks, activity_tasks)

    def _end_polling(self, session: Session) -> None:
        queue = session.queue
        for ready in queue.ready.values():
            ready.pop(session, None)
        if queue.sessions.pop(session.session_id, None):
            self._peers.on_workers_changed()
            if not any(other.version == session.version for other in queue.sessions.values()):
                queue.version_left[session.version] = self._clock.now()
            if not queue.sessions:
                queue.unpolled_since = self._clock.now()

    def detach(self, session: Session) -> None:
        """End the session; what it held is offered elsewhere."""
        if not session.is_attached:
            return
        self.stop_polling(session)
        session.is_attached = False
        del self._sessions[session.session_id]
        self._on_detached(session)

    async def wait_change(self, seconds: float) -> None:
        """Wait until a worker attaches or grants credits, or the time is over."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._change_waiters.append(waiter)
        await asyncio.wait([waiter], timeout=seconds)

    def _changed(self) -> None:
        if self._change_waiters:
            waiters, self._change_waiters = self._change_waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)

    # --- matching ---------------------------------------------------------------------------------------------------

    def take_workflow_session(
        self, namespace: str, task_queue: str, workflow_type: str, version: DeploymentVersion | None
    ) -> Session | None:
        """Use up one workflow credit of a session of the version on the queue that takes the type."""
        queue = self._queue(namespace, task_queue)
        ready = queue.ready[_WORKFLOW]
        for session in ready:
            if session.takes_workflow(workflow_type, version):
                session.workflow_credits -= 1
                del ready[session]
                if session.workflow_credits:
                    ready[session] = None
                return session
        if len(queue.sessions) == 1:
            (alone,) = queue.sessions.values()
            if alone.has_granted and alone.takes_workflow(workflow_type, version) and self.use_workflow_credit(alone):
                return alone
        return None

    def take_sticky_session(self, session_id: str) -> Session | None:
        """The session with this id, with one workflow credit used up when it has one (else see `wait_sticky`)."""
        session = self._sessions.get(session_id)
        if session is None or session.session_id not in session.queue.sessions:
            return None
        return session

    def use_workflow_credit(self, session: Session) -> bool:
        """Use up one workflow credit of this very session, or one it will have soon; False when there is none."""
        if session.workflow_credits <= -OVERDRAFT:
            return False
        session.workflow_credits -= 1
        if session.workflow_credits == 0:
            session.queue.ready[TaskKind.WORKFLOW].pop(session, None)
        return True

    def take_activity_session(
        self, namespace: str, task_queue: str, activity_type: str, version: DeploymentVersion | None
    ) -> Session | None:
        """Use up one activity credit of a session of the version on the queue that takes the type."""
        ready = self._queue(namespace, task_queue).ready[_ACTIVITY]
        for session in ready:
            if session.takes_activity(activity_type, version):
                session.activity_credits -= 1
                if len(ready) > 1 or not session.activity_credits:
                    del ready[session]
                    if session.activity_credits:
                        ready[session] = None
                return session
        return None

    def take_cached_session(self, session_id: str) -> Session | None:
        """The session without versioning that has a run cached, with one workflow credit used up; None when it has
        none left, or takes no more."""
        session = self._sessions.get(session_id)
        if session is None or session.version is not None or session_id not in session.queue.sessions:
            return None
        return session if self.use_workflow_credit(session) else None

    def give_back_activity(self, session: Session) -> None:
        """Undo `take_activity_session` in the same turn."""
        session.activity_credits += 1
        session.queue.ready[TaskKind.ACTIVITY][session] = None

    def is_polled(self, namespace: str, task_queue: str, kind: TaskKind, version: DeploymentVersion | None) -> bool:
        """Whether any session of the version on the queue takes this kind of task."""
        sessions = self._queue(namespace, task_queue).sessions.values()
        return any(session.version == version and session.polls(kind) for session in sessions)

    def is_version_attached(self, namespace: str, version: DeploymentVersion) -> bool:
        """Whether any worker of the version is attached, to this node or another."""
        return any(
            session.version == version and session.hello.namespace == namespace for session in self._sessions.values()
        ) or any(worker.version == version for worker in self._peers.workers(namespace))

    def knows_type(self, namespace: str, task_queue: str, want: Want) -> bool:
        """Whether any worker on the queue, of this node or another, may have such a task, now or later."""
        return any(session.takes(want) for session in self._queue(namespace, task_queue).sessions.values()) or any(
            want.fits(worker.hello, worker.version) for worker in self._peers.workers(namespace, task_queue)
        )

    def why_unmatched(self, namespace: str, task_queue: str, want: Want) -> str:
        """In words: why a task of this queue has no worker (law 12)."""
        queue = self._queue(namespace, task_queue)
        kind, version = want.kind, want.version
        noun = "workflow" if kind is TaskKind.WORKFLOW else "activity"
        versions = {session.version for session in queue.sessions.values() if session.polls(kind)}
        versions |= {
            worker.version for worker in self._peers.workers(namespace, task_queue) if polls(worker.hello, kind)
        }
        if not versions and version is None:
            return f"no worker polls task queue {task_queue!r} for {noun} tasks{_since(queue.unpolled_since)}"
        if version not in versions:
            which = "without versioning" if version is None else f"of version {_name(version)}"
            others = ", ".join(sorted(_name(other) for other in versions))
            return f"no worker {which} polls task queue {task_queue!r} for {noun} tasks" + (
                f"{_since(queue.version_left.get(version))}" + (f"; there are workers of {others}" if others else "")
            )
        if not self.knows_type(namespace, task_queue, want):
            of = "" if version is None else f" of version {_name(version)}"
            return f"no worker{of} on task queue {task_queue!r} has type {want.type_name!r} registered"
        return f"waits for a free slot on task queue {task_queue!r}"

    # --- queued rows ------------------------------------------------------------------------------------------------

    def note_backlog(self, namespace: str, task_queue: str, kind: TaskKind) -> None:
        """A row was queued."""
        queue = self._queue(namespace, task_queue)
        queue.backlog[kind] = True
        self._drain_soon(queue, kind)

    def can_take(self, row: TaskRow, want: Want) -> bool:
        """Whether a session with a credit may have the task."""
        return any(session.takes(want) for session in self._queue(row.namespace, row.task_queue).ready[want.kind])

    def set_aside(self, row: TaskRow, want: Want, *, is_shared: bool = False) -> None:
        """No session can have this claimed row at the moment: it is started as soon as one can.

        One that another node shares is not shared again, and kept only for a session that may have it later.
        """
        if is_shared and not any(s.takes(want) for s in self._queue(row.namespace, row.task_queue).sessions.values()):
            return
        set_aside = self._queue(row.namespace, row.task_queue).set_aside
        if want not in set_aside:
            set_aside[want] = {}
            if not self.knows_type(row.namespace, row.task_queue, want):
                logger.warning(
                    "matching.no_worker queue=%s type=%s version=%s",
                    row.task_queue,
                    want.type_name,
                    _name(want.version),
                )
        set_aside[want][row.task_id] = row
        if is_shared:
            self._shared.add(row.task_id)
        else:
            self._peers.on_set_aside(row)

    def forget_set_aside(self, row: TaskRow) -> None:
        """Nobody wants this row any more."""
        set_aside = self._queue(row.namespace, row.task_queue).set_aside
        self._shared.discard(row.task_id)
        for want in list(set_aside):
            if set_aside[want].pop(row.task_id, None) is not None and not set_aside[want]:
                del set_aside[want]

    def look_at_hungry(self) -> None:
        """Rows may have been queued by other nodes: claim for all whose sessions wait for work."""
        for queue in list(self._queues.values()):
            for kind in TaskKind:
                if queue.ready[kind] and not queue.draining[kind]:
                    self.note_backlog(queue.namespace, queue.name, kind)

    def is_polled_for(self, row: TaskRow) -> bool:
        """Whether a session here takes tasks of the kind from the row's queue."""
        return any(session.polls(row.kind) for session in self._queue(row.namespace, row.task_queue).sessions.values())

    def rows_set_aside(self, namespace: str, task_queue: str, workers: Iterable[Attached]) -> list[TaskRow]:
        """The rows set aside in a queue that one of these workers of another node may have."""
        set_aside = self._queue(namespace, task_queue).set_aside
        return [
            row
            for want, rows in set_aside.items()
            if any(want.fits(worker.hello, worker.version) for worker in workers)
            for row in rows.values()
        ]

    def reroute(self, namespace: str, run_key: int | None = None) -> None:
        """Which version tasks go to has changed: look again at those that wait here, all or those of one run."""
        for queue in list(self._queues.values()):
            if queue.namespace != namespace:
                continue
            rows = [
                row
                for waiting in queue.set_aside.values()
                for row in waiting.values()
                if run_key is None or row.run_key == run_key
            ]
            shared = self._shared & {row.task_id for row in rows}
            for row in rows:
                self.forget_set_aside(row)
            self._shared |= shared
            if rows:
                self._background.spawn(self._start_rows(queue, rows))
            for session in list(queue.sessions.values()):
                if session.sticky_waiting:
                    self._recheck_sticky(session)

    async def close(self) -> None:
        """Stop draining."""
        self._is_closed = True
        await self._background.cancel()

    def _drain_soon(self, queue: _Queue, kind: TaskKind) -> None:
        if queue.backlog[kind] and not queue.draining[kind] and queue.ready[kind] and not self._is_closed:
            queue.draining[kind] = True
            self._background.spawn(self._drain(queue, kind))

    async def _drain(self, queue: _Queue, kind: TaskKind) -> None:
        try:
            surplus = 1
            while queue.ready[kind]:
                credits = sum(session.credits(kind) for session in queue.ready[kind])
                queue.backlog[kind] = False
                until = self._clock.now() + self._claim_lease
                limit = min(credits * surplus, CLAIM_ROWS_MAX)
                rows = await self._store.claim_tasks(queue.namespace, queue.name, kind, limit, until)
                if not rows:
                    if queue.backlog[kind]:
                        continue
                    return
                queue.backlog[kind] = True
                self._shared.difference_update([row.task_id for row in rows])
                is_any_wanted = await self._start_all(rows)
                # Rows that nobody here can have stand before those that somebody waits for: get past them fast.
                surplus = 1 if is_any_wanted else surplus * 4
        except Exception as error:
            # Whatever it is, the queue must not stand still for it.
            if isinstance(error, StoreError):
                logger.warning("matching.claim_failed queue=%s error=%s", queue.name, error)
            else:
                logger.exception("matching.start_failed queue=%s", queue.name)
            queue.backlog[kind] = True
            loop = asyncio.get_running_loop()
            loop.call_later(CLAIM_RETRY_SECONDS, self._drain_soon, queue, kind)
            # A claim whose answer was lost holds until its lease ends, and nothing else may ever be queued here. It
            # ends by this clock, which may go slower than the loop's (one that was set back).
            lease_ends_at = self._clock.now() + self._claim_lease + timedelta(seconds=CLAIM_RETRY_SECONDS)
            self._clock.call_at(lease_ends_at, partial(self._note_lost_claim, queue, kind))
        finally:
            queue.draining[kind] = False

    def _note_lost_claim(self, queue: _Queue, kind: TaskKind) -> None:
        if not self._is_closed:
            self.note_backlog(queue.namespace, queue.name, kind)

    async def _start_all(self, rows: list[TaskRow]) -> bool:
        """Start claimed or shared rows in order; whether a session took any. What an error leaves is released."""
        is_any_wanted = False
        for position, row in enumerate(rows):
            try:
                is_shared = row.task_id in self._shared
                self._shared.discard(row.task_id)
                is_any_wanted = await self._start_claimed(row, is_shared) or is_any_wanted
            except Exception:
                self._background.spawn(self.release_claims([left.task_id for left in rows[position:]]))
                raise
        return is_any_wanted

    async def release_claims(self, task_ids: list[int]) -> None:
        """Give claims back that led to nothing, as soon as the store takes that, and look at the queues again."""
        while not self._is_closed:
            try:
                await self._store.release_tasks(task_ids)
            except StoreError as error:
                logger.warning("matching.release_failed count=%d error=%s", len(task_ids), error)
                await asyncio.sleep(CLAIM_RETRY_SECONDS)
            else:
                break
        for queue in list(self._queues.values()):
            for kind in TaskKind:
                queue.backlog[kind] = True
                self._drain_soon(queue, kind)

    def _start_set_aside(self, queue: _Queue, session: Session, kind: TaskKind) -> None:
        left = session.credits(kind)
        rows: list[TaskRow] = []
        for want in [want for want in queue.set_aside if want.kind is kind and session.takes(want)]:
            waiting = queue.set_aside[want]
            taken = list(waiting)[: left - len(rows)]
            rows += [waiting.pop(task_id) for task_id in taken]
            if not waiting:
                del queue.set_aside[want]
        if rows:
            self._background.spawn(self._start_rows(queue, rows))

    async def _start_rows(self, queue: _Queue, rows: list[TaskRow]) -> None:
        try:
            await self._start_all(rows)
        except StoreError as error:
            logger.warning("matching.start_failed queue=%s error=%s", queue.name, error)

    def _queue(self, namespace: str, task_queue: str) -> _Queue:
        queue = self._queues.get((namespace, task_queue))
        if queue is None:
            queue = self._queues[namespace, task_queue] = _Queue(namespace, task_queue, self._clock.now())
        return queue


def _name(version: DeploymentVersion | None) -> str:
    return "no version" if version is None else version.to_canonical_string()


def _since(instant: datetime | None) -> str:
    return f" since {instant:%Y-%m-%dT%H:%M:%SZ}" if instant is not None else ""
