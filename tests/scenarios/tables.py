"""Reads and runs scenario tables: text files that say, input by input, which events and effects follow.

A file holds scenarios. Each begins with ``== its title``, then come steps:

    @ +10s                        the clock moves on
    > verb arguments              one input (the verbs are `_VERBS` below)
    7 TimerFired timer_id=t1      an event it makes, with any attributes worth checking
    ! WorkflowTaskReady attempt=1 an effect it asks for
    = activity_not_found          the code by which it is refused, or which the caller gets
    ? status=Running              facts of the state afterwards, or of the answer (reply.…)
    # text                        a remark

The events and effects of a step are given whole: one that is not listed fails the scenario.
"""

from __future__ import annotations

import enum
import re
import shlex
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from clew.core import decisions as d
from clew.core.transition import Transition
from clew.model import commands as c
from clew.model import events as e
from clew.model import inputs as i
from clew.model.failure import ApplicationInfo, Failure
from clew.model.policies import ParentClosePolicy, RetryPolicy
from clew.model.rejection import Rejection
from tests.scenarios.driver import NAMESPACE, T0, Driver

_UNITS = {"ms": timedelta(milliseconds=1), "s": timedelta(seconds=1), "m": timedelta(minutes=1),
          "h": timedelta(hours=1), "d": timedelta(days=1)}  # fmt: skip


def duration(text: str) -> timedelta:
    parts = re.findall(r"([\d.]+)(ms|s|m|h|d)", text)
    assert "".join(n + u for n, u in parts) == text, f"not a duration: {text}"
    return sum((float(number) * _UNITS[unit] for number, unit in parts), timedelta())


class Step(NamedTuple):
    line: int
    text: str
    expectations: list[tuple[int, str]]


class Scenario(NamedTuple):
    title: str
    steps: list[Step]


def read(path: Path) -> list[Scenario]:
    scenarios: list[Scenario] = []
    for number, raw in enumerate(path.read_text().splitlines(), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        if line.startswith("== "):
            scenarios.append(Scenario(line[3:], []))
        elif line[0] in ">@":
            scenarios[-1].steps.append(Step(number, line, []))
        else:
            scenarios[-1].steps[-1].expectations.append((number, line))
    return scenarios


def run(scenario: Scenario, path: Path) -> None:
    driver = Driver()
    for step in scenario.steps:
        where = f"{path.name}:{step.line}: {step.text}"
        if step.text[0] == "@":
            driver.advance(duration(step.text[1:].strip().removeprefix("+")))
            continue
        answer = _run_step(driver, step.text[1:].strip())
        _check(driver, answer, step, where)


def _run_step(driver: Driver, text: str) -> Transition | Rejection:
    head, _, tail = text.partition(":")
    verb, *words = shlex.split(head)
    flags = {word for word in words if "=" not in word}
    options = dict(word.split("=", 1) for word in words if "=" in word)
    answer = _VERBS[verb](driver, [w for w in words if "=" not in w], options, tail.strip(), flags)
    return driver.last if answer is None else answer  # type: ignore[return-value]


# --- expectations ----------------------------------------------------------------------------------------------------


def _check(driver: Driver, answer: Transition | Rejection, step: Step, where: str) -> None:
    codes = [line[1:].strip() for _, line in step.expectations if line[0] == "="]
    refusal = answer if isinstance(answer, Rejection) else answer.reply
    got = [refusal.code.value] if isinstance(refusal, Rejection) else []
    assert got == codes, f"{where}\n  answered {got}: {getattr(refusal, 'message', '')}, expected {codes}"
    events, effects = (answer.events, answer.effects) if isinstance(answer, Transition) else ([], [])
    wanted_events = [line for _, line in step.expectations if line[0].isdigit()]
    wanted_effects = [line[1:].strip() for _, line in step.expectations if line[0] == "!"]
    shown = "".join(f"\n    {event.event_id} {type(event).__name__}" for event in events)
    shown += "".join(f"\n    ! {effect}" for effect in effects)
    assert len(events) == len(wanted_events), f"{where}\n  made{shown}\n  expected {wanted_events}"
    for event, wanted in zip(events, wanted_events, strict=True):
        number, name, *attributes = shlex.split(wanted)
        assert (event.event_id, type(event).__name__) == (int(number), name), f"{where}\n  made{shown}\n  not {wanted}"
        _check_attributes(event, attributes, f"{where}\n  {wanted}")
    assert [type(effect).__name__ for effect in effects] == [w.split()[0] for w in wanted_effects], (
        f"{where}\n  asked for{shown}\n  expected {wanted_effects}"
    )
    for effect, wanted in zip(effects, wanted_effects, strict=True):
        _check_attributes(effect, shlex.split(wanted)[1:], f"{where}\n  ! {wanted}")
    for _, line in step.expectations:
        if line[0] == "?":
            facts = shlex.split(line[1:])
            of_answer = [fact for fact in facts if fact.startswith("reply.")]
            _check_attributes(answer, of_answer, f"{where}\n  {line}")
            _check_attributes(driver.state, [f for f in facts if f not in of_answer], f"{where}\n  {line}")


def _check_attributes(subject: Any, attributes: list[str], where: str) -> None:
    for attribute in attributes:
        path, _, wanted = attribute.partition("=")
        value = subject
        for name in path.split("."):
            if isinstance(value, dict):
                value = next(iter(value.values())) if name == "*" else value[int(name) if name.isdigit() else name]
            elif isinstance(value, list | tuple):
                value = value[int(name)]
            else:
                value = getattr(value, name)
        if callable(value):
            value = value()
        assert _same(value, wanted), f"{where}\n  {path} is {_shown(value)}, expected {wanted}"


def _same(value: Any, wanted: str) -> bool:
    if isinstance(value, timedelta):
        return value == duration(wanted)
    if isinstance(value, str) and wanted.startswith("~"):
        return wanted[1:] in value
    return _shown(value) == wanted


def _shown(value: Any) -> str:
    if isinstance(value, datetime):
        return f"+{(value - T0).total_seconds():g}s"
    if isinstance(value, enum.Enum):
        return str(value.value)
    if isinstance(value, tuple | list):
        return "[" + ",".join(_shown(item) for item in value) + "]"
    if isinstance(value, msgspec.Raw):
        return bytes(value).decode().strip('"')
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return str(len(value))
    return str(value)


# --- commands --------------------------------------------------------------------------------------------------------

_TIMEOUTS = {"to_close": "schedule_to_close_timeout", "to_start": "schedule_to_start_timeout",
             "s2c": "start_to_close_timeout", "heartbeat": "heartbeat_timeout"}  # fmt: skip


def payload(text: str) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(text))


