"""Local activities: run by the worker that has their workflow, attempt by attempt (semantics 0.5).

Owns: their attempts, retries, timeouts and slots; what each comes to.
Never: touches a machine; an outcome is handed to ``_workflow_tasks``, which gives it a turn.

How it works: an attempt is one like that of any other activity, with a task made up here in place of one from the
engine, and goes the same way (``_activity_tasks``); only its report comes back here. A wait before the next attempt is
spent here if it is short, else it is an outcome too: the run then waits on a durable timer. Timeouts are kept here,
since no engine watches over a local activity; an attempt that does not end in time is left to itself. Nearly all of
them come to nothing, so they share one timer of the loop, over a heap that is cleaned now and then and that far ones
enter late.
"""

from __future__ import annotations

import asyncio
import heapq
import hmac
import itertools
from collections import deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final, final

from clew.activity._context import ActivityCancellationDetails
from clew.activity._definition import _Definition
from clew.model.events import ZERO
from clew.model.failure import ApplicationInfo, Failure, TimeoutInfo, TimeoutType
from clew.model.inputs import CancelActivityRequest, CompleteActivityRequest, FailActivityRequest, TaskToken
from clew.model.payload import to_stored
from clew.replay import LocalActivityOutcome, LocalActivityRequest
from clew.service.requests import ActivityTask
from clew.worker._activity_tasks import ActivityTasks
from clew.worker._attempt import Attempt
from clew.worker._local_retry import DEFAULT, retry_delay
from clew.worker._metrics import WorkerMetrics
from clew.worker._outcomes import SHUTDOWN_TYPE

RETRY_THRESHOLD_DEFAULT: Final = timedelta(minutes=1)
"""A longer wait before an attempt is a durable timer of the run (semantics 1.3)."""

_TIMED_OUT: Final = ActivityCancellationDetails(timed_out=True)
_CANCELLED: Final = ActivityCancellationDetails(cancel_requested=True)
_NOT_FOUND: Final = ActivityCancellationDetails(not_found=True)

STALE_MAX: Final = 256
STALE_MAX_SHARE: Final = 4
"""The heap of timeouts is cleaned when it holds more than so many entries, and so many for each that then counted."""

FAR_SECONDS: Final = 1.0
ARM_SECONDS: Final = 0.25
"""A timeout that is further off gets into the heap only when its local activity still runs some moments later."""

_lease_ids: Final = itertools.count(-1, -1)
"""Below zero, so that no attempt from the engine has the same."""


@final
class LocalRun:
    """One local activity, until it has an outcome; a `LocalAttempt` for its attempts.

    Args:
        request: What the machine asked for.
        token: Of the workflow task it was asked in.
        workflow_type: Of the run.
        key_generation: Of the run, for its idempotency key.
        on_outcome: Takes the outcome; never called after `LocalActivities.forget`.
    """

    # What most of them never write stands here and not in each.
    attempt: Attempt | None = None
    first_scheduled_at = 0.0
    last_failure: Failure | None = None
    is_cancelled = False
    is_over = False
    is_unwanted = False
    """Whether the code does not wait for it any more."""
    is_armed = False
    """Whether its timeouts are in the heap."""
    runner: LocalActivities
    """Set when it is started."""

    def __init__(
        self,
        request: LocalActivityRequest,
        token: TaskToken,
        workflow_type: str,
        key_generation: str,
        on_outcome: Callable[[LocalRun, LocalActivityOutcome], None],
    ) -> None:
        self.request = request
        self.token = token
        self.workflow_type = workflow_type
        self.key_generation = key_generation
        self.on_outcome = on_outcome
        self.attempt_number = request.attempt
        self.due: dict[TimeoutType | None, float] = {}
        """When each timeout passes, on the loop's clock; None is the wait before the next attempt."""

    def make_key(self) -> str:
        """Give its idempotency key; made when somebody asks for it."""
        return local_key(self.token, self.request.activity_id, self.key_generation)

    def times(self) -> tuple[datetime, datetime]:
        """Give when it was asked for, and when its attempt began."""
        began_at = self.attempt.started_at if self.attempt is not None else self.first_scheduled_at
        return self.runner.instant_of(self.first_scheduled_at), self.runner.instant_of(began_at)

    def take(self, attempt: Attempt) -> None:
        """Take the report of an attempt."""
        self.runner.take(self, attempt)


