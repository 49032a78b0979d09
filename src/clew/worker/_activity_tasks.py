"""The service-loop side of activities: which attempts run, who is to stop, and that every outcome is reported.

Owns: the table of running attempts, their cancellation and reports, and the watch over deadlines and the worker's loop.
Never: calls user code (``_activity_calls`` does).

How it works: an offered task becomes an `Attempt` and goes to the user's side; what comes back is either a heartbeat to
send or a report. The slot is given back when the report is sent, and the report goes on being sent until the engine has
taken or refused it. While attempts run, a sweep looks whether one is over by the worker's own clock (its engine may be
out of reach) and whether the worker's loop still answers; who blocks it is named in the log.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any, Final, final

from clew.activity._context import ActivityCancellationDetails
from clew.activity._definition import _Definition
from clew.model.events import ZERO
from clew.model.inputs import (
    ActivityCancelReason,
    CancelActivityRequest,
    CompleteActivityRequest,
    FailActivityRequest,
    ReleaseActivityRequest,
    TaskToken,
)
from clew.service.contract import Service
from clew.service.errors import RPCError, RPCStatusCode
from clew.service.reply import Reply
from clew.service.requests import ActivityTask
from clew.stack_text import stack_text
from clew.worker._activity_calls import ActivityCalls
from clew.worker._attempt import Attempt, AttemptKey, key_of
from clew.worker._heartbeats import HeartbeatSender
from clew.worker._metrics import WorkerMetrics
from clew.worker._outcomes import Outcomes
from clew.worker._reports import Report

SWEEP_SECONDS: Final = 0.25
"""How late the worker notices by itself that an attempt is over or that its loop is blocked."""

DEADLINE_GRACE_SECONDS: Final = 0.5
"""The engine has the first word on deadlines; the worker's own clock speaks up when it is silent."""

BLOCKED_SECONDS: Final = 1.0
"""The worker's loop is called blocked when it has not answered for so long; again at twice the time, and so on."""

_CANCEL_DETAILS: Final = {
    ActivityCancelReason.CANCEL_REQUESTED: ActivityCancellationDetails(cancel_requested=True),
    ActivityCancelReason.TIMED_OUT: ActivityCancellationDetails(timed_out=True),
    ActivityCancelReason.NOT_FOUND: ActivityCancellationDetails(not_found=True),
}

_log: Final = logging.getLogger("clew.worker.activity")