def policy(text: str) -> RetryPolicy:
    """``attempts`` or ``attempts/first interval/coefficient/type,type``."""
    attempts, *rest = text.split("/")
    return RetryPolicy(
        maximum_attempts=int(attempts),
        initial_interval=duration(rest[0]) if rest else timedelta(seconds=1),
        backoff_coefficient=float(rest[1]) if len(rest) > 1 else 2.0,
        non_retryable_error_types=rest[2].split(",") if len(rest) > 2 else None,
    )


def failure(text: str = "Broken", *, non_retryable: bool = False, delay: str = "") -> Failure:
    info = ApplicationInfo(type=text, non_retryable=non_retryable, next_retry_delay=duration(delay) if delay else None)
    return Failure(message=f"{text}!", info=info)


def _ref(text: str) -> e.ExecutionRef:
    workflow_id, _, run_id = text.partition("/")
    return e.ExecutionRef(workflow_id, run_id)


def command(driver: Driver, text: str) -> c.Command:
    verb, *words = shlex.split(text)
    options = dict(word.split("=", 1) for word in words if "=" in word)
    plain = [word for word in words if "=" not in word]
    match verb:
        case "activity":
            timeouts = {_TIMEOUTS[key]: duration(options[key]) for key in _TIMEOUTS if key in options}
            return c.ScheduleActivityTask(
                activity_id=plain[0],
                activity_type=options.get("type", "Work"),
                task_queue=options.get("queue", ""),
                input=(payload(options["input"]),) if "input" in options else (),
                retry_policy=policy(options["retry"]) if "retry" in options else None,
                **timeouts,
            )
        case "cancel-activity":
            event_id = int(plain[0]) if plain[0].isdigit() else driver.state.derived.activity_ids[plain[0]]
            return c.RequestCancelActivityTask(scheduled_event_id=event_id)
        case "timer":
            return c.StartTimer(timer_id=plain[0], start_to_fire_timeout=duration(plain[1]))
        case "cancel-timer":
            return c.CancelTimer(timer_id=plain[0])
        case "marker":
            return c.RecordMarker(marker_name=plain[0])
        case "child":
            return c.StartChildWorkflowExecution(
                workflow_id=plain[0],
                workflow_type="Child",
                parent_close_policy=ParentClosePolicy(options.get("policy", "Terminate")),
            )
        case "signal":
            return c.SignalExternalWorkflowExecution(workflow_execution=_ref(plain[0]), signal_name=plain[1])
        case "cancel-external":
            return c.RequestCancelExternalWorkflowExecution(workflow_execution=_ref(plain[0]))
        case "attributes":
            return c.UpsertSearchAttributes(search_attributes={k: msgspec.Raw(v.encode()) for k, v in options.items()})
        case "memo":
            return c.ModifyWorkflowProperties(upserted_memo={k: msgspec.Raw(v.encode()) for k, v in options.items()})
        case "message":
            return c.ProtocolMessage(message_id=plain[0])
        case "complete":
            return c.CompleteWorkflowExecution(result=(payload(plain[0]),) if plain else ())
        case "fail":
            non_retryable = "non-retryable" in plain
            return c.FailWorkflowExecution(
                failure=failure(plain[0] if plain else "Broken", non_retryable=non_retryable)
            )
        case "cancelled":
            return c.CancelWorkflowExecution()
        case "continue":
            return c.ContinueAsNewWorkflowExecution(
                workflow_type=options.get("type", ""), input=(payload(plain[0]),) if plain else ()
            )
        case _:
            raise AssertionError(f"unknown command: {verb}")


