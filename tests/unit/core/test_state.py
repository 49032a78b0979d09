"""The fold's table, the stored form and the heap of deadlines."""

from __future__ import annotations

import typing
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from clew.core import evolve
from clew.core.codec import decode_state, encode_item, encode_state, item_keys
from clew.core.deadlines import DeadlineHeap
from clew.core.step import Step
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