@final
class ActivityTasks:
    """Takes offered attempts and sees that each is run and reported.

    Args:
        loop: The service loop; every method belongs to it unless it says otherwise.
        service: Where reports go.
        definitions: The activities by type; the key None has the dynamic one.
        outcomes: Makes the reports that the worker itself has to give.
        identity: Of the worker.
        watched_loop: The loop of async activities, which must go on answering.
        watched_thread_id: The thread it runs in.
        on_error: Told what must bring the worker down.
        metrics: Where the worker measures itself, if anybody wants to know.
    """

    slots_max = 0
    local_slots_max = 0
    """Attempts at a time, for the metrics."""

    calls: ActivityCalls
    heartbeats: HeartbeatSender

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        service: Service,
        definitions: Mapping[str | None, _Definition],
        outcomes: Outcomes,
        *,
        identity: str,
        watched_loop: asyncio.AbstractEventLoop,
        watched_thread_id: int,
        on_error: Callable[[BaseException], None],
        metrics: WorkerMetrics | None = None,
    ) -> None:
        self._loop = loop
        self._metrics = metrics
        self._local_count = 0
        self._service = service
        self._definitions = definitions
        self._outcomes = outcomes
        self._identity = identity
        self._on_error = on_error
        self._attempts: dict[AttemptKey, Attempt] = {}
        self._sent: set[Attempt] = set()
        """Those whose result the engine has been told, and has neither taken nor refused."""
        self._reports: set[Report] = set()
        self._is_closed = False
        self._abandoned: list[Attempt] = []
        self._is_stopping = False
        self._is_sweeping = False
        self._emptied = asyncio.Event()
        self._watch = _LoopWatch(loop, watched_loop, watched_thread_id, self._name_task)

    @property
    def running_count(self) -> int:
        """Attempts whose function has not ended."""
        return len(self._attempts)

    # --- attempts come in -----------------------------------------------------------------------------------

    def offer(self, task: ActivityTask, settle: Callable[[], None]) -> None:
        """Run one attempt; `settle` gives its slot back."""
        if self._is_stopping:
            self._release(task, settle, "The worker is shutting down")
            return
        definition = self._definitions.get(task.activity_type) or self._definitions.get(None)
        if definition is None:
            self._release(task, settle, self._unknown_type(task.activity_type))
            return
        attempt = Attempt(task, definition, self._loop.time(), settle)
        if task.start_to_close_timeout != ZERO:
            attempt.deadline = attempt.started_at + task.start_to_close_timeout.total_seconds()
        self.run(attempt)

    def run(self, attempt: Attempt) -> None:
        """Run an attempt, from the engine or of a local activity."""
        self._attempts[attempt.key] = attempt
        if self._metrics is not None:
            self._measure_start(attempt, self._metrics)
        if not self._is_sweeping:
            self._is_sweeping = True
            self._loop.call_later(SWEEP_SECONDS, self._sweep)
        self.calls.start(attempt)

    def _release(self, task: ActivityTask, settle: Callable[[], None], reason: str) -> None:
        _log.warning("activity.released type=%s id=%s: %s", task.activity_type, task.activity_id, reason)
        request = ReleaseActivityRequest(token=task.token, reason=reason, identity=self._identity)
        self._report(self._service.release_activity, request, f"release of {task.activity_type}", _log_refusal)
        settle()

    def _unknown_type(self, activity_type: str) -> str:
        known = ", ".join(sorted(name for name in self._definitions if name is not None)) or "none"
        return (
            f"Activity {activity_type!r} is not registered with this worker; it has: {known}. "
            "Pass the function in Worker(activities=[…])."
        )

    # --- what comes from the user's side --------------------------------------------------------------------

    def take(self, attempt: Attempt) -> None:
        """An attempt has a report, or none to give, or a heartbeat to send."""
        if not attempt.has_ended:
            if attempt.local is None:
                self.heartbeats.beat(attempt)
        elif not attempt.is_over:
            self._finish(attempt)

    def _finish(self, attempt: Attempt) -> None:
        self._forget(attempt)
        report = attempt.report
        if self._metrics is not None:
            self._metrics.note_activity_ended(
                attempt.task,
                self._loop.time() - attempt.started_at,
                is_local=attempt.local is not None,
                is_success=isinstance(report, CompleteActivityRequest),
                is_failure=isinstance(report, FailActivityRequest),
            )
        if attempt.local is not None:
            attempt.local.take(attempt)
            return
        if report is None:
            return
        if attempt.is_gone:
            _log.info("activity.result_dropped %s: the engine has given the attempt up already", attempt)
            return
        if type(report) is CompleteActivityRequest:
            self._complete(attempt, report)
            return
        call: Callable[[Any], Any]
        if isinstance(report, FailActivityRequest):
            call = self._service.fail_activity
        elif isinstance(report, CancelActivityRequest):
            call = self._service.cancel_activity
        else:
            call = self._service.detach_activity
        self._report(call, report, attempt, self._verdict_on(attempt))

    def _verdict_on(self, attempt: Attempt) -> Callable[[BaseException | None], None]:
        def on_verdict(error: BaseException | None) -> None:
            if error is not None:
                self._on_refused(attempt, error)

        return on_verdict

    def _complete(self, attempt: Attempt, request: CompleteActivityRequest) -> None:
        """Report a result; what remembers how to repeat that is made when it is needed, which is hardly ever."""
        sent, call = self._sent, self._service.complete_activity
        try:
            answer = call(request)
        except Exception as error:  # noqa: BLE001 - a service may refuse before it hands out a future
            self._new_report(call, request, attempt, self._verdict_on(attempt)).refuse(error)
            return
        if not isinstance(answer, Reply):
            self._new_report(call, request, attempt, self._verdict_on(attempt)).wait_for(answer)
            return
        sent.add(attempt)

        def look(answer: Reply[None]) -> None:
            sent.discard(attempt)
            if answer.exception() is None:
                if not sent:
                    self._emptied.set()
            else:
                report = self._new_report(call, request, attempt, self._verdict_on(attempt))
                if self._is_closed:
                    report.drop()
                report.take(answer)

        answer.listen(look)

    def _measure_start(self, attempt: Attempt, metrics: WorkerMetrics) -> None:
        if attempt.local is not None:
            self._local_count += 1
        else:
            metrics.note_activity_started(attempt.task)
        self._show_slots(metrics)

    def _show_slots(self, metrics: WorkerMetrics) -> None:
        metrics.show_slots("ActivityWorker", len(self._attempts) - self._local_count, self.slots_max)
        metrics.show_slots("LocalActivityWorker", self._local_count, self.local_slots_max)

    def _forget(self, attempt: Attempt) -> None:
        attempt.is_over = True
        if attempt.beat is not None:
            attempt.beat.stop()
        self._attempts.pop(attempt.key, None)
        if self._metrics is not None:
            self._local_count -= attempt.local is not None
            self._show_slots(self._metrics)
        attempt.settle()
        if not self._attempts:
            self._emptied.set()

    def _report(
        self,
        call: Callable[[Any], Any],
        request: Any,
        label: object,
        on_verdict: Callable[[BaseException | None], None],
    ) -> None:
        self._new_report(call, request, label, on_verdict).send()

    def _new_report(
        self,
        call: Callable[[Any], Any],
        request: Any,
        label: object,
        on_verdict: Callable[[BaseException | None], None],
    ) -> Report:
        def on_end(error: BaseException | None) -> None:
            self._reports.discard(report)
            if not self._reports:
                self._emptied.set()
            on_verdict(error)

        report = Report(self._loop, call, request, label, on_end)
        self._reports.add(report)
        return report

    def _on_refused(self, attempt: Attempt, error: BaseException) -> None:
        is_known = isinstance(error, RPCError) and error.status is not RPCStatusCode.NOT_FOUND
        if is_known and isinstance(attempt.report, CompleteActivityRequest):
            # The engine knows the attempt but cannot take this result: say so, rather than let it time out.
            failed = self._outcomes.to_refused_report(attempt, str(error))
            self._report(self._service.fail_activity, failed, attempt, _log_refusal)
            return
        _log.info("activity.result_refused %s: %s", attempt, error)

    # --- cancellation ---------------------------------------------------------------------------------------

    def cancel_by_engine(self, token: TaskToken, reason: ActivityCancelReason) -> None:
        """The engine wants an attempt to stop."""
        attempt = self._attempts.get(key_of(token))
        if attempt is None:
            return
        if reason is not ActivityCancelReason.CANCEL_REQUESTED:
            attempt.is_gone = True
        self.cancel(attempt, _CANCEL_DETAILS[reason])

    def cancel(self, attempt: Attempt, details: ActivityCancellationDetails) -> None:
        """Tell one attempt to stop; a further reason is only noted."""
        if attempt.is_over:
            return
        if attempt.note_cancel(details):
            self.calls.cancel(attempt)

    # --- the sweep ------------------------------------------------------------------------------------------

    def _sweep(self) -> None:
        try:
            self._look()
        except Exception as error:  # noqa: BLE001 - a sweep that died must bring the worker down
            self._on_error(error)
            return
        if self._attempts:
            self._loop.call_later(SWEEP_SECONDS, self._sweep)
        else:
            self._is_sweeping = False

    def _look(self) -> None:
        now = self._loop.time()
        has_async = False
        for attempt in list(self._attempts.values()):
            has_async = has_async or attempt.definition.is_async
            if attempt.holder.details is None and _is_past_deadline(attempt, now):
                _log.warning("activity.deadline_passed %s; it is told to stop", attempt)
                self.cancel(attempt, ActivityCancellationDetails(timed_out=True))
        if has_async:
            self._watch.look()

    def _name_task(self, task: asyncio.Task[Any]) -> str | None:
        return next((str(attempt) for attempt in self._attempts.values() if attempt.async_task is task), None)

    # --- the end --------------------------------------------------------------------------------------------

    def begin_stop(self) -> None:
        """Take no more attempts; running ones can see that the worker is about to stop."""
        self._is_stopping = True
        self.calls.begin_shutdown()

    async def wait_idle(self, timeout: float) -> bool:
        """Wait until no attempt runs and every report has its verdict; gives whether that came within `timeout`."""
        deadline = self._loop.time() + timeout
        while self._attempts or self._sent or self._reports:
            left = deadline - self._loop.time()
            if left <= 0:
                return False
            self._emptied.clear()
            try:
                await asyncio.wait_for(self._emptied.wait(), left)
            except TimeoutError:
                return False
        return True

    def cancel_all(self) -> None:
        """The grace time is over."""
        for attempt in list(self._attempts.values()):
            self.cancel(attempt, ActivityCancellationDetails(worker_shutdown=True))

    def abandon_all(self) -> None:
        """Report what does not end, so that another worker may take it."""
        for attempt in list(self._attempts.values()):
            _log.warning("activity.abandoned %s did not end when it was told to; its worker stops without it", attempt)
            if attempt.kill_child is not None:
                attempt.kill_child()
            attempt.report = self._outcomes.to_shutdown_report(attempt)
            # Kept, as nobody else holds its task, which is still running.
            self._abandoned.append(attempt)
            self._finish(attempt)

    def close(self) -> None:
        """Give up on reports that have not got through; their leases tell the engine."""
        self._is_closed = True
        for lost in (*(report.label for report in self._reports), *self._sent):
            _log.warning("activity.report_lost what=%s: the worker stops before it was taken", lost)
        for report in self._reports:
            report.drop()
        self._reports.clear()


