"""Listing and counting runs: a `VisibilityFilter` as SQL with bound parameters only.

Owns: which column answers for a system attribute, and how search attributes are compared. Never: the text of a filter
(``engine.visibility`` parses it).

How it works: every name and value of a filter is a parameter; the only text that varies comes from the tables below. A
comparison with an attribute that a run does not have is not true, whatever the operator, except ``IS NULL``.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from clew.model.policies import WorkflowExecutionStatus
from clew.ports.store import RunRow, VisibilityCondition, VisibilityFilter
from clew.storage.sqlite.rows import (
    OPEN_STATUSES,
    RUN_COLUMNS,
    STATUS_OF_NAME,
    fetch_all,
    placeholders,
    to_micros,
    to_run,
)
from clew.storage.values import after_prefix, as_instants, words

SYSTEM_COLUMNS: Final = {
    "WorkflowId": "workflow_id",
    "RunId": "run_id",
    "WorkflowType": "workflow_type",
    "TaskQueue": "task_queue",
    "ExecutionStatus": "status",
    "StartTime": "start_time",
    "ExecutionTime": "execution_time",
    "CloseTime": "close_time",
    "HistoryLength": "history_length",
    "HistorySizeBytes": "history_size_bytes",
    "StateTransitionCount": "version",
    "ExecutionDuration": "(close_time - execution_time)",
    "ParentWorkflowId": "nullif(parent_workflow_id, '')",
    "ParentRunId": "nullif(parent_run_id, '')",
    "RootWorkflowId": "nullif(root_workflow_id, '')",
    "RootRunId": "nullif(root_run_id, '')",
}
"""What answers for each system attribute; ``ExecutionDuration`` is in microseconds."""

_COMPARISONS: Final = frozenset({"=", "!=", ">", ">=", "<", "<="})
_NEGATED: Final = {"!=": "=", "NOT IN": "IN", "NOT STARTS_WITH": "STARTS_WITH"}

Value = str | int | float | bool | datetime


def list_runs(
    connection: sqlite3.Connection,
    namespace: str,
    where: VisibilityFilter | None,
    limit: int,
    before_run_key: int | None,
) -> list[RunRow]:
    """Runs by descending key, without items and state."""
    condition, values = _to_sql(where)
    before = ""
    if before_run_key is not None:
        before = " AND run_key < ?"
        values = [before_run_key, *values]
    sql = (
        f"SELECT {RUN_COLUMNS} FROM executions AS run WHERE {_namespace(where)} = ?{before} AND {condition} "
        "ORDER BY run_key DESC LIMIT ?"
    )
    return [to_run(row, b"") for row in fetch_all(connection, sql, (namespace, *values, limit))]


def count_runs(
    connection: sqlite3.Connection, namespace: str, where: VisibilityFilter | None
) -> dict[WorkflowExecutionStatus, int]:
    """How many runs there are of each status, leaving out those of which there are none."""
    condition, values = _to_sql(where)
    select = "SELECT status, count(*) FROM executions AS run WHERE"
    sql = (
        f"{select} is_open AND namespace = ? AND {condition} GROUP BY status UNION ALL "
        f"{select} NOT is_open AND namespace = ? AND {condition} GROUP BY status"
    )
    bound = (namespace, *values, namespace, *values)
    return {STATUS_OF_NAME[status]: count for status, count in fetch_all(connection, sql, bound)}


def _namespace(where: VisibilityFilter | None) -> str:
    """The column, hidden from the query planner when the values of a search attribute should lead it instead."""
    conditions = () if where is None or where.any_of else where.conditions
    leads = any(
        isinstance(condition, VisibilityCondition)
        and condition.attribute not in SYSTEM_COLUMNS
        and condition.operator in ("=", "IN")
        for condition in conditions
    )
    return "+namespace" if leads else "namespace"


def _to_sql(where: VisibilityFilter | None) -> tuple[str, list[Any]]:
    if where is None:
        return "1", []
    return _filter(where)


def _filter(tree: VisibilityFilter) -> tuple[str, list[Any]]:
    if not tree.conditions:
        return ("0" if tree.any_of else "1"), []
    parts: list[str] = []
    values: list[Any] = []
    for condition in tree.conditions:
        part, bound = _filter(condition) if isinstance(condition, VisibilityFilter) else _condition(condition)
        parts.append(part)
        values += bound
    return "(" + (" OR " if tree.any_of else " AND ").join(parts) + ")", values


def _condition(condition: VisibilityCondition) -> tuple[str, list[Any]]:
    column = SYSTEM_COLUMNS.get(condition.attribute)
    if column is None:
        return _search_attribute(condition)
    if condition.operator in ("IS NULL", "IS NOT NULL"):
        return f"{column} {condition.operator}", []
    sql, values = _compare(column, condition.operator, [_bound(value) for value in condition.values])
    if condition.attribute == "ExecutionStatus" and condition.operator in ("=", "IN"):
        return f"{_openness(values)}{sql}", values
    return sql, values


def _openness(statuses: Sequence[object]) -> str:
    """What the statuses have in common, said so that the index of open or of closed runs can be used."""
    are_open = {STATUS_OF_NAME[str(name)] in OPEN_STATUSES for name in statuses}
    if are_open == {True}:
        return "is_open AND "
    return "NOT is_open AND " if are_open == {False} else ""


def _bound(value: Value) -> str | int | float:
    if isinstance(value, datetime):
        return to_micros(value)
    return int(value) if isinstance(value, bool) else value


def _compare(column: str, operator: str, values: Sequence[str | int | float]) -> tuple[str, list[Any]]:
    match operator:
        case "IN" | "NOT IN":
            return f"{column} {operator} ({placeholders(values)})", list(values)
        case "BETWEEN":
            return f"{column} BETWEEN ? AND ?", list(values)
        case "STARTS_WITH" | "NOT STARTS_WITH":
            return _starts_with(column, str(values[0]), negated=operator != "STARTS_WITH")
        case _ if operator in _COMPARISONS:
            return f"{column} {operator} ?", list(values)
        case _:
            raise ValueError(f"a filter has the operator {operator!r}, which the store does not know")


def _starts_with(column: str, prefix: str, *, negated: bool) -> tuple[str, list[Any]]:
    end = after_prefix(prefix)
    if end is None:
        inside, values = f"{column} >= ?", [prefix]
    else:
        inside, values = f"({column} >= ? AND {column} < ?)", [prefix, end]
    return (f"NOT ({inside})" if negated else inside), values


def _search_attribute(condition: VisibilityCondition) -> tuple[str, list[Any]]:
    name, operator = condition.attribute, condition.operator
    if operator in ("=", "IN"):
        match_sql, values = _match_value(operator, condition.values)
        found = f"a.name = ? AND a.value IN ({placeholders(values)}) AND ({match_sql})"
        return f"run_key IN (SELECT run_key FROM search_attributes AS a WHERE {found})", [name, *values, *values]
    having = "EXISTS (SELECT 1 FROM search_attributes AS a WHERE a.run_key = run.run_key AND a.name = ?"
    if operator in ("IS NULL", "IS NOT NULL"):
        return ("NOT " if operator == "IS NULL" else "") + having + ")", [name]
    positive = _NEGATED.get(operator)
    match_sql, values = _match_value(positive or operator, condition.values)
    matching = f"{having} AND ({match_sql}))"
    if positive is None:
        return matching, [name, *values]
    return f"({having}) AND NOT {matching})", [name, name, *values]


def _match_value(operator: str, values: Sequence[Value]) -> tuple[str, list[Any]]:
    """A comparison of ``a.value``, for each type that the values could be meant as."""
    sample = values[0]
    if isinstance(sample, bool):
        return _of_kinds("'Bool'", operator, [_bound(v) for v in values])
    if isinstance(sample, datetime):
        return _of_kinds("'Datetime'", operator, [_bound(v) for v in values])
    if isinstance(sample, int | float):
        return _of_kinds("'Int', 'Double'", operator, [_bound(v) for v in values])
    texts = [str(v) for v in values]
    sql, bound = _of_kinds("'Keyword', 'KeywordList'", operator, list(texts))
    if operator in ("=", "IN"):
        found = [word for text in texts for word in words(text)]
        sql += f" OR (a.kind = 'Text' AND a.value IN ({placeholders(found)}))"
        bound += found
    instants = as_instants(texts)
    if instants and operator != "STARTS_WITH":
        also, more = _of_kinds("'Datetime'", operator, instants)
        sql, bound = f"{sql} OR {also}", bound + more
    return sql, bound


def _of_kinds(kinds: str, operator: str, values: Sequence[str | int | float]) -> tuple[str, list[Any]]:
    sql, bound = _compare("a.value", operator, values)
    return f"(a.kind IN ({kinds}) AND {sql})", bound