# --- inputs ----------------------------------------------------------------------------------------------------------

Words, Options, Flags = list[str], dict[str, str], set[str]


def _start(driver: Driver, words: Words, options: Options, tail: str, flags: Flags) -> Any:
    fields: dict[str, Any] = {}
    names = {"run": "workflow_run_timeout", "execution": "workflow_execution_timeout", "delay": "start_delay",
             "task": "workflow_task_timeout"}  # fmt: skip
    for key, name in names.items():
        if key in options:
            fields[name] = duration(options[key])
    if "retry" in options:
        fields["retry_policy"] = policy(options["retry"])
    if "cron" in options:
        fields["cron_schedule"] = options["cron"]
    if "id" in options:
        fields["workflow_id"] = options["id"]
    if "input" in options:
        fields["input"] = (payload(options["input"]),)
    for limit in ("buffered_events_max", "history_events_max", "signals_per_run_max", "payload_bytes_max",
                  "pending_activities_max", "history_events_suggest", "updates_in_flight_max"):  # fmt: skip
        if limit in options:
            driver.limits = msgspec.structs.replace(driver.limits, **{limit: int(options[limit])})
    if "parent" in options:
        fields.update(parent=_ref(options["parent"]), parent_initiated_event_id=5, hold_first_task="hold" in flags)
    if "signal" in options:
        fields["signal"] = i.SignalWorkflowRequest(
            namespace=NAMESPACE, workflow_id="w1", signal_name=options["signal"], request_id="s"
        )
    return driver.start(**fields)


def _complete(driver: Driver, words: Words, options: Options, tail: str, flags: Flags) -> Any:
    commands: list[c.Command] = []
    acceptances, rejections, completions = [], [], []
    for text in filter(None, (part.strip() for part in tail.split(";"))):
        verb, *rest = shlex.split(text)
        if verb == "accept":
            acceptances.append(i.UpdateAcceptance(message_id=f"{rest[0]}/accept", update_id=rest[0]))
        elif verb == "reject":
            message_id = f"{rest[0]}/reject"
            rejections.append(i.UpdateRejection(message_id=message_id, update_id=rest[0], failure=failure("No")))
        elif verb == "done":
            outcome = e.UpdateOutcome(result=(payload("ok"),))
            completions.append(i.UpdateCompletion(message_id=f"{rest[0]}/done", update_id=rest[0], outcome=outcome))
        else:
            commands.append(command(driver, text))
    token = driver.task_tokens[int(options["token"]) - 1] if "token" in options else None
    return driver.complete(
        *commands,
        session=options.get("session", "s1"),
        token=token,
        is_sticky="sticky" in flags,
        force_create_new_workflow_task="force" in flags,
        acceptances=tuple(acceptances),
        rejections=tuple(rejections),
        completions=tuple(completions),
    )


