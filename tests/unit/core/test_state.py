"""The fold's table, the stored form and the heap of deadlines."""

from __future__ import annotations

import typing
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from clew.core import evolve
from clew.core.codec import decode_state, encode_item, encode_state, item_keys
from clew.core.deadlines import DeadlineHeap
from clew.core.facts import durable_facts
from clew.core.step import Step
from clew.engine.summary import visibility_of
from clew.model import events as e
from clew.model.commands import ScheduleActivityTask
from clew.model.limits import LIMITS_DEFAULT
from tests.scenarios.driver import T0, Driver


def test_every_event_type_has_its_place_in_the_fold() -> None:
    assert set(evolve._TABLE) == set(typing.get_args(e.Event))


def test_a_history_must_begin_at_its_beginning() -> None:
    with pytest.raises(ValueError, match="is empty"):
        evolve.fold([])
    with pytest.raises(ValueError, match="begins with WorkflowExecutionTerminated"):
        evolve.fold([e.WorkflowExecutionTerminated(event_id=1, event_time=T0)])


def test_event_ids_are_dense() -> None:
    driver = Driver()
    driver.start()
    step = Step(driver.state, T0, LIMITS_DEFAULT)
    with pytest.raises(AssertionError, match="has id 9, but 3 is next"):
        step.append(e.MarkerRecorded(event_id=9, event_time=T0, marker_name="m"))


def test_a_parked_run_is_small() -> None:
    driver = Driver()
    driver.start()
    driver.take_task()
    activity = ScheduleActivityTask(
        activity_id="a1", activity_type="Work", start_to_close_timeout=timedelta(seconds=1),
        input=(msgspec.Raw(b'"' + b"x" * 9_000 + b'"'),),
    )  # fmt: skip
    driver.complete(activity)
    assert len(encode_state(driver.state)) < 1_000


def test_a_wide_run_keeps_its_items_apart() -> None:
    driver = Driver()
    driver.start()
    driver.take_task()
    second = timedelta(seconds=1)
    driver.complete(
        *(ScheduleActivityTask(activity_id=f"a{n}", activity_type="W", start_to_close_timeout=second)
          for n in range(100))
    )  # fmt: skip
    state = driver.state
    assert state.is_wide
    assert len(encode_state(state)) < 1_000
    items = [(kind, item_id, encode_item(state, kind, item_id) or b"") for kind, item_id in item_keys(state)]
    again = decode_state(encode_state(state), items)
    assert again == state
    assert again.derived.activity_ids["a7"] == 12
    assert encode_item(state, 1, 9_999) is None


def test_the_heap_follows_deadlines_that_move() -> None:
    at = [datetime(2026, 1, 1, second=n, tzinfo=UTC) for n in range(10)]
    present = {(1, 1): at[3], (1, 2): at[5]}
    heap = DeadlineHeap([(when, *key) for key, when in present.items()])
    lookup = lambda kind, item_id: present.get((kind, item_id))  # noqa: E731
    assert heap.peek(lookup) == at[3]
    present[1, 1] = at[7]
    assert heap.peek(lookup) == at[5]
    present[1, 1] = at[2]
    heap.push(at[2], 1, 1)
    assert heap.peek(lookup) == at[2]
    assert heap.take_due(at[6], lookup) == [(at[2], 1, 1), (at[5], 1, 2)]
    present.clear()
    assert heap.peek(lookup) is None
    assert len(heap) == 0


def test_a_state_that_names_itself_as_its_root_says_the_same_as_one_that_does_not() -> None:
    driver = Driver()
    driver.start()
    state = driver.state
    assert state.root is None
    assert state.root_ref == state.ref
    stored = msgspec.json.decode(encode_state(state))
    stored[state.__struct_fields__.index("root")] = msgspec.to_builtins(state.ref)  # As it was stored before.
    older = decode_state(msgspec.json.encode(stored))
    assert older.root == state.ref
    assert durable_facts(older) == durable_facts(state)
    assert visibility_of(older) == visibility_of(state)


def test_the_root_of_a_child_is_kept() -> None:
    driver = Driver()
    driver.start()
    top = e.ExecutionRef("top", "run-of-top", "default")
    first = msgspec.structs.replace(driver.history[0], root=top)
    state = evolve.begin(first, namespace="default", run_id="run-1")
    assert state.root == state.root_ref == top
    assert (visibility_of(state).root_workflow_id, visibility_of(state).root_run_id) == ("top", "run-of-top")
