"""Attempts of activities: async and threads; outcomes, cancellation, heartbeats, shutdown."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import threading
import time
from datetime import timedelta
from typing import Any

import pytest

from clew import activity
from clew.common import RawValue
from clew.converter import DataConverter, PayloadCodec
from clew.exceptions import ApplicationError, CancelledError
from clew.model.inputs import ActivityCancelReason
from clew.model.payload import Payload, from_stored
from clew.model.rejection import RejectionCode
from clew.service.requests import HeartbeatActivityResponse
from clew.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor
from tests.unit.worker.fakes import activity_task, refusal, until
from tests.unit.worker.harness import running

PAYLOADS = DataConverter.default.payload_converter
tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="none")


def stored(*values: Any) -> Any:
    return tuple(PAYLOADS.to_stored(value) for value in values)


def value_of(request: Any) -> Any:
    (payload,) = request.result
    return PAYLOADS.from_stored(payload)


@activity.defn
async def greet(name: str, times: int = 1) -> str:
    return " ".join([f"hello {name}"] * times)


@activity.defn
def greet_in_thread(name: str) -> str:
    return f"{name} on {threading.current_thread().name}"


@activity.defn
async def fail_async(message: str) -> None:
    raise ApplicationError(message, 1, type="Bad")


@activity.defn
async def sleep_async() -> str:
    try:
        await asyncio.sleep(30)
    except asyncio.CancelledError:
        assert activity.is_cancelled()
        raise
    return "slept"


@activity.defn
def sleep_in_thread() -> str:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        time.sleep(0.005)
    return "slept"


async def test_async_and_thread_activities_complete() -> None:
    async with running([greet, greet_in_thread]) as rig:
        await rig.offer(activity_task("greet", input=stored("ann", 2)))
        assert value_of(await rig.result_of("complete_activity")) == "hello ann hello ann"
        await rig.offer(activity_task("greet_in_thread", lease_id=2, input=stored("bob")))
        requests = await rig.result_of("complete_activity", 2)
        assert value_of(requests[1]).startswith("bob on clew-activity-")
        (session,) = rig.service.sessions
        await until(lambda: session.activity_credits == 102, "both slots")
        assert sorted(session.hello.activity_types) == ["greet", "greet_in_thread"]
        assert session.hello.takes_workflow_tasks is False


async def test_an_error_is_reported_as_a_failure_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async with running([fail_async]) as rig:
        await rig.offer(activity_task("fail_async", input=stored("no luck")))
        request = await rig.result_of("fail_activity")
    assert request.failure.message == "no luck"
    assert request.failure.info.type == "Bad"
    assert sum("activity.failed" in record.getMessage() for record in caplog.records) == 1


async def test_wrong_arguments_fail_the_attempt_and_name_the_function() -> None:
    async with running([greet]) as rig:
        await rig.offer(activity_task("greet"))
        request = await rig.result_of("fail_activity")
    assert "greet()" in request.failure.message


async def test_an_unknown_type_is_released_unused() -> None:
    async with running([greet]) as rig:
        await rig.offer(activity_task("unheard_of"))
        request = await rig.result_of("release_activity")
        assert "'unheard_of' is not registered with this worker; it has: greet" in request.reason
        await until(lambda: rig.service.sessions[0].activity_credits == 101, "the slot")


async def test_a_dynamic_activity_takes_every_type() -> None:
    @activity.defn(dynamic=True)
    async def anything(args: Any) -> str:
        assert isinstance(args[0], RawValue)
        return f"{activity.info().activity_type}:{activity.payload_converter().from_payload(args[0].payload)}"

    async with running([greet, anything]) as rig:
        assert rig.service.sessions[0].hello.activity_types is None
        await rig.offer(activity_task("unheard_of", input=stored(7)))
        assert value_of(await rig.result_of("complete_activity")) == "unheard_of:7"


async def test_completing_elsewhere_detaches_the_attempt() -> None:
    @activity.defn
    async def later() -> None:
        activity.raise_complete_async()

    async with running([later]) as rig:
        task = activity_task("later")
        await rig.offer(task)
        assert await rig.result_of("detach_activity") == task.token
        assert rig.service.of("complete_activity") == []


@pytest.mark.parametrize("function", [sleep_async, sleep_in_thread], ids=["async", "thread"])
async def test_a_requested_cancel_arrives_at_once_and_is_reported(function: Any) -> None:
    async with running([function]) as rig:
        task = activity_task(function.__name__)
        await rig.offer(task)
        began = time.monotonic()
        await rig.cancel(task, ActivityCancelReason.CANCEL_REQUESTED)
        request = await rig.result_of("cancel_activity")
    assert request.token == task.token
    assert time.monotonic() - began < 1


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_what_an_activity_does_with_its_cancellation_is_its_outcome(kind: str) -> None:
    @activity.defn(name="cleanup")
    async def cleanup_async() -> str:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            details = activity.cancellation_details()
            assert details is not None
            assert details.cancel_requested
        return "done anyway"

    @activity.defn(name="cleanup")
    def cleanup_in_thread() -> str:
        try:
            sleep_in_thread()
        except CancelledError:
            assert activity.is_cancelled()
        return "done anyway"

    async with running([cleanup_async if kind == "async" else cleanup_in_thread]) as rig:
        task = activity_task("cleanup")
        await rig.offer(task)
        await rig.cancel(task, ActivityCancelReason.CANCEL_REQUESTED)
        assert value_of(await rig.result_of("complete_activity")) == "done anyway"


async def test_a_shielded_block_is_not_interrupted() -> None:
    entered, go_on = threading.Event(), threading.Event()
    seen: list[str] = []

    @activity.defn
    def shielded() -> None:
        with activity.shield_thread_cancel_exception():
            entered.set()
            assert go_on.wait(10)
            seen.append("inside")
        seen.append("after")

    async with running([shielded]) as rig:
        task = activity_task("shielded")
        await rig.offer(task)
        await until(entered.is_set, "the block")
        await rig.cancel(task, ActivityCancelReason.CANCEL_REQUESTED)
        go_on.set()
        await rig.result_of("cancel_activity")
    assert seen == ["inside"]


async def test_without_the_exception_a_thread_asks_for_itself() -> None:
    @activity.defn(no_thread_cancel_exception=True)
    def asks() -> str:
        activity.wait_for_cancelled_sync(timeout=10)
        return f"cancelled={activity.is_cancelled()}"

    async with running([asks]) as rig:
        task = activity_task("asks")
        await rig.offer(task)
        await rig.cancel(task, ActivityCancelReason.CANCEL_REQUESTED)
        assert value_of(await rig.result_of("complete_activity")) == "cancelled=True"


async def test_nothing_is_reported_of_an_attempt_that_the_engine_gave_up() -> None:
    async with running([sleep_async, greet]) as rig:
        task = activity_task("sleep_async")
        await rig.offer(task)
        await rig.cancel(task, ActivityCancelReason.TIMED_OUT)
        await until(lambda: rig.service.sessions[0].activity_credits == 101, "the slot")
    assert [name for name, _ in rig.service.calls] == []


async def test_context_variables_do_not_leak_between_attempts() -> None:
    @activity.defn
    def leave() -> None:
        tenant.set("leak")

    @activity.defn
    def read() -> str:
        return tenant.get()

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        async with running([leave, read], activity_executor=pool, max_concurrent_activities=1) as rig:
            await rig.offer(activity_task("leave"))
            await rig.result_of("complete_activity")
            await rig.offer(activity_task("read", lease_id=2))
            requests = await rig.result_of("complete_activity", 2)
    assert value_of(requests[1]) == "none"


async def test_no_more_plain_activities_are_taken_than_there_are_threads(caplog: pytest.LogCaptureFixture) -> None:
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        async with running([greet, greet_in_thread], activity_executor=pool, max_concurrent_activities=10) as rig:
            mine, blocking = rig.service.sessions
            assert (mine.hello.activity_types, mine.activity_credits) == (("greet",), 8)
            assert (blocking.hello.activity_types, blocking.activity_credits) == (("greet_in_thread",), 2)
            assert blocking.hello.takes_workflow_tasks is False
    assert "worker.threads_fewer_than_slots" in caplog.text


# --- heartbeats ------------------------------------------------------------------------------------------


@activity.defn
async def beat_for(seconds: float, every: float) -> str:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    n = 0
    while loop.time() < deadline:
        n += 1
        activity.heartbeat(n)
        await asyncio.sleep(every)
    return f"{n} beats"


async def test_heartbeats_are_throttled_and_carry_the_latest_details() -> None:
    async with running([beat_for]) as rig:
        await rig.offer(
            activity_task("beat_for", input=stored(0.6, 0.01), heartbeat_timeout=timedelta(milliseconds=250))
        )
        await rig.result_of("complete_activity")
    details = [PAYLOADS.from_stored(request.details[0]) for request in rig.service.of("heartbeat_activity")]
    assert 2 <= len(details) <= 4
    assert details[0] == 1
    assert details == sorted(details)


async def test_heartbeats_get_through_a_passing_fault() -> None:
    async with running([beat_for]) as rig:
        rig.service.faults["heartbeat_activity"] = [refusal(RejectionCode.UNAVAILABLE)] * 2
        await rig.offer(activity_task("beat_for", input=stored(0.5, 0.02), heartbeat_timeout=timedelta(seconds=2)))
        await rig.result_of("complete_activity")
        assert rig.service.of("heartbeat_activity")


async def test_an_attempt_out_of_reach_is_told_by_the_worker_s_own_clock() -> None:
    seen: list[Any] = []

    @activity.defn
    async def beats() -> None:
        try:
            await beat_for(20, 0.02)
        except asyncio.CancelledError:
            seen.append(activity.cancellation_details())
            raise

    async with running([beats]) as rig:
        rig.service.faults["heartbeat_activity"] = [refusal(RejectionCode.UNAVAILABLE)]
        rig.service.are_faults_endless = True
        await rig.offer(activity_task("beats", heartbeat_timeout=timedelta(milliseconds=300)))
        await rig.result_of("fail_activity")
    assert seen[0].timed_out


async def test_a_heartbeat_of_an_unknown_attempt_ends_it() -> None:
    seen: list[Any] = []

    @activity.defn
    async def beats() -> None:
        try:
            await beat_for(20, 0.02)
        except asyncio.CancelledError:
            seen.append(activity.cancellation_details())
            raise

    async with running([beats]) as rig:
        rig.service.faults["heartbeat_activity"] = [refusal(RejectionCode.ACTIVITY_NOT_FOUND)]
        await rig.offer(activity_task("beats", heartbeat_timeout=timedelta(seconds=5)))
        await until(lambda: seen, "the cancellation")
    assert seen[0].not_found
    assert rig.service.of("fail_activity") == []


async def test_a_heartbeat_s_answer_can_cancel() -> None:
    async with running([beat_for]) as rig:
        rig.service.heartbeat_answers.append(HeartbeatActivityResponse(cancel_requested=True))
        await rig.offer(activity_task("beat_for", input=stored(20, 0.02), heartbeat_timeout=timedelta(seconds=5)))
        await rig.result_of("cancel_activity")


async def test_unsent_details_go_with_the_failure() -> None:
    @activity.defn
    async def beat_and_fail() -> None:
        for n in range(5):
            activity.heartbeat(n)
            await asyncio.sleep(0.01)
        raise ValueError("no")

    async with running([beat_and_fail]) as rig:
        await rig.offer(activity_task("beat_and_fail", heartbeat_timeout=timedelta(seconds=30)))
        request = await rig.result_of("fail_activity")
    assert [PAYLOADS.from_stored(payload) for payload in request.last_heartbeat_details] == [4]


async def test_an_unconvertible_detail_is_an_error_at_the_call() -> None:
    @activity.defn
    async def beats() -> str:
        try:
            activity.heartbeat(object())
        except Exception as error:  # noqa: BLE001 - its kind is the converter's affair
            return type(error).__name__
        return "no error"

    async with running([beats]) as rig:
        await rig.offer(activity_task("beats"))
        assert value_of(await rig.result_of("complete_activity")) == "EncodeError"


# --- reports ---------------------------------------------------------------------------------------------


async def test_a_result_is_sent_until_it_is_taken_and_the_function_runs_once() -> None:
    runs: list[int] = []

    @activity.defn
    async def once() -> int:
        runs.append(1)
        return 1

    async with running([once]) as rig:
        rig.service.faults["complete_activity"] = [refusal(RejectionCode.UNAVAILABLE)] * 3
        await rig.offer(activity_task("once"))
        await rig.result_of("complete_activity")
    assert runs == [1]


async def test_a_late_result_is_one_info_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "clew.worker.activity")
    async with running([greet]) as rig:
        rig.service.faults["complete_activity"] = [refusal(RejectionCode.ACTIVITY_NOT_FOUND, "too late")]
        await rig.offer(activity_task("greet", input=stored("ann")))
        await until(lambda: "activity.result_refused" in caplog.text, "the line")
    records = [record for record in caplog.records if record.name == "clew.worker.activity"]
    assert [record.levelname for record in records] == ["INFO"]


async def test_a_result_that_is_too_large_fails_for_good_and_says_so() -> None:
    @activity.defn
    async def large() -> str:
        return "x" * 3_000_000

    async with running([large]) as rig:
        await rig.offer(activity_task("large"))
        request = await rig.result_of("fail_activity")
    assert "3,000,002 bytes; the limit is 2,097,152" in request.failure.message
    assert request.failure.info.non_retryable


# --- interceptors, codecs --------------------------------------------------------------------------------


class Shouting(Interceptor):
    """Sets a variable around each call and changes the result."""

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        class Inbound(ActivityInboundInterceptor):
            async def execute_activity(self, input: ExecuteActivityInput) -> Any:
                tenant.set(PAYLOADS.from_payload(input.headers["tenant"]))
                return str(await self.next.execute_activity(input)).upper()

        return Inbound(next)


@activity.defn
async def tenant_async() -> str:
    return f"async {tenant.get()}"


@activity.defn
def tenant_in_thread() -> str:
    return f"thread {tenant.get()} {activity.info().activity_id}"


async def test_interceptors_wrap_async_and_thread_activities() -> None:
    header = {"tenant": PAYLOADS.to_stored("x")}
    async with running([tenant_async, tenant_in_thread], interceptors=[Shouting()]) as rig:
        await rig.offer(activity_task("tenant_async", header=header))
        assert value_of(await rig.result_of("complete_activity")) == "ASYNC X"
        await rig.offer(activity_task("tenant_in_thread", lease_id=2, header=header))
        requests = await rig.result_of("complete_activity", 2)
        assert value_of(requests[1]) == "THREAD X TENANT_IN_THREAD-2"


async def test_a_thread_behind_an_interceptor_can_be_cancelled() -> None:
    async with running([sleep_in_thread], interceptors=[Shouting()]) as rig:
        task = activity_task("sleep_in_thread", header={"tenant": PAYLOADS.to_stored("x")})
        await rig.offer(task)
        await rig.cancel(task, ActivityCancelReason.CANCEL_REQUESTED)
        await rig.result_of("cancel_activity")


class Reversing(PayloadCodec):
    """Turns data round."""

    async def encode(self, payloads: Any) -> list[Payload]:
        return [Payload({"encoding": b"reversed"}, payload.data[::-1]) for payload in payloads]

    async def decode(self, payloads: Any) -> list[Payload]:
        return [Payload({"encoding": b"json/plain"}, payload.data[::-1]) for payload in payloads]


async def test_a_codec_stands_between_values_and_service() -> None:
    from clew.model.payload import to_stored

    hidden = to_stored(Payload({"encoding": b"reversed"}, b'"ann"'[::-1]))
    async with running([greet, fail_async], data_converter=DataConverter(payload_codec=Reversing())) as rig:
        await rig.offer(activity_task("greet", input=(hidden,)))
        request = await rig.result_of("complete_activity")
        assert from_stored(request.result[0]).data == b'"hello ann"'[::-1]
        await rig.offer(activity_task("fail_async", lease_id=2, input=(hidden,)))
        failed = await rig.result_of("fail_activity")
        assert from_stored(failed.failure.info.details[0]).metadata == {"encoding": b"reversed"}


# --- the end ---------------------------------------------------------------------------------------------


async def test_shutdown_lets_running_activities_finish_and_takes_no_more() -> None:
    @activity.defn
    async def notices() -> str:
        await activity.wait_for_worker_shutdown()
        await asyncio.sleep(0.1)
        return f"shutdown={activity.is_worker_shutdown()} cancelled={activity.is_cancelled()}"

    async with running([notices, greet], graceful_shutdown_timeout=timedelta(seconds=10)) as rig:
        await rig.offer(activity_task("notices"))
        stopping = asyncio.ensure_future(rig.worker.shutdown())
        (session,) = rig.service.sessions
        await until(lambda: not session.is_polling, "the end of polling")
        await rig.offer(activity_task("greet", lease_id=2, input=stored("late")))
        await stopping
        assert session.is_detached
    assert value_of(await rig.result_of("complete_activity")) == "shutdown=True cancelled=False"
    assert len(rig.service.of("release_activity")) == 1
    assert rig.worker.is_shutdown
    assert not rig.worker.is_running


@pytest.mark.parametrize("function", [sleep_async, sleep_in_thread], ids=["async", "thread"])
async def test_after_the_grace_time_the_rest_is_cancelled_and_given_up(function: Any) -> None:
    async with running([function], graceful_shutdown_timeout=timedelta(milliseconds=100)) as rig:
        await rig.offer(activity_task(function.__name__))
        began = time.monotonic()
        await rig.worker.shutdown()
        assert 0.1 <= time.monotonic() - began < 2
    request = await rig.result_of("fail_activity")
    assert request.failure.info.type == "WorkerShutdown"
    assert not request.failure.info.non_retryable


async def test_an_activity_that_does_not_stop_does_not_hold_up_the_worker(caplog: pytest.LogCaptureFixture) -> None:
    release = threading.Event()

    @activity.defn
    def deaf() -> None:
        release.wait(20)

    async with running([deaf]) as rig:
        await rig.offer(activity_task("deaf"))
        began = time.monotonic()
        await rig.worker.shutdown()
        assert time.monotonic() - began < 2
    release.set()
    assert (await rig.result_of("fail_activity")).failure.info.type == "WorkerShutdown"
    assert "activity.abandoned" in caplog.text


async def test_a_second_shutdown_cuts_the_grace_time_short() -> None:
    async with running([sleep_async], graceful_shutdown_timeout=timedelta(seconds=25)) as rig:
        await rig.offer(activity_task("sleep_async"))
        first = asyncio.ensure_future(rig.worker.shutdown())
        await until(lambda: not rig.service.sessions[0].is_polling, "the end of polling")
        assert not first.done()
        await rig.worker.shutdown()
        await first
    assert (await rig.result_of("fail_activity")).failure.info.type == "WorkerShutdown"


async def test_a_loop_that_is_blocked_is_reported_with_the_blocker(caplog: pytest.LogCaptureFixture) -> None:
    @activity.defn
    async def blocks() -> None:
        time.sleep(1.8)

    @activity.defn
    def beats_in_thread() -> int:
        for n in range(100):
            activity.heartbeat(n)
            time.sleep(0.02)
        return 100

    async with running([blocks, beats_in_thread]) as rig:
        await rig.offer(
            activity_task("beats_in_thread", lease_id=2, heartbeat_timeout=timedelta(milliseconds=500)),
            activity_task("blocks"),
        )
        requests = await rig.result_of("complete_activity", 2)
        assert {request.token.lease_id for request in requests} == {1, 2}
        assert len(rig.service.of("heartbeat_activity")) >= 4
    line = next(record.getMessage() for record in caplog.records if "loop_blocked" in record.getMessage())
    assert "activity blocks" in line
    assert "time.sleep(1.8)" in line


async def test_a_bug_in_the_worker_ends_it_with_the_error() -> None:
    async def told(error: BaseException) -> None:
        seen.append(error)

    seen: list[BaseException] = []
    with pytest.raises(AssertionError, match="without workflows"):  # noqa: PT012 - the block is what is ended
        async with running([greet], on_fatal_error=told) as rig:
            await rig.connection.on_service_loop(
                lambda: rig.service.sessions[0].sink.offer_workflow_task(None)  # type: ignore[arg-type]
            )
            await asyncio.sleep(20)
    assert len(seen) == 1


async def test_a_closed_connection_ends_the_worker() -> None:
    with pytest.raises(RuntimeError, match="was closed while it was needed"):  # noqa: PT012 - the block is ended
        async with running([greet]) as rig:
            rig.connection.is_closed = True
            await asyncio.sleep(20)
