"""Both engines' events in one neutral form, and the scrubbing of what cannot be the same twice.

Owns: which fields are compared. Never: excuses a difference that has a meaning; those are listed one by one in
``differences.toml``.

How it works: an event becomes a dictionary: ``id``, ``type``, and the fields of the published event of that name in
snake case, without those that are empty or zero. Payloads become their JSON values, durations seconds, enumerations
their last words in one spelling. `scrub` then names run ids, activity ids and timer ids by the order in which they
appear, and drops what belongs to one process or one moment: identities, request ids, clocks, stack traces.
"""

from __future__ import annotations

import base64
import json
import re
from typing import Any, Final

Event = dict[str, Any]

DROPPED: Final = frozenset(
    {
        # of one process, one moment, one connection
        "identity",
        "request_id",
        "start_request_id",
        "attached_request_id",
        "accepted_request_message_id",
        "event_time",
        "history_size_bytes",
        "workflow_execution_expiration_time",
        "stack_trace",
        "source",
        # of the engine's and the SDK's own book-keeping
        "sdk_metadata",
        "worker_version",
        "metering_metadata",
        "versioning_behavior",
        "deployment_version",
        "key_generation",
        "suggest_continue_as_new_reasons",
        # always the same here
        "namespace",
        "parent_workflow_namespace",
        "parent_workflow_namespace_id",
        "namespace_id",
        "root",
        "priority",
        "original_execution_run_id",
        "links",
        # rules for build ids that the published model itself has given up
        "use_workflow_build_id",
        "inherit_build_id",
        "prev_auto_reset_points",
        "user_metadata",
    }
)
RENAMED: Final = {
    "parent_workflow_execution": "parent",
    "root_workflow_execution": "root",
    "application_failure_info": "application",
    "timeout_failure_info": "timeout",
    "canceled_failure_info": "canceled",
    "terminated_failure_info": "terminated",
    "server_failure_info": "server",
    "reset_workflow_failure_info": "reset_workflow",
    "activity_failure_info": "activity",
    "child_workflow_execution_failure_info": "child_workflow_execution",
}
PREFIXES: Final = (
    "EVENT_TYPE",
    "RETRY_STATE",
    "TIMEOUT_TYPE",
    "PARENT_CLOSE_POLICY",
    "WORKFLOW_ID_REUSE_POLICY",
    "CONTINUE_AS_NEW_INITIATOR",
    "WORKFLOW_TASK_FAILED_CAUSE",
    "START_CHILD_WORKFLOW_EXECUTION_FAILED_CAUSE",
    "SIGNAL_EXTERNAL_WORKFLOW_EXECUTION_FAILED_CAUSE",
    "CANCEL_EXTERNAL_WORKFLOW_EXECUTION_FAILED_CAUSE",
    "TASK_QUEUE_KIND",
    "APPLICATION_ERROR_CATEGORY",
    "UPDATE_ADMITTED_EVENT_ORIGIN",
)
_ENUM: Final = re.compile(rf"(?:{'|'.join(PREFIXES)})_([A-Z_]+)")
_SECONDS: Final = re.compile(r"-?\d+(?:\.\d+)?s")


def from_temporal(event: Event) -> Event:
    """The neutral form of an event in the published JSON form."""
    (attributes,) = (value for key, value in event.items() if key.endswith("EventAttributes"))
    fields = _published(attributes)
    kind = _enum(event["eventType"])
    if kind == "WorkflowTaskScheduled":
        fields["is_sticky"] = attributes["taskQueue"].get("kind") == "TASK_QUEUE_KIND_STICKY"
        if fields["is_sticky"]:
            fields["task_queue"] = attributes["taskQueue"].get("normalName", "")
    if kind == "WorkflowExecutionUpdateAccepted":
        fields["accepted_request"] = (
            _update_request(attributes["acceptedRequest"]) if "acceptedRequest" in attributes else None
        )
    if kind == "WorkflowExecutionUpdateAdmitted":
        fields["request"] = _update_request(attributes["request"])
    if kind == "WorkflowExecutionUpdateCompleted":
        fields["update_id"] = fields.pop("meta")["update_id"]
    return {"id": int(event["eventId"]), "type": kind, **fields}


def scrub(histories: dict[str, list[Event]]) -> dict[str, list[Event]]:
    """Name what is random by its order of appearance and drop what no two runs share."""
    runs: dict[str, str] = {}
    cleaned: dict[str, list[Event]] = {}
    for label, events in histories.items():
        names = _Names(runs)
        cleaned[label] = [_cleaned(event, names) for event in events]
    return cleaned


class _Names:
    """Names given by order of appearance: run ids over all histories, activities and timers in each."""

    def __init__(self, runs: dict[str, str]) -> None:
        self._runs = runs
        self._activities: dict[str, str] = {}
        self._timers: dict[str, str] = {}

    def of(self, key: str, value: str) -> str:
        """What to call an id that stands in a field of this name."""
        if key.endswith("run_id"):
            return self._runs.setdefault(value, f"run {len(self._runs) + 1}")
        if key == "activity_id":
            return self._activities.setdefault(value, f"activity {len(self._activities) + 1}")
        if key == "timer_id":
            return self._timers.setdefault(value, f"timer {len(self._timers) + 1}")
        return value


def _cleaned(value: Any, names: _Names, key: str = "") -> Any:
    if isinstance(value, dict):
        kept = {name: _cleaned(item, names, name) for name, item in value.items() if name not in DROPPED}
        return {name: item for name, item in kept.items() if item not in (None, "", 0, False, [], {}, ())}
    if isinstance(value, list | tuple):
        return [_cleaned(item, names) for item in value]
    return names.of(key, value) if isinstance(value, str) and value else value


def _published(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        if set(value) == {"payloads"}:
            return [_payload(item) for item in value["payloads"]]
        if "metadata" in value and set(value) <= {"metadata", "data"}:
            return _payload(value)
        if set(value) in ({"fields"}, {"indexedFields"}):
            (value,) = value.values()
            return {name: _published(item) for name, item in value.items()}
        if key == "task_queue" or set(value) == {"name"}:
            return value.get("name", "")
        renamed = {name: RENAMED.get(snake(name), snake(name)) for name in value}
        return {renamed[name]: _published(item, renamed[name]) for name, item in value.items()}
    if isinstance(value, list):
        return [_published(item) for item in value]
    if isinstance(value, str):
        if _SECONDS.fullmatch(value):
            return float(value[:-1])
        if _ENUM.fullmatch(value):
            return _enum(value)
        if key.endswith("event_id") and value.isdecimal():
            return int(value)
    return value


def _update_request(request: Event) -> Event:
    arguments = _published(request["input"].get("args"))
    return {"update_id": request["meta"]["updateId"], "name": request["input"]["name"], "input": arguments}


def _payload(payload: dict[str, Any]) -> Any:
    data = base64.b64decode(payload.get("data", ""))
    encoding = base64.b64decode(payload["metadata"]["encoding"]).decode()
    if encoding == "binary/null":
        return None
    return json.loads(data) if encoding.startswith("json/") else {"encoding": encoding, "data": data.hex()}


def _enum(text: str) -> str:
    match = _ENUM.fullmatch(text)
    assert match, f"{text} is an enumeration value with a prefix that is not listed"
    return "".join(word.capitalize() for word in match[1].split("_"))


def snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])([A-Z])", lambda match: "_" + match[1].lower(), name)
