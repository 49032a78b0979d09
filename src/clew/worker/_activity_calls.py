"""The user's side of an attempt: arguments in, function called, outcome as a report.

Owns: how async, thread and process activities are called, in which context, and what each outcome is reported as.
Never: talks to the service; reports travel back through `deliver`.

How it works: an attempt takes the short way when nothing has to be awaited around the call: an async function becomes
one task on the worker's loop, a plain one a call on a thread, which also converts its arguments and result. With
interceptors or a payload codec every attempt becomes a task on the worker's loop, which awaits those and then the
function, wherever that runs. Each attempt has a fresh copy of the context variables as they were when the worker
started, so nothing leaks from one attempt to the next through a pooled thread.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import functools
import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Protocol, cast, final

from clew.activity._context import ActivityCancellationDetails, Info, _CompositeEvent, _Context, _LateContext
from clew.common import MetricMeter, Priority, RawValue
from clew.converter import DataConverter, decode_arguments, from_stored_payloads, to_stored_payloads
from clew.exceptions import ApplicationError
from clew.model.payload import Payloads, from_stored
from clew.service_loop import ServiceLoop
from clew.worker._activity_interceptor import (
    ActivityInboundInterceptor,
    ActivityOutboundInterceptor,
    ExecuteActivityInput,
)
from clew.worker._attempt import ActivityReport, Attempt, LazyEvent
from clew.worker._inbox import Inbox
from clew.worker._outcomes import CompletesAsync, Outcomes
from clew.worker._quick_calls import QuickCalls
from clew.worker._thread_calls import ThreadCall

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_log: Final = logging.getLogger("clew.worker.activity")


class Threads(Protocol):
    """Where plain functions run."""

    def submit(self, fn: Callable[[Any], None], arg: Any, /) -> object: ...


class Processes(Protocol):
    """Where process activities run."""

    def call(
        self, attempt: Attempt, info: Info, args: Sequence[Any], beat: Callable[[Payloads], None]
    ) -> concurrent.futures.Future[Any]:
        """Call the attempt's function in a child; cancelling goes through ``attempt.cancel_in_child``."""
        ...

    def begin_shutdown(self) -> None:
        """Let running functions see that the worker is about to stop."""
        ...


class ActivityCodec(Protocol):
    """The payload codec, as activities need it. Awaited on the worker's loop."""

    async def decode(self, payloads: Payloads) -> Payloads: ...
    async def encode_report(self, report: Any) -> Any: ...