@final
class LocalActivities:
    """Runs local activities; on the service loop.

    Args:
        loop: The service loop.
        activities: Runs the attempts.
        definitions: The activities by type; the key None has the dynamic one.
        task_queue: Of the worker.
        attempts_max: Attempts at a time.
        now_ns: The engine's time, for people.
        metrics: Where the worker measures itself, if anybody wants to know.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        activities: ActivityTasks,
        definitions: Mapping[str | None, _Definition],
        *,
        task_queue: str,
        attempts_max: int,
        now_ns: Callable[[], int],
        metrics: WorkerMetrics | None = None,
    ) -> None:
        self._loop = loop
        self._metrics = metrics
        self._activities = activities
        self._definitions = definitions
        self._task_queue = task_queue
        self._free_count = attempts_max
        self._now_ns = now_ns
        self._waiting: deque[LocalRun] = deque()
        self._due: list[tuple[float, int, LocalRun, TimeoutType | None]] = []
        """A heap of what falls due, with what does no longer."""
        self._cleaned_at = STALE_MAX
        """How many entries the heap may have before it is cleaned."""
        self._unarmed: dict[LocalRun, None] = {}
        """Those whose timeouts are far, and not in the heap yet."""
        self._is_arming = False
        self._entries = itertools.count()
        self._timer: asyncio.TimerHandle | None = None

    def start(self, local: LocalRun) -> None:
        """Run a local activity to its outcome."""
        asked = local.request.input
        local.runner = self
        local.first_scheduled_at = now = self._loop.time()
        if self._metrics is not None:
            self._metrics.count("local_activity_total", _labels(local))
        if asked.schedule_to_close_timeout is not None:
            self._arm(local, now + asked.schedule_to_close_timeout.total_seconds(), TimeoutType.SCHEDULE_TO_CLOSE)
        if asked.schedule_to_start_timeout is not None:
            self._arm(local, now + asked.schedule_to_start_timeout.total_seconds(), TimeoutType.SCHEDULE_TO_START)
        if self._free_count > 0 and not self._waiting:
            self._start_attempt(local, now)
        else:
            self._waiting.append(local)
            self._start_waiting()

    def cancel(self, local: LocalRun) -> None:
        """Ask a local activity to stop; its outcome says how it ended."""
        local.is_cancelled = True
        if local.attempt is not None:
            self._activities.cancel(local.attempt, _CANCELLED)
        else:
            self._end(local, LocalActivityOutcome(sequence=local.request.sequence, is_cancelled=True))

    def forget(self, local: LocalRun) -> None:
        """Its run has left this worker: nobody wants the outcome."""
        local.is_over = True
        self._disarm_all(local)
        if local.attempt is not None:
            local.attempt.is_gone = True
            self._activities.cancel(local.attempt, _NOT_FOUND)

    # --- attempts -------------------------------------------------------------------------------------------

    def _start_waiting(self) -> None:
        while self._waiting and self._free_count > 0:
            local = self._waiting.popleft()
            if not local.is_over:
                self._start_attempt(local, self._loop.time())

    def _start_attempt(self, local: LocalRun, now: float) -> None:
        request = local.request
        definition = self._definitions.get(request.activity_type) or self._definitions.get(None)
        if definition is None:
            self._end(local, self._failed(local, _unregistered(request.activity_type, self._definitions)))
            return
        self._free_count -= 1
        attempt = Attempt(self._task(local), definition, now, self._settle)
        attempt.local = local
        local.attempt = attempt
        if local.due:
            self._disarm(local, TimeoutType.SCHEDULE_TO_START)
        timeout = request.input.start_to_close_timeout
        if timeout is not None:
            self._arm(local, now + timeout.total_seconds(), TimeoutType.START_TO_CLOSE)
        self._activities.run(attempt)

    def _settle(self) -> None:
        self._free_count += 1
        if self._waiting:
            self._start_waiting()

    def _task(self, local: LocalRun) -> ActivityTask:
        request, asked, token = local.request, local.request.input, local.token
        return ActivityTask(
            token=TaskToken(
                namespace=token.namespace,
                workflow_id=token.workflow_id,
                run_id=token.run_id,
                shard=token.shard,
                run_key=token.run_key,
                scheduled_event_id=0,
                attempt=local.attempt_number,
                lease_id=next(_lease_ids),
                activity_id=request.activity_id,
            ),
            activity_id=request.activity_id,
            activity_type=request.activity_type,
            workflow_type=local.workflow_type,
            task_queue=self._task_queue,
            attempt=local.attempt_number,
            idempotency_key="",
            header={name: to_stored(p) for name, p in asked.headers.items()} if asked.headers else None,
            input=request.payloads,
            schedule_to_close_timeout=asked.schedule_to_close_timeout or ZERO,
            start_to_close_timeout=asked.start_to_close_timeout or ZERO,
            retry_policy=asked.retry_policy or DEFAULT,
        )

    def instant_of(self, loop_time: float) -> datetime:
        """Give the engine's time at a time of the loop, for people; from any thread."""
        ago = self._loop.time() - loop_time
        return datetime.fromtimestamp(self._now_ns() / 1e9 - ago, UTC)

    def take(self, local: LocalRun, attempt: Attempt) -> None:
        """An attempt has ended."""
        if local.is_over or local.attempt is not attempt:
            return
        # The two refer to each other, and so do what they hold: only the cycle collector could free them.
        local.attempt = None
        report = attempt.report
        if isinstance(report, CompleteActivityRequest):
            outcome = LocalActivityOutcome(
                sequence=local.request.sequence, result=report.result, attempt=local.attempt_number
            )
            self._end(local, outcome)
        elif isinstance(report, CancelActivityRequest):
            self._end(local, self._cancelled(local))
        elif isinstance(report, FailActivityRequest):
            self._fail(local, report.failure)
        else:
            failure = Failure(
                message=f"Local activity {local.request.activity_type!r} cannot be completed from elsewhere. "
                "Use execute_activity for that.",
                source="clew",
                info=ApplicationInfo(type="CompleteAsync", non_retryable=True),
            )
            self._fail(local, failure)

    def _fail(self, local: LocalRun, failure: Failure) -> None:
        local.attempt = None
        self._disarm(local, TimeoutType.START_TO_CLOSE)
        if isinstance(failure.info, ApplicationInfo) and failure.info.type == SHUTDOWN_TYPE:
            # Left without an outcome: the next worker takes the run, and this attempt, up again.
            local.is_over = True
            self._disarm_all(local)
            return
        local.last_failure = failure
        asked = local.request.input
        delay = retry_delay(asked.retry_policy or DEFAULT, failure, local.attempt_number)
        if local.is_cancelled:
            self._end(local, self._cancelled(local))
        elif delay is None or self._would_pass_deadline(local, delay):
            self._end(local, self._failed(local, failure))
        elif delay > (asked.local_retry_threshold or RETRY_THRESHOLD_DEFAULT):
            outcome = LocalActivityOutcome(
                sequence=local.request.sequence, failure=failure, attempt=local.attempt_number, backoff=delay
            )
            self._end(local, outcome)
        else:
            local.attempt_number += 1
            self._arm(local, self._loop.time() + delay.total_seconds(), None)

    def _try_again(self, local: LocalRun) -> None:
        self._waiting.append(local)
        self._start_waiting()

    def _would_pass_deadline(self, local: LocalRun, delay: timedelta) -> bool:
        limit = local.request.input.schedule_to_close_timeout
        if limit is None:
            return False
        return self._loop.time() + delay.total_seconds() > local.first_scheduled_at + limit.total_seconds()

    # --- outcomes -------------------------------------------------------------------------------------------

    def _end(self, local: LocalRun, outcome: LocalActivityOutcome) -> None:
        if local.is_over:
            return
        local.is_over = True
        self._disarm_all(local)
        if self._metrics is not None and outcome.failure is None and not outcome.is_cancelled:
            took = timedelta(seconds=self._loop.time() - local.first_scheduled_at)
            self._metrics.record("local_activity_succeed_endtoend_latency", took, _labels(local))
        local.on_outcome(local, outcome)

    def _failed(self, local: LocalRun, failure: Failure) -> LocalActivityOutcome:
        return LocalActivityOutcome(sequence=local.request.sequence, failure=failure, attempt=local.attempt_number)

    def _cancelled(self, local: LocalRun) -> LocalActivityOutcome:
        return LocalActivityOutcome(sequence=local.request.sequence, is_cancelled=True, attempt=local.attempt_number)

    # --- timeouts -------------------------------------------------------------------------------------------

    def _arm(self, local: LocalRun, when: float, kind: TimeoutType | None) -> None:
        local.due[kind] = when
        if local.is_armed:
            self._push(local, when, kind)
        elif when - self._loop.time() > FAR_SECONDS:
            # Nearly all are over long before, and then the heap never hears of them.
            self._unarmed[local] = None
            if not self._is_arming:
                self._is_arming = True
                self._loop.call_later(ARM_SECONDS, self._arm_far)
        else:
            self._arm_all(local)

    def _arm_far(self) -> None:
        """Arm those that still run."""
        self._is_arming = False
        for local in list(self._unarmed):
            self._arm_all(local)

    def _arm_all(self, local: LocalRun) -> None:
        self._unarmed.pop(local, None)
        local.is_armed = True
        for kind, when in local.due.items():
            self._push(local, when, kind)

    def _push(self, local: LocalRun, when: float, kind: TimeoutType | None) -> None:
        due = self._due
        if len(due) >= self._cleaned_at:
            due[:] = [entry for entry in due if entry[2].due.get(entry[3]) == entry[0]]
            heapq.heapify(due)
            self._cleaned_at = max(STALE_MAX, STALE_MAX_SHARE * len(due))
        heapq.heappush(due, (when, next(self._entries), local, kind))
        if due[0][0] == when:
            self._wake_at(when)

    def _disarm(self, local: LocalRun, kind: TimeoutType | None) -> None:
        local.due.pop(kind, None)

    def _disarm_all(self, local: LocalRun) -> None:
        local.due.clear()
        self._unarmed.pop(local, None)

    def _wake_at(self, when: float) -> None:
        if self._timer is not None:
            if self._timer.when() <= when:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(when, self._tick)

    def _tick(self) -> None:
        """Something may have fallen due."""
        self._timer = None
        due, now = self._due, self._loop.time()
        while due and (due[0][0] <= now or due[0][2].due.get(due[0][3]) != due[0][0]):
            when, _, local, kind = heapq.heappop(due)
            if local.due.get(kind) != when:
                continue
            self._disarm(local, kind)
            if kind is None:
                self._try_again(local)
            else:
                self._on_timeout(local, kind)
        if due:
            self._wake_at(due[0][0])

    def _on_timeout(self, local: LocalRun, kind: TimeoutType) -> None:
        attempt, local.attempt = local.attempt, None
        if attempt is not None:
            # Told to stop, and left to itself: its outcome is that it took too long.
            self._activities.cancel(attempt, _TIMED_OUT)
        failure = Failure(
            message=f"Local activity {local.request.activity_type!r}: {kind.value} timeout",
            source="clew",
            cause=local.last_failure if kind is not TimeoutType.START_TO_CLOSE else None,
            info=TimeoutInfo(timeout_type=kind),
        )
        if kind is TimeoutType.START_TO_CLOSE:
            self._fail(local, failure)
        else:
            self._end(local, self._failed(local, failure))


def _labels(local: LocalRun) -> dict[str, str]:
    return {"activity_type": local.request.activity_type, "workflow_type": local.workflow_type}


def local_key(token: TaskToken, activity_id: str, key_generation: str) -> str:
    """Give the idempotency key of a local activity: the same through retries, replays and moves between workers.

    It is made like that of other activities (design §8), but without the namespace's secret, which workers do not have.
    """
    parts = (token.namespace, token.workflow_id, activity_id, key_generation)
    encoded = [part.encode() for part in parts]
    message = b"".join(len(part).to_bytes(8, "big") + part for part in encoded)
    return hmac.digest(b"clew local activity", message, "sha256").hex()


def _unregistered(activity_type: str, definitions: Mapping[str | None, _Definition]) -> Failure:
    known = ", ".join(sorted(name for name in definitions if name is not None)) or "none"
    return Failure(
        message=f"Local activity {activity_type!r} is not registered with this worker; it has: {known}. "
        "Pass the function in Worker(activities=[…]).",
        source="clew",
        info=ApplicationInfo(type="NotRegistered", non_retryable=True),
    )