@final
class _LoopWatch:
    """Notices that the loop of async activities does not answer, and who holds it."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        watched_loop: asyncio.AbstractEventLoop,
        thread_id: int,
        name_task: Callable[[asyncio.Task[Any]], str | None],
    ) -> None:
        self._loop = loop
        self._watched_loop = watched_loop
        self._thread_id = thread_id
        self._name_task = name_task
        self._asked_at: float | None = None
        self._warn_after = BLOCKED_SECONDS

    def look(self) -> None:
        """Ask, or complain about an answer that is overdue."""
        now = self._loop.time()
        if self._asked_at is None:
            self._asked_at = now
            self._warn_after = BLOCKED_SECONDS
            try:
                self._watched_loop.call_soon_threadsafe(self._answer)
            except RuntimeError:
                self._asked_at = None
        elif now - self._asked_at >= self._warn_after:
            self._warn_after *= 2
            self._complain(now - self._asked_at)

    def _answer(self) -> None:
        self._asked_at = None

    def _complain(self, seconds: float) -> None:
        task = asyncio.current_task(self._watched_loop)
        frame = sys._current_frames().get(self._thread_id)
        _log.warning(
            "worker.loop_blocked for %.1f s by %s; other async activities of this worker cannot run or heartbeat. "
            "Make it a plain function, or await asyncio.to_thread. It stands at:\n%s",
            seconds,
            (self._name_task(task) or task.get_name()) if task is not None else "code outside of any task",
            stack_text(traceback.extract_stack(frame)) if frame is not None else "(no stack)",
        )


def _is_past_deadline(attempt: Attempt, now: float) -> bool:
    if attempt.deadline is not None and now > attempt.deadline + DEADLINE_GRACE_SECONDS:
        return True
    timeout = attempt.task.heartbeat_timeout
    return timeout != ZERO and now > attempt.acked_at + timeout.total_seconds() + DEADLINE_GRACE_SECONDS


def _log_refusal(error: BaseException | None) -> None:
    if error is not None:
        _log.info("activity.report_refused: %s", error)