@final
class ActivityCalls:
    """Calls activities, on the side of the user's code.

    Args:
        loop: The loop that called `Worker.run`; async activities run on it.
        threads: Where plain functions run; None when it is `processes`.
        processes: Where plain functions run when the executor is a process pool.
        executor: The executor that the user gave, shown to interceptors.
        data_converter: Of the client.
        outcomes: Turns results and errors into reports.
        interceptors: Wrap each call; the first is the outermost.
        codec: The payload codec, if there is one.
        client: For `activity.client`.
        deliver: Takes an attempt that has a heartbeat to send; from any thread.
        deliver_last: Takes one whose report is ready, by what does nothing else afterwards.
        on_error: Told a bug; from any thread.
        metric_meter: For `activity.metric_meter`.
        lender: The service loop, if it may run quick calls of local activities itself.
        service_loop: Where `start` is called.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        threads: Threads | None,
        processes: Processes | None,
        executor: concurrent.futures.Executor | None,
        data_converter: DataConverter,
        outcomes: Outcomes,
        interceptors: Sequence[Callable[[ActivityInboundInterceptor], ActivityInboundInterceptor]],
        codec: ActivityCodec | None,
        client: Any,
        deliver: Callable[[Attempt], None],
        deliver_last: Callable[[Attempt], None],
        on_error: Callable[[BaseException], None],
        metric_meter: MetricMeter = MetricMeter.noop,
        lender: ServiceLoop | None = None,
        service_loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._loop = loop
        self._threads = threads
        self._processes = processes
        self._executor = executor
        self._payload_converter = data_converter.payload_converter
        self._outcomes = outcomes
        self._interceptors = interceptors
        self._codec = codec
        self._client = client
        self._deliver = deliver
        self._deliver_last = deliver_last
        self._on_error = on_error
        self._metric_meter = metric_meter
        self._meters: dict[tuple[str, str], MetricMeter] = {}
        self._needs_task = bool(interceptors) or codec is not None
        self._quick: QuickCalls | None = None
        if lender is not None and threads is not None:
            submit = functools.partial(threads.submit, self._run_quick_in_thread)
            self._quick = QuickCalls(lender, self._run_in_thread, submit)
        self._has_plain_tasks = type(loop).create_task is asyncio.BaseEventLoop.create_task
        self._base_context = contextvars.copy_context()
        self._shutdown_event = LazyEvent()
        self._async_shutdown_event = asyncio.Event()
        self._shutdown = _CompositeEvent(self._shutdown_event, self._async_shutdown_event)
        wake: Callable[[Callable[[], None]], object] = loop.call_soon_threadsafe
        if isinstance(service_loop, ServiceLoop):
            wake = functools.partial(service_loop.wake_other, loop)
        self._to_start: Inbox[Attempt] = Inbox(wake, self._start_task, on_error)

    # --- called on the service loop -------------------------------------------------------------------------

    def start(self, attempt: Attempt) -> None:
        """Let the attempt run where it belongs."""
        if attempt.definition.is_async or self._needs_task or self._processes is not None:
            self._to_start.put(attempt)
        else:
            assert self._threads is not None, "plain functions have threads, or processes"
            if self._quick is not None and attempt.local is not None:
                self._quick.start(attempt)
            else:
                self._threads.submit(self._run_in_thread, attempt)

    def cancel(self, attempt: Attempt) -> None:
        """Tell a running attempt to stop, for the reasons in its holder."""
        attempt.cancelled_event.set()
        if attempt.definition.is_async:
            self._loop.call_soon_threadsafe(self._cancel_task, attempt)
            return
        # The flag first: whoever gets the means to cancel later looks at it.
        attempt.is_cancel_wanted = True
        if attempt.cancel_in_child is not None:
            attempt.cancel_in_child(attempt.cancellation)
        elif attempt.call is not None and not attempt.definition.no_thread_cancel_exception:
            attempt.call.interrupt()

    def begin_shutdown(self) -> None:
        """Let running attempts see that the worker is about to stop."""
        self._shutdown_event.set()
        if self._processes is not None:
            self._processes.begin_shutdown()
        self._loop.call_soon_threadsafe(self._async_shutdown_event.set)

    # --- on the worker's loop -------------------------------------------------------------------------------

    def _start_task(self, attempt: Attempt) -> None:
        context = self._base_context.copy()
        perform = self._perform_long if self._needs_task or not attempt.definition.is_async else self._perform_async
        loop, work = self._loop, perform(attempt)
        if self._has_plain_tasks and loop.get_task_factory() is None:
            # What the loop would do, in half the time.
            attempt.async_task = asyncio.Task(work, loop=loop, context=context)
        else:
            attempt.async_task = loop.create_task(work, context=context)

    def _cancel_task(self, attempt: Attempt) -> None:
        # The flag first: whoever makes the event later looks at it.
        attempt.is_cancel_wanted = True
        if attempt.async_event is not None:
            attempt.async_event.set()
        task = attempt.async_task
        # A task that has not begun would be cancelled without entering the function; it looks at the flag when it does.
        if task is not None and attempt.has_begun and not attempt.is_returning:
            task.cancel()

    async def _perform_async(self, attempt: Attempt) -> None:
        """The short way of an async function."""
        try:
            attempt.has_begun = True
            if attempt.is_cancel_wanted:
                _cancel_own(attempt)
            _LateContext(functools.partial(self._async_context, attempt)).set()
            args = self._args(attempt, attempt.task.input)
            result = await attempt.definition.fn(*args)
            report: ActivityReport | None = self._outcomes.to_completion(attempt, result)
        except (KeyboardInterrupt, GeneratorExit):
            raise  # The program or the loop ends around it.
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is its outcome
            report = self._report_of(attempt, error)
        self._end(attempt, report)

    def _async_context(self, attempt: Attempt) -> _Context:
        event = attempt.async_event = asyncio.Event()
        if attempt.is_cancel_wanted:
            event.set()
        return self._context(attempt, client=self._client)

    async def _perform_long(self, attempt: Attempt) -> None:
        """The way past codecs, interceptors and process borders."""
        try:
            attempt.has_begun = True
            if attempt.is_cancel_wanted:
                _cancel_own(attempt)
            context = self._async_context(attempt)
            context.set()
            call = await self._prepare_call(attempt, context)
            result = await self._chain(attempt, context).execute_activity(call)
            report: ActivityReport | None = self._outcomes.to_completion(attempt, result)
        except (KeyboardInterrupt, GeneratorExit):
            raise  # The program or the loop ends around it.
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is its outcome
            report = self._report_of(attempt, error)
        attempt.is_returning = True
        if self._codec is not None and report is not None and attempt.local is None:
            report = await self._encode(attempt, report, self._codec)
        self._end(attempt, report)

    async def _prepare_call(self, attempt: Attempt, context: _Context) -> ExecuteActivityInput:
        stored = attempt.task.input
        # A local activity's input has not left this process, nor does its outcome but with its workflow's commands.
        if self._codec is not None and attempt.local is None:
            stored = await self._codec.decode(stored)
            if attempt.task.heartbeat_details:
                beats = await self._codec.decode(attempt.task.heartbeat_details)
                context.info = self._info(attempt, beats)
        headers = {name: from_stored(value) for name, value in (attempt.task.header or {}).items()}
        return ExecuteActivityInput(attempt.definition.fn, self._args(attempt, stored), self._executor, headers)

    async def _encode(self, attempt: Attempt, report: ActivityReport, codec: ActivityCodec) -> ActivityReport | None:
        try:
            return cast(ActivityReport, await codec.encode_report(report))
        except Exception as error:  # noqa: BLE001 - the codec is user code: its error is the outcome
            return self._outcomes.to_codec_report(attempt, error)

    def _report_of(self, attempt: Attempt, error: BaseException) -> ActivityReport | None:
        task = attempt.async_task
        if isinstance(error, SystemExit):
            error = _wrap_exit(error)
        elif isinstance(error, asyncio.CancelledError) and attempt.holder.details is None and _is_cancelled(task):
            # Not by the worker: the loop ends around it.
            attempt.note_cancel(ActivityCancellationDetails(worker_shutdown=True))
        try:
            return self._outcomes.to_report(attempt, error)
        except Exception as bug:  # noqa: BLE001 - an attempt without a report would hold its slot for ever
            self._on_error(bug)
            return None

    def _chain(self, attempt: Attempt, context: _Context) -> ActivityInboundInterceptor:
        inbound: ActivityInboundInterceptor = _Innermost(self, attempt, context)
        for wrap in reversed(self._interceptors):
            inbound = wrap(inbound)
        inbound.init(_InnermostOutbound(context))
        return inbound

    async def call_innermost(self, attempt: Attempt, context: _Context, call: ExecuteActivityInput) -> Any:
        """Call the function, wherever it runs."""
        if attempt.definition.is_async:
            return await call.fn(*call.args)
        if self._processes is not None:
            future = self._processes.call(
                attempt, context.get_info(), call.args, lambda details: self._post_beat(attempt, details)
            )
            return await asyncio.wrap_future(future)
        done: concurrent.futures.Future[Any] = concurrent.futures.Future()
        thread_context = contextvars.copy_context()
        assert self._threads is not None, "plain functions have threads, or processes"
        self._threads.submit(
            _call_into_future, (done, thread_context, self._call_in_thread, attempt, context, call.fn, call.args)
        )
        return await asyncio.wrap_future(done)

    # --- on threads -----------------------------------------------------------------------------------------

    def _run_quick_in_thread(self, attempt: Attempt) -> None:
        assert self._quick is not None, "only what may be quick comes here"
        self._quick.perform(attempt)

    def _run_in_thread(self, attempt: Attempt) -> None:
        try:
            report = self._base_context.copy().run(self._perform_in_thread, attempt)
            self._end(attempt, report)
        except BaseException as error:  # noqa: BLE001 - what is left here is a bug, and must not die with the thread
            self._on_error(error)

    def _perform_in_thread(self, attempt: Attempt) -> ActivityReport | None:
        context = self._context(attempt)
        try:
            args = self._args(attempt, attempt.task.input)
            result = self._call_in_thread(attempt, context, attempt.definition.fn, args)
            return self._outcomes.to_completion(attempt, result)
        except (Exception, CompletesAsync) as error:  # noqa: BLE001 - the outcome of the attempt
            return self._report_of(attempt, error)
        except BaseException as error:  # noqa: BLE001 - SystemExit and the like end the attempt, not the thread
            return self._report_of(attempt, _wrap_exit(error))

    def _call_in_thread(self, attempt: Attempt, context: _Context, fn: Callable[..., Any], args: Sequence[Any]) -> Any:
        call = ThreadCall()
        if not attempt.definition.no_thread_cancel_exception:
            context.shield_thread_cancel_exception = call.shield
        context.set()
        attempt.call = call
        if attempt.is_cancel_wanted and not attempt.definition.no_thread_cancel_exception:
            call.interrupt()
        return call.run(fn, args)

    # --- what the function sees -----------------------------------------------------------------------------

    def _args(self, attempt: Attempt, stored: Payloads) -> Sequence[Any]:
        definition = attempt.definition
        if definition.is_dynamic:
            return (tuple(RawValue(from_stored(payload)) for payload in stored),)
        return decode_arguments(
            self._payload_converter, stored, definition.signature, f"activity {attempt.task.activity_type!r}"
        )

    def _context(self, attempt: Attempt, client: Any | None = None) -> _Context:
        def heartbeat(*details: Any) -> None:
            self._post_beat(attempt, to_stored_payloads(self._payload_converter, details))

        return _Context(
            info=lambda: self._info(attempt, attempt.task.heartbeat_details),
            heartbeat=heartbeat,
            cancelled_event=_CompositeEvent(attempt.cancelled_event, attempt.async_event),
            worker_shutdown_event=self._shutdown,
            cancellation_details=attempt.holder,
            payload_converter=self._payload_converter,
            metric_meter=self._meter_of(attempt.task.activity_type, attempt.task.workflow_type),
            client=client,
        )

    def _meter_of(self, activity_type: str, workflow_type: str) -> MetricMeter:
        if self._metric_meter is MetricMeter.noop:
            return self._metric_meter
        found = self._meters.get((activity_type, workflow_type))
        if found is None:
            found = self._meters[activity_type, workflow_type] = self._metric_meter.with_additional_attributes(
                {"activity_type": activity_type, "workflow_type": workflow_type}
            )
        return found

    def _post_beat(self, attempt: Attempt, details: Payloads) -> None:
        attempt.beat_details = details
        if not attempt.is_beat_posted and not attempt.is_over:
            attempt.is_beat_posted = True
            self._deliver(attempt)

    def _end(self, attempt: Attempt, report: ActivityReport | None) -> None:
        attempt.report = report
        attempt.has_ended = True
        # Task and attempt refer to each other through the context; apart, they need no cycle collector.
        attempt.async_task = None
        # One that was abandoned has been reported already, and its worker may be gone.
        if not attempt.is_over:
            try:
                self._deliver_last(attempt)
            except RuntimeError as error:
                self._on_error(error)

    def _info(self, attempt: Attempt, heartbeat_details: Payloads) -> Info:
        task = attempt.task
        token = task.token
        started = task.started_time or _EPOCH
        scheduled = task.scheduled_time or started
        if attempt.local is not None:
            scheduled, started = attempt.local.times()
        return Info(
            activity_id=task.activity_id,
            activity_type=task.activity_type,
            attempt=task.attempt,
            idempotency_key=attempt.local.make_key() if attempt.local is not None else task.idempotency_key,
            current_attempt_scheduled_time=(
                task.current_attempt_scheduled_time or (started if attempt.local is not None else scheduled)
            ),
            heartbeat_details=(
                from_stored_payloads(self._payload_converter, heartbeat_details, None) if heartbeat_details else ()
            ),
            heartbeat_timeout=task.heartbeat_timeout or None,
            is_local=attempt.local is not None,
            namespace=token.namespace,
            schedule_to_close_timeout=task.schedule_to_close_timeout or None,
            scheduled_time=scheduled,
            start_to_close_timeout=task.start_to_close_timeout or None,
            started_time=started,
            task_queue=task.task_queue,
            task_token=self._outcomes.encode_token(token),
            workflow_id=token.workflow_id,
            workflow_run_id=token.run_id,
            workflow_type=task.workflow_type,
            priority=task.priority or Priority(),
            retry_policy=task.retry_policy,
        )


@final
class _Innermost(ActivityInboundInterceptor):
    """The end of the inbound chain: the call itself."""

    def __init__(self, calls: ActivityCalls, attempt: Attempt, context: _Context) -> None:
        self._calls = calls
        self._attempt = attempt
        self._context = context

    def init(self, outbound: ActivityOutboundInterceptor) -> None:
        context = self._context
        if not isinstance(outbound, _InnermostOutbound):
            context.info = outbound.info
            context.heartbeat = outbound.heartbeat

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        return await self._calls.call_innermost(self._attempt, self._context, input)


@final
class _InnermostOutbound(ActivityOutboundInterceptor):
    """The end of the outbound chain: what the context did before it was wrapped."""

    def __init__(self, context: _Context) -> None:
        self._info = context.info
        self._heartbeat = context.heartbeat
        self._made: Info | None = None

    def info(self) -> Info:
        if self._made is None:
            self._made = self._info if isinstance(self._info, Info) else self._info()
        return self._made

    def heartbeat(self, *details: Any) -> None:
        self._heartbeat(*details)


def _cancel_own(attempt: Attempt) -> None:
    """It was told to stop before it began."""
    assert attempt.async_task is not None, "the task is noted before it begins"
    attempt.async_task.cancel()


def _call_into_future(job: tuple[Any, ...]) -> None:
    done, context, function, *args = job
    try:
        result = context.run(function, *args)
    except BaseException as error:  # noqa: BLE001 - carried to whoever awaits the future
        done.set_exception(error if isinstance(error, (Exception, CompletesAsync)) else _wrap_exit(error))
    else:
        done.set_result(result)


def _is_cancelled(task: asyncio.Task[Any] | None) -> bool:
    return task is not None and task.cancelling() > 0


def _wrap_exit(error: BaseException) -> ApplicationError:
    wrapped = ApplicationError(
        f"The activity raised {type(error).__name__}, which would end the process: {error}. "
        "Return, or raise an Exception, to end an activity.",
        type=type(error).__name__,
    )
    wrapped.__cause__ = error
    return wrapped
