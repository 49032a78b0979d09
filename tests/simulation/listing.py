"""Worlds whose runs change what lists show of them, and the check that lists could show nothing else.

Owns: `with_listing`, the search attribute that such programs change, and `check_listing`. Never: asks the engine.

How it works: law 2 counts the visibility row of a run among what one transaction changes. So of each stored run the row
is held against its events alone: what its start says, when it ended, and what became of its search attributes.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, Final

import msgspec

from clew.common import SearchAttributeKey, SearchAttributeUpdate
from clew.converter import DataConverter
from clew.model import events as e
from clew.model.events import StoredPayload
from clew.model.payload import from_stored
from tests.simulation.record import LawBroken, RunLog

if TYPE_CHECKING:
    from tests.simulation.plan import Plan
    from tests.simulation.world import World

LISTED_SHARE: Final = 0.2
STEPS_DONE: Final = SearchAttributeKey.for_int("StepsDone")
LAST_STEP: Final = SearchAttributeKey.for_keyword("LastStep")
OF_THE_ENGINE: Final = frozenset(
    {
        "TemporalReportedProblems", "TemporalWorkerDeploymentVersion", "TemporalWorkflowVersioningBehavior",
        "ClewOpenPinnedVersion",
    }
)  # fmt: skip
"""Search attributes that no event tells of."""


def with_listing(plan: Plan) -> Plan:
    """In some seeds: programs say after each step, as search attributes, how far they have come."""
    if random.Random(f"listing:{plan.seed}").random() >= LISTED_SHARE:
        return plan
    calls = [
        msgspec.structs.replace(call, values={**call.values, "program": {**program, "is_listed": True}})
        if (program := call.values.get("program")) is not None
        else call
        for call in plan.calls
    ]
    return msgspec.structs.replace(plan, calls=tuple(calls))


def changes_after(position: int, kind: str) -> list[SearchAttributeUpdate[Any]]:
    """What a program says of itself after a step; each third time it takes something back."""
    last = LAST_STEP.value_unset() if position % 3 == 2 else LAST_STEP.value_set(kind)
    return [STEPS_DONE.value_set(position + 1), last]


def check_listing(world: World) -> None:
    """The row by which people list a run says what its history says."""
    for row, _ in world.disk.contents():
        run = world.record.runs[row.run_key]
        seen, first, last = row.visibility, run.events[0], run.events[-1]
        assert isinstance(first, e.WorkflowExecutionStarted), "event 1 starts the run"
        parent = first.parent
        expected = {
            "workflow_type": first.workflow_type,
            "task_queue": first.task_queue,
            "first_execution_run_id": first.first_execution_run_id,
            "parent_workflow_id": parent.workflow_id if parent is not None else "",
            "parent_run_id": parent.run_id if parent is not None else "",
            "root_workflow_id": first.root.workflow_id if first.root is not None else row.workflow_id,
            "root_run_id": first.root.run_id if first.root is not None else row.run_id,
            "close_time": None if run.is_open else last.event_time,
        }
        told = {name: getattr(seen, name) for name in expected}
        _require(told == expected, f"{run.workflow_id} is listed as {told}, and its history says {expected}")
        shown = seen.search_attributes or {}
        listed = {name: _value_of(value) for name, value in shown.items() if name not in OF_THE_ENGINE}
        attributes = _attributes(run)
        _require(listed == attributes, f"{run.workflow_id} is listed with {listed}, and its history says {attributes}")


def _attributes(run: RunLog) -> dict[str, object]:
    attributes: dict[str, object] = {}
    for event in run.events:
        if isinstance(event, e.WorkflowExecutionStarted | e.UpsertWorkflowSearchAttributes):
            for name, stored in (event.search_attributes or {}).items():
                attributes[name] = _value_of(stored)
    return {name: value for name, value in attributes.items() if value is not None}


def _value_of(stored: StoredPayload) -> object:
    [value] = DataConverter.default.payload_converter.from_payloads([from_stored(stored)], [object])
    return value


def _require(holds: bool, text: str) -> None:
    if not holds:
        raise LawBroken(f"law 2: {text}")
