"""Definitions of activities, and the functions that speak to the running attempt."""

from __future__ import annotations

import asyncio
import logging
import pickle
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from clew import activity
from clew.activity import _CancellationDetailsHolder, _CompositeEvent, _Definition
from clew.activity._context import _Context
from clew.common import MetricMeter, RawValue
from clew.converter import PayloadConverter


@activity.defn
async def pay(amount: int, to: str) -> bool:
    return True


@activity.defn(name="print", no_thread_cancel_exception=True)
def print_letter(text: str) -> None: ...


@activity.defn(dynamic=True)
async def anything(args: Sequence[RawValue]) -> None: ...


class Mailer:
    @activity.defn
    async def send(self, to: str) -> int:
        return 1

    @activity.defn(name="call")
    def __call__(self, to: str) -> int:
        return 2


INFO = activity.Info(
    activity_id="pay-1",
    activity_type="pay",
    attempt=2,
    idempotency_key="abc",
    current_attempt_scheduled_time=datetime(2024, 1, 1, tzinfo=UTC),
    heartbeat_details=[5],
    heartbeat_timeout=timedelta(seconds=5),
    namespace="default",
    scheduled_time=datetime(2024, 1, 1, tzinfo=UTC),
    started_time=datetime(2024, 1, 1, tzinfo=UTC),
    task_queue="q",
    task_token=b"t",
    workflow_id="w",
    workflow_run_id="r",
    workflow_type="W",
)


def make_context(**changes: Any) -> _Context:
    parts: dict[str, Any] = {
        "info": lambda: INFO,
        "heartbeat": lambda *details: None,
        "cancelled_event": _CompositeEvent(threading.Event(), asyncio.Event()),
        "worker_shutdown_event": _CompositeEvent(threading.Event()),
        "cancellation_details": _CancellationDetailsHolder(),
        "payload_converter": PayloadConverter.default,
    }
    return _Context(**{**parts, **changes})


def test_what_a_definition_knows() -> None:
    definition = _Definition.must_from_callable(pay)
    assert (definition.name, definition.is_async, definition.fn) == ("pay", True, pay)
    assert definition.arg_types == (int, str)
    assert definition.ret_type is bool
    definition = _Definition.must_from_callable(print_letter)
    assert (definition.name, definition.is_async, definition.no_thread_cancel_exception) == ("print", False, True)
    assert _Definition.must_from_callable(anything).is_dynamic


def test_methods_are_bound_to_their_object() -> None:
    mailer = Mailer()
    definition = _Definition.must_from_callable(mailer.send)
    assert definition.fn == mailer.send
    assert definition.arg_types == (str,)
    assert _Definition.must_from_callable(Mailer.send).arg_types == (str,)
    definition = _Definition.must_from_callable(mailer)
    assert (definition.name, definition.fn("x"), definition.arg_types) == ("call", 2, (str,))


def test_what_is_no_activity() -> None:
    def other() -> None: ...

    assert _Definition.from_callable(other) is None
    with pytest.raises(TypeError, match=r"other is not an activity\. Decorate it with @activity\.defn"):
        _Definition.must_from_callable(other)


def test_bad_definitions_are_refused_at_the_decorator() -> None:
    with pytest.raises(ValueError, match="name and be dynamic"):
        activity.defn(name="x", dynamic=True)
    with pytest.raises(ValueError, match="empty"):
        activity.defn(name="")
    with pytest.raises(ValueError, match="already"):
        activity.defn(pay)
    with pytest.raises(TypeError, match="keyword-only"):

        @activity.defn
        async def keyword(*, a: int) -> None: ...

    with pytest.raises(TypeError, match="generator"):

        @activity.defn
        def generator() -> Iterator[int]:
            yield 1

    with pytest.raises(TypeError, match="one parameter"):

        @activity.defn(dynamic=True)
        def dynamic() -> None: ...

    with pytest.raises(TypeError, match="functions"):
        activity.defn(Mailer)


def test_outside_of_an_activity_everything_says_so() -> None:
    assert not activity.in_activity()
    for call in (activity.info, activity.heartbeat, activity.is_cancelled, activity.raise_complete_async):
        with pytest.raises(RuntimeError, match="Not in an activity"):
            call()


def test_the_functions_reach_the_context() -> None:
    beats: list[tuple[Any, ...]] = []
    cancelled, shutdown = threading.Event(), threading.Event()
    context = make_context(
        heartbeat=lambda *details: beats.append(details),
        cancelled_event=_CompositeEvent(cancelled),
        worker_shutdown_event=_CompositeEvent(shutdown),
    )
    with context.activate():
        assert activity.in_activity()
        assert activity.info() is INFO
        assert activity.info() is activity.info()
        activity.heartbeat(1, "a")
        assert beats == [(1, "a")]
        assert not activity.is_cancelled()
        activity.wait_for_cancelled_sync(timedelta(0))
        assert activity.cancellation_details() is None
        context.cancellation_details.details = activity.ActivityCancellationDetails(paused=True)
        cancelled.set()
        activity.wait_for_cancelled_sync()
        assert activity.is_cancelled()
        assert activity.cancellation_details() == activity.ActivityCancellationDetails(paused=True)
        shutdown.set()
        activity.wait_for_worker_shutdown_sync(0.5)
        assert activity.is_worker_shutdown()
        assert activity.payload_converter() is PayloadConverter.default
        assert activity.metric_meter() is MetricMeter.noop
        activity.metric_meter().create_counter("n").add(1)
        with activity.shield_thread_cancel_exception():
            pass
        with pytest.raises(RuntimeError, match="event loop"):
            activity.client()
    assert not activity.in_activity()


def test_the_shield_of_the_worker_is_used() -> None:
    steps: list[str] = []

    @contextmanager
    def shield() -> Iterator[None]:
        steps.append("in")
        yield
        steps.append("out")

    with make_context(shield_thread_cancel_exception=shield).activate(), activity.shield_thread_cancel_exception():
        steps.append("body")
    assert steps == ["in", "body", "out"]


def test_completing_elsewhere_is_not_caught_by_handlers_of_exceptions() -> None:
    with make_context().activate(), pytest.raises(activity._CompleteAsyncError) as caught:
        activity.raise_complete_async()
    assert not isinstance(caught.value, Exception)


async def test_waiting_in_async_activities() -> None:
    event = asyncio.Event()
    context = make_context(cancelled_event=_CompositeEvent(threading.Event(), event))
    with context.activate():
        waiting = asyncio.create_task(activity.wait_for_cancelled())
        event.set()
        await asyncio.wait_for(waiting, 5)
        with pytest.raises(RuntimeError, match="_sync"):
            await activity.wait_for_worker_shutdown()


def test_info_crosses_a_process_border() -> None:
    assert pickle.loads(pickle.dumps(INFO)) == INFO
    assert INFO.workflow_namespace == "default"


def test_log_lines_name_the_attempt(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="clew.activity"):
        activity.logger.info("outside")
        with make_context().activate():
            activity.logger.info("inside %s", 5, extra={"mine": 1})
    outside, inside = caplog.records
    assert outside.getMessage() == "outside"
    assert inside.getMessage().startswith("inside 5 (")
    assert "'activity_id': 'pay-1'" in inside.getMessage()
    assert inside.__dict__["activity"]["attempt"] == 2
    assert inside.__dict__["mine"] == 1