def _record(driver: Driver, words: Words, options: Options, tail: str, flags: Flags) -> Any:
    """Markers by name; ``after`` says after which event, by default the last one the worker knows of."""
    token = driver.task_tokens[int(options["token"]) - 1] if "token" in options else driver.task_tokens[-1]
    task = driver.state.workflow_task
    last = max(token.started_event_id, task.recorded_event_id if task is not None else 0)
    details = {"data": (payload(options["data"]),)} if "data" in options else {}
    request = i.RecordMarkersRequest(
        token=token,
        markers=tuple(c.RecordMarker(marker_name=name, details=details) for name in words),
        after_event_id=int(options.get("after", last)),
        identity="s1",
    )
    return driver.decide(lambda: d.decide_record_markers(driver.state, request, driver.now, limits=driver.limits))


def _token(driver: Driver, words: Words, options: Options, flags: Flags) -> Any:
    if "by-id" in flags:
        return driver.target(words[0])
    return driver.activity_token(words[0], int(options.get("attempt", 0)))


def _finish_activity(driver: Driver, words: Words, options: Options, tail: str, flags: Flags) -> Any:
    request = i.CompleteActivityRequest(
        token=_token(driver, words, options, flags), result=(payload(options.get("result", "done")),), identity="s1"
    )
    return driver.decide(lambda: d.decide_complete_activity(driver.state, request, driver.now, limits=driver.limits))


def _fail_activity(driver: Driver, words: Words, options: Options, tail: str, flags: Flags) -> Any:
    problem = failure(
        options.get("type", "Broken"), non_retryable="non-retryable" in flags, delay=options.get("delay", "")
    )
    request = i.FailActivityRequest(token=_token(driver, words, options, flags), failure=problem, identity="s1")
    return driver.decide(lambda: d.decide_fail_activity(driver.state, request, driver.now, limits=driver.limits))


def _cancel_activity(driver: Driver, words: Words, options: Options, tail: str, flags: Flags) -> Any:
    request = i.CancelActivityRequest(token=_token(driver, words, options, flags), identity="s1")
    return driver.decide(lambda: d.decide_cancel_activity(driver.state, request, driver.now, limits=driver.limits))


def _release_activity(driver: Driver, words: Words, options: Options, tail: str, flags: Flags) -> Any:
    request = i.ReleaseActivityRequest(token=driver.activity_token(words[0]), reason="no such activity type here")
    return driver.decide(lambda: d.decide_release_activity(driver.state, request, driver.now))


def _heartbeat(driver: Driver, words: Words, options: Options, tail: str, flags: Flags) -> Any:
    details = (payload(options["details"]),) if "details" in options else ()
    request = i.HeartbeatActivityRequest(token=_token(driver, words, options, flags), details=details)
    return driver.decide(lambda: d.decide_heartbeat_activity(driver.state, request, driver.now))


def _update(driver: Driver, words: Words, options: Options, tail: str, flags: Flags) -> Any:
    request = e.UpdateRequest(update_id=words[0], name="set", input=(payload("x"),))
    return driver.decide(lambda: d.decide_admit_update(driver.state, request, driver.now, driver.limits))


_CLOSINGS: dict[str, Callable[[], e.Event]] = {
    "completed": lambda: e.WorkflowExecutionCompleted(event_id=9, event_time=T0, result=(payload("r"),)),
    "failed": lambda: e.WorkflowExecutionFailed(event_id=9, event_time=T0, failure=failure()),
    "canceled": lambda: e.WorkflowExecutionCanceled(event_id=9, event_time=T0),
    "timed-out": lambda: e.WorkflowExecutionTimedOut(event_id=9, event_time=T0),
    "terminated": lambda: e.WorkflowExecutionTerminated(event_id=9, event_time=T0),
}


def _child(driver: Driver, words: Words, options: Options, tail: str, flags: Flags) -> Any:
    what, event_id = words[0], int(words[1])
    state, now = driver.state, driver.now
    if what == "started":
        return driver.decide(lambda: d.decide_child_started(state, event_id, "child-run", now))
    if what == "refused":
        cause = e.ExternalFailedCause.WORKFLOW_ALREADY_EXISTS
        return driver.decide(lambda: d.decide_child_start_failed(state, event_id, cause, now))
    closing = _CLOSINGS[what]()
    return driver.decide(lambda: d.decide_child_closed(state, event_id, closing, now, run_id="child-run"))


