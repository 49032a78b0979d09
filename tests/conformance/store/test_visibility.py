"""Lists and counts: every operator on every kind of attribute, against a plain model in Python."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from clew.model.policies import WorkflowExecutionStatus
from clew.ports.store import CommitStatus, Store, StoreError, VisibilityCondition, VisibilityFilter
from tests.conformance.store.rows import NAMESPACE, T0, attribute, close, insert, load, update, visibility


def where(attribute_name: str, operator: str, *values: Any) -> VisibilityFilter:
    condition = VisibilityCondition(attribute=attribute_name, operator=operator, values=values)
    return VisibilityFilter(conditions=(condition,))


async def keys(store: Store, filter_: VisibilityFilter | None, namespace: str = NAMESPACE) -> list[int]:
    """The keys of the runs found, ascending; the count must agree with the list."""
    found = [row.run_key for row in await store.list_runs(namespace, filter_, 1000, None)]
    assert found == sorted(found, reverse=True)
    assert sum((await store.count_runs(namespace, filter_)).values()) == len(found)
    return sorted(found)


async def fill(store: Store) -> None:
    """Five runs: 1 and 2 closed after 10 s and 20 s, 3 to 5 open; one more in another namespace."""
    attributes: dict[int, dict[str, Any]] = {
        1: {"Color": attribute("red"), "Age": attribute(10), "Open": attribute(True), "Tags": attribute(["a", "b"])},
        2: {"Color": attribute("green", "Keyword"), "Age": attribute(20.5), "Open": attribute(False)},
        3: {"Color": attribute("redder"), "Age": attribute(30), "Tags": attribute(["b", "c"])},
        4: {"When": attribute("2026-05-01T00:00:00Z", "Datetime"), "Note": attribute("A broken Window", "Text")},
        5: {},
    }
    runs = {
        key: insert(
            key,
            f"claim-{key}" if key < 4 else f"order-{key}",
            visibility=visibility(
                workflow_type="Claims" if key < 4 else "Orders",
                start_time=T0 + timedelta(minutes=key),
                execution_time=T0 + timedelta(minutes=key),
                parent_workflow_id="boss" if key == 5 else "",
                search_attributes=attributes[key],
            ),
            history_length=key * 10,
        )
        for key in attributes
    }
    other = insert(6, namespace="other")
    await store.commit_if_current([*((run,) for run in runs.values()), (other,)])
    for key, status in ((1, WorkflowExecutionStatus.COMPLETED), (2, WorkflowExecutionStatus.FAILED)):
        seen = runs[key].visibility
        assert seen is not None
        ended = visibility(
            workflow_type=seen.workflow_type,
            start_time=seen.start_time,
            execution_time=seen.execution_time,
            close_time=seen.start_time + timedelta(seconds=10 * key),
            search_attributes=seen.search_attributes,
        )
        write = close(runs[key], status=status, visibility=ended, history_length=key * 10)
        assert await store.commit_if_current([(write,)]) == [CommitStatus.COMMITTED]


INSTANT = datetime(2026, 5, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("name", "operator", "values", "expected"),
    [
        ("WorkflowId", "=", ("claim-2",), [2]),
        ("WorkflowId", "!=", ("claim-2",), [1, 3, 4, 5]),
        ("WorkflowId", "STARTS_WITH", ("claim-",), [1, 2, 3]),
        ("WorkflowId", "NOT STARTS_WITH", ("claim-",), [4, 5]),
        ("WorkflowId", "STARTS_WITH", ("",), [1, 2, 3, 4, 5]),
        ("WorkflowId", "STARTS_WITH", ("claim_",), []),
        ("WorkflowId", "STARTS_WITH", ("claim%",), []),
        ("WorkflowId", "IN", ("claim-1", "order-4", "none"), [1, 4]),
        ("WorkflowId", "NOT IN", ("claim-1", "order-4"), [2, 3, 5]),
        ("WorkflowId", ">", ("claim-3",), [4, 5]),
        ("WorkflowId", "BETWEEN", ("claim-2", "order-4"), [2, 3, 4]),
        ("RunId", "=", ("run-3",), [3]),
        ("WorkflowType", "=", ("Claims' OR 1=1 --",), []),
        ("ExecutionStatus", "=", ("Running",), [3, 4, 5]),
        ("ExecutionStatus", "IN", ("Completed", "Failed"), [1, 2]),
        ("ExecutionStatus", "NOT IN", ("Completed",), [2, 3, 4, 5]),
        ("StartTime", ">=", (T0 + timedelta(minutes=4),), [4, 5]),
        ("StartTime", "<", (T0 + timedelta(minutes=2),), [1]),
        ("StartTime", "=", (T0 + timedelta(minutes=2),), [2]),
        ("CloseTime", "IS NULL", (), [3, 4, 5]),
        ("CloseTime", "IS NOT NULL", (), [1, 2]),
        ("CloseTime", "<", (T0 + timedelta(days=1),), [1, 2]),
        ("ExecutionDuration", ">", (15_000_000,), [2]),
        ("ExecutionDuration", "<=", (10_000_000,), [1]),
        ("HistoryLength", "BETWEEN", (20, 40), [2, 3, 4]),
        ("StateTransitionCount", "=", (2,), [1, 2]),
        ("ParentWorkflowId", "=", ("boss",), [5]),
        ("ParentWorkflowId", "IS NULL", (), [1, 2, 3, 4]),
        ("Color", "=", ("red",), [1]),
        ("Color", "!=", ("red",), [2, 3]),
        ("Color", "STARTS_WITH", ("red",), [1, 3]),
        ("Color", "NOT STARTS_WITH", ("red",), [2]),
        ("Color", "IN", ("red", "green"), [1, 2]),
        ("Color", "NOT IN", ("red", "green"), [3]),
        ("Color", "IS NULL", (), [4, 5]),
        ("Color", "IS NOT NULL", (), [1, 2, 3]),
        ("Color", ">", ("green",), [1, 3]),
        ("Color", "=", (10,), []),
        ("Age", "=", (10,), [1]),
        ("Age", ">", (10,), [2, 3]),
        ("Age", "<", (20.75,), [1, 2]),
        ("Age", "BETWEEN", (15, 30.0), [2, 3]),
        ("Age", "!=", (30,), [1, 2]),
        ("Open", "=", (True,), [1]),
        ("Open", "!=", (True,), [2]),
        ("Open", "=", (1,), []),
        ("Tags", "=", ("b",), [1, 3]),
        ("Tags", "!=", ("a",), [3]),
        ("Tags", "IN", ("a", "c"), [1, 3]),
        ("When", "=", (INSTANT,), [4]),
        ("When", ">", (INSTANT,), []),
        ("When", "<=", ("2026-05-01T02:00:00+02:00",), [4]),
        ("Note", "=", ("window",), [4]),
        ("Note", "=", ("WINDOW pane",), [4]),
        ("Note", "!=", ("door",), [4]),
        ("Note", "=", ("windo",), []),
        ("Unknown'); DROP TABLE executions; --", "=", ("x",), []),
    ],
)
async def test_one_comparison(
    store: Store, name: str, operator: str, values: tuple[Any, ...], expected: list[int]
) -> None:
    await fill(store)
    assert await keys(store, where(name, operator, *values)) == expected


async def test_filters_nest(store: Store) -> None:
    await fill(store)
    claims = VisibilityCondition(attribute="WorkflowType", operator="=", values=("Claims",))
    closed = VisibilityCondition(attribute="CloseTime", operator="IS NOT NULL")
    boss = VisibilityCondition(attribute="ParentWorkflowId", operator="=", values=("boss",))
    both = VisibilityFilter(conditions=(claims, closed))
    assert await keys(store, both) == [1, 2]
    assert await keys(store, VisibilityFilter(any_of=True, conditions=(both, boss))) == [1, 2, 5]
    either = VisibilityFilter(any_of=True, conditions=(closed, boss))
    assert await keys(store, VisibilityFilter(conditions=(claims, either))) == [1, 2]
    assert await keys(store, VisibilityFilter()) == [1, 2, 3, 4, 5]
    assert await keys(store, None) == [1, 2, 3, 4, 5]
    assert await keys(store, None, "other") == [6]
    assert await keys(store, None, "nothing") == []


async def test_a_wide_filter_is_taken(store: Store) -> None:
    await fill(store)
    many = tuple(VisibilityCondition(attribute=f"A{n}", operator="!=", values=(n,)) for n in range(200))
    assert await keys(store, VisibilityFilter(any_of=True, conditions=many)) == []
    ids = tuple(f"claim-{n}" for n in range(2000))
    assert await keys(store, where("WorkflowId", "IN", *ids)) == [1, 2, 3]


async def test_pages_go_back_in_time(store: Store) -> None:
    await fill(store)
    first = await store.list_runs(NAMESPACE, None, 2, None)
    second = await store.list_runs(NAMESPACE, None, 2, first[-1].run_key)
    third = await store.list_runs(NAMESPACE, None, 2, second[-1].run_key)
    assert [[row.run_key for row in page] for page in (first, second, third)] == [[5, 4], [3, 2], [1]]
    assert first[0].state == b""
    assert first[0].visibility.workflow_type == "Orders"
    assert await store.count_runs(NAMESPACE, None) == {
        WorkflowExecutionStatus.RUNNING: 3,
        WorkflowExecutionStatus.COMPLETED: 1,
        WorkflowExecutionStatus.FAILED: 1,
    }


async def test_changed_attributes_replace_the_old_ones(store: Store) -> None:
    run = insert(1, visibility=visibility(search_attributes={"Color": attribute("red"), "Tags": attribute(["a", "b"])}))
    await store.commit_if_current([(run,)])
    seen = visibility(search_attributes={"Color": attribute("blue"), "Tags": attribute(["c"])})
    await store.commit_if_current([(update(run, visibility=seen),)])
    assert await keys(store, where("Color", "=", "red")) == []
    assert await keys(store, where("Color", "=", "blue")) == [1]
    assert await keys(store, where("Tags", "=", "b")) == []
    assert (await load(store, 1)).visibility.search_attributes == seen.search_attributes
    assert (await load(store, 1)).visibility.memo is None


async def test_attributes_of_an_update_that_lost_are_not_seen(store: Store) -> None:
    run = insert(1, visibility=visibility(search_attributes={"Color": attribute("red")}))
    await store.commit_if_current([(run,)])
    await store.commit_if_current([(update(run),)])
    seen = visibility(search_attributes={"Color": attribute("blue"), "New": attribute(1)})
    assert await store.commit_if_current([(update(run, visibility=seen),)]) == [CommitStatus.VERSION_CONFLICT]
    assert await keys(store, where("Color", "=", "red")) == [1]
    assert await store.list_search_attributes(NAMESPACE) == {"Color": "Keyword"}


async def test_the_names_in_use_are_known_with_their_types(store: Store) -> None:
    assert await store.list_search_attributes(NAMESPACE) == {}
    await fill(store)
    assert await store.list_search_attributes(NAMESPACE) == {
        "Age": "Int",
        "Color": "Keyword",
        "Note": "Text",
        "Open": "Bool",
        "Tags": "KeywordList",
        "When": "Datetime",
    }
    assert await store.list_search_attributes("other") == {}


async def test_values_that_cannot_be_searched_by_are_kept(store: Store) -> None:
    odd = {
        "Huge": attribute(2**70),
        "Map": attribute({"a": 1}),
        "Null": attribute(None),
        "Bad": attribute("x", "Datetime"),
    }
    await store.commit_if_current([(insert(1, visibility=visibility(search_attributes=odd)),)])
    assert (await load(store, 1)).visibility.search_attributes == odd
    assert await store.list_search_attributes(NAMESPACE) == {}


async def test_an_operator_that_does_not_exist_is_refused(store: Store) -> None:
    with pytest.raises(StoreError, match="LIKE"):
        await store.list_runs(NAMESPACE, where("WorkflowId", "LIKE", "x"), 10, None)