def _external(driver: Driver, words: Words, options: Options, tail: str, flags: Flags) -> Any:
    what, event_id = words[0], int(words[1])
    state, now = driver.state, driver.now
    cause = e.ExternalFailedCause.EXTERNAL_WORKFLOW_EXECUTION_NOT_FOUND
    match what:
        case "signaled":
            return driver.decide(lambda: d.decide_external_signaled(state, event_id, now))
        case "signal-failed":
            return driver.decide(lambda: d.decide_external_signal_failed(state, event_id, cause, now))
        case "cancel-requested":
            return driver.decide(lambda: d.decide_external_cancel_requested(state, event_id, now))
        case _:
            return driver.decide(lambda: d.decide_external_cancel_failed(state, event_id, cause, now))


def _next_run(driver: Driver, words: Words, options: Options, tail: str, flags: Flags) -> Any:
    """Shows the transition by which the next run of the chain begins."""
    return driver.next_runs[-1][1]


def _follow(driver: Driver, words: Words, options: Options, tail: str, flags: Flags) -> Any:
    """Goes on with the next run of the chain."""
    driver.follow()
    return Transition()


def _reset(driver: Driver, words: Words, options: Options, tail: str, flags: Flags) -> Any:
    """To an event by its number, or to the ``first`` or ``last`` workflow task; of ``run=`` or of this run."""
    point: dict[str, Any] = {}
    if words[0].isdigit():
        point["event_id"] = int(words[0])
    elif words[0] in _RESET_TYPES:
        point["reset_type"] = _RESET_TYPES[words[0]]
    if "build" in options:
        point["build_id"] = options["build"]
    if "without" in options:
        point["reapply_exclude"] = tuple(i.ResetReapplyExcludeType(name) for name in options["without"].split(","))
    if "no-reason" in flags:
        point["reason"] = " "
    return driver.reset(options.get("run", ""), **point)


def _seam(driver: Driver, words: Words, options: Options, tail: str, flags: Flags) -> Any:
    """Shows what the run that a reset made begins with behind the copied events, and that they are copies."""
    state, transition = driver.next_runs[-1]
    copied = state.origins[-1].until_event_id - 1
    runs = {**driver.earlier, driver.state.run_id: (driver.state, driver.history)}
    assert transition.events[:copied] == runs[state.origins[-1].run_id][1][:copied], "copied events were changed"
    return msgspec.structs.replace(transition, events=transition.events[copied:])


_RESET_TYPES = {"first": i.ResetType.FIRST_WORKFLOW_TASK, "last": i.ResetType.LAST_WORKFLOW_TASK}
_VERBS: dict[str, Callable[[Driver, Words, Options, str, Flags], Any]] = {
    "start": _start,
    "reset": _reset,
    "seam": _seam,
    "take-task": lambda driver, words, options, tail, flags: driver.take_task(*words),
    "complete": _complete,
    "record": _record,
    "fail-task": lambda driver, words, options, tail, flags: driver.fail_task(),
    "take-activity": lambda driver, words, options, tail, flags: driver.take_activity(*words),
    "finish-activity": _finish_activity,
    "fail-activity": _fail_activity,
    "cancel-activity": _cancel_activity,
    "release-activity": _release_activity,
    "detach-activity": lambda driver, words, options, tail, flags: driver.decide(
        lambda: d.decide_detach_activity(driver.state, driver.activity_token(words[0]), driver.now)
    ),
    "adopt-activity": lambda driver, words, options, tail, flags: driver.decide(
        lambda: d.decide_adopt_attempt(driver.state, driver.activity_token(words[0]), words[1], driver.now)
    ),
    "heartbeat": _heartbeat,
    "signal": lambda driver, words, options, tail, flags: driver.signal(words[0], options.get("id", "")),
    "cancel": lambda driver, words, options, tail, flags: driver.cancel(),
    "terminate": lambda driver, words, options, tail, flags: driver.terminate(),
    "due": lambda driver, words, options, tail, flags: driver.due(),
    "lose": lambda driver, words, options, tail, flags: driver.lose(*words),
    "update": _update,
    "next-run": _next_run,
    "follow": _follow,
    "child": _child,
    "external": _external,
    "release": lambda driver, words, options, tail, flags: driver.decide(
        lambda: d.decide_release_first_task(driver.state, driver.now)
    ),
}
