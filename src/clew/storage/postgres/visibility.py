"""Listing and counting runs: a `VisibilityFilter` as SQL with bound parameters only.

Owns: which column answers for a system attribute, and how search attributes are compared. Never: the text of a filter
(``engine.visibility`` parses it).

How it works: every name and value of a filter is a parameter; the only text that varies comes from the tables below. A
comparison with an attribute that a run does not have is not true, whatever the operator, except ``IS NULL``. A list is
ordered by start, newest first; runs that started at one instant by their key.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from clew.model.policies import WorkflowExecutionStatus
from clew.ports.store import RunRow, VisibilityCondition, VisibilityFilter
from clew.storage.postgres.rows import RUN_COLUMNS, plain_text, stored_text, to_run
from clew.storage.values import OPEN_STATUSES, STATUS_OF_NAME, after_prefix, as_instants, to_micros, words

if TYPE_CHECKING:
    from clew.storage.postgres.connections import Connection

SYSTEM_COLUMNS: Final = {
    "WorkflowId": "run.workflow_id",
    "RunId": "run.run_id",
    "WorkflowType": "run.workflow_type",
    "TaskQueue": "run.task_queue",
    "ExecutionStatus": "run.status",
    "StartTime": "run.start_time",
    "ExecutionTime": "run.execution_time",
    "CloseTime": "run.close_time",
    "HistoryLength": "run.history_length",
    "HistorySizeBytes": "run.history_size_bytes",
    "StateTransitionCount": "run.version",
    "ExecutionDuration": "(run.close_time - run.execution_time)",
    "ParentWorkflowId": "nullif(run.parent_workflow_id, '')",
    "ParentRunId": "nullif(run.parent_run_id, '')",
    "RootWorkflowId": "nullif(run.root_workflow_id, '')",
    "RootRunId": "nullif(run.root_run_id, '')",
}
"""What answers for each system attribute; ``ExecutionDuration`` is in microseconds."""

_NUMBERS: Final = frozenset(
    {
        "StartTime",
        "ExecutionTime",
        "CloseTime",
        "HistoryLength",
        "HistorySizeBytes",
        "StateTransitionCount",
        "ExecutionDuration",
    }
)
_COMPARISONS: Final = frozenset({"=", "!=", ">", ">=", "<", "<="})
_NEGATED: Final = {"!=": "=", "NOT IN": "IN", "NOT STARTS_WITH": "STARTS_WITH"}

Value = str | int | float | bool | datetime


async def list_runs(
    connection: Connection,
    schema: str,
    namespace: str,
    where: VisibilityFilter | None,
    limit: int,
    before_run_key: int | None,
) -> list[RunRow]:
    """Runs by descending start, without items and state."""
    query = _Query(schema)
    sql = (
        f"SELECT {RUN_COLUMNS} FROM {schema}.executions AS run WHERE run.namespace = {query.text(namespace)} "
        f"AND {query.filter(where)}"
    )
    if before_run_key is not None:
        key = query.bind(before_run_key, "int8")
        # The run that a page ended with may be gone meanwhile; then its key alone tells where to go on.
        sql += (
            f" AND (run.start_time, run.run_key) < (coalesce((SELECT max(start_time) FROM {schema}.executions "
            f"WHERE run_key = {key} AND shard = ANY({query.shards()})), (SELECT max(start_time) "
            f"FROM {schema}.executions WHERE run_key < {key} AND shard = ANY({query.shards()}))), {key})"
        )
    sql += f" ORDER BY run.start_time DESC, run.run_key DESC LIMIT {query.bind(limit, 'int8')}"
    return [to_run(row, b"") for row in await connection.fetch(sql, *query.values)]


async def count_runs(
    connection: Connection, schema: str, namespace: str, where: VisibilityFilter | None
) -> dict[WorkflowExecutionStatus, int]:
    """How many runs there are of each status, leaving out those of which there are none."""
    query = _Query(schema)
    of_namespace = f"run.namespace = {query.text(namespace)} AND {query.filter(where)}"
    select = f"SELECT run.status, count(*) FROM {schema}.executions AS run WHERE"
    sql = (
        f"{select} run.is_open AND {of_namespace} GROUP BY 1 UNION ALL "
        f"{select} NOT run.is_open AND {of_namespace} GROUP BY 1"
    )
    return {STATUS_OF_NAME[status]: count for status, count in await connection.fetch(sql, *query.values)}


async def list_search_attributes(connection: Connection, schema: str, namespace: str) -> dict[str, str]:
    """The names in use in a namespace, with the type each was first given."""
    rows = await connection.fetch(
        f"SELECT name, kind FROM {schema}.search_attribute_names WHERE namespace = $1 ORDER BY name",
        stored_text(namespace),
    )
    return {plain_text(name): kind for name, kind in rows}


class _Query:
    """The parameters of a statement that is being composed."""

    def __init__(self, schema: str) -> None:
        self.schema = schema
        self.values: list[Any] = []

    def bind(self, value: Any, kind: str) -> str:
        """A parameter."""
        self.values.append(value)
        return f"${len(self.values)}::{kind}"

    def text(self, value: str) -> str:
        """A text as it is stored."""
        return self.bind(stored_text(value), "text")

    def shards(self) -> str:
        """All shards there are, so that an index that begins with the shard can be used."""
        return f"(SELECT array_agg(n) FROM generate_series(0, (SELECT value - 1 FROM {self.schema}.meta " + (
            "WHERE key = 'shard_count')::int) AS n)::int4[]"
        )

    def filter(self, tree: VisibilityFilter | None) -> str:
        """The condition that `tree` says."""
        if tree is None:
            return "true"
        if not tree.conditions:
            return "false" if tree.any_of else "true"
        parts = [
            self.filter(condition) if isinstance(condition, VisibilityFilter) else self._condition(condition)
            for condition in tree.conditions
        ]
        return "(" + (" OR " if tree.any_of else " AND ").join(parts) + ")"

    def _condition(self, condition: VisibilityCondition) -> str:
        column = SYSTEM_COLUMNS.get(condition.attribute)
        if column is None:
            return self._search_attribute(condition)
        if condition.operator in ("IS NULL", "IS NOT NULL"):
            return f"{column} {condition.operator}"
        kind = "numeric" if condition.attribute in _NUMBERS else "text"
        sql = self._compare(column, condition.operator, [_bound(value) for value in condition.values], kind)
        if condition.attribute == "ExecutionStatus" and condition.operator in ("=", "IN"):
            return _openness(condition.values) + sql
        return sql

    def _compare(self, column: str, operator: str, values: Sequence[str | int | float], kind: str) -> str:
        match operator:
            case "IN" | "NOT IN":
                return ("NOT " if operator == "NOT IN" else "") + f"{column} = ANY({self._array(values, kind)})"
            case "BETWEEN":
                return f"{column} BETWEEN {self._value(values[0], kind)} AND {self._value(values[1], kind)}"
            case "STARTS_WITH" | "NOT STARTS_WITH":
                return self._starts_with(column, str(values[0]), is_negated=operator != "STARTS_WITH")
            case _ if operator in _COMPARISONS:
                return f"{column} {operator} {self._value(values[0], kind)}"
            case _:
                raise ValueError(f"a filter has the operator {operator!r}, which the store does not know")

    def _value(self, value: str | int | float, kind: str) -> str:
        if kind == "text":
            return self.text(str(value))
        if isinstance(value, int) and -(2**63) <= value < 2**63:
            return self.bind(value, "int8")
        return self.bind(str(value), "text") + "::numeric"

    def _array(self, values: Sequence[str | int | float], kind: str) -> str:
        if kind == "text":
            return self.bind([stored_text(str(value)) for value in values], "text[]")
        return self.bind([str(value) for value in values], "text[]") + "::numeric[]"

    def _starts_with(self, column: str, prefix: str, *, is_negated: bool) -> str:
        stored = stored_text(prefix)
        end = after_prefix(stored)
        inside = f"{column} >= {self.bind(stored, 'text')}"
        if end is not None:
            inside = f"({inside} AND {column} < {self.bind(end, 'text')})"
        return f"NOT ({inside})" if is_negated else inside

    # --- search attributes ------------------------------------------------------------------------------------------

    def _search_attribute(self, condition: VisibilityCondition) -> str:
        name, operator = condition.attribute, condition.operator
        table = f"{self.schema}.search_attributes AS a"
        if operator in ("=", "IN"):
            found = f"a.name = {self.text(name)} AND ({self._match(operator, condition.values)})"
            return f"(run.shard, run.run_key) IN (SELECT a.shard, a.run_key FROM {table} WHERE {found})"
        having = (
            f"EXISTS (SELECT 1 FROM {table} WHERE a.shard = run.shard AND a.run_key = run.run_key "
            f"AND a.name = {self.text(name)}"
        )
        if operator in ("IS NULL", "IS NOT NULL"):
            return ("NOT " if operator == "IS NULL" else "") + having + ")"
        positive = _NEGATED.get(operator)
        matching = f"{having} AND ({self._match(positive or operator, condition.values)}))"
        return matching if positive is None else f"({having}) AND NOT {matching})"

    def _match(self, operator: str, values: Sequence[Value]) -> str:
        """A comparison of a value, for each type that the values could be meant as."""
        sample = values[0]
        bound = [_bound(value) for value in values]
        if isinstance(sample, bool):
            return self._of_kinds(("Bool",), operator, bound)
        if isinstance(sample, datetime):
            return self._of_kinds(("Datetime",), operator, bound)
        if isinstance(sample, int | float):
            return self._of_kinds(("Int", "Double"), operator, bound)
        texts = [str(value) for value in values]
        sql = self._of_kinds(("Keyword", "KeywordList"), operator, texts)
        if operator in ("=", "IN"):
            found = [word for text in texts for word in words(text)]
            sql += " OR " + self._of_kinds(("Text",), "IN", found)
        instants = as_instants(texts)
        if instants and operator != "STARTS_WITH":
            sql += " OR " + self._of_kinds(("Datetime",), operator, instants)
        return sql

    def _of_kinds(self, kinds: tuple[str, ...], operator: str, values: Sequence[str | int | float]) -> str:
        is_text = kinds[0] in ("Keyword", "Text")
        column = "a.text_value" if is_text else "a.number_value"
        sql = self._compare(column, operator, values, "text" if is_text else "numeric")
        if is_text and operator in ("=", "IN"):
            # The index holds the first characters only.
            begins = self.bind([stored_text(str(value))[:200] for value in values], "text[]")
            sql = f"left(a.text_value, 200) = ANY({begins}) AND {sql}"
        names = ", ".join(f"'{kind}'" for kind in kinds)
        return f"(a.kind IN ({names}) AND {sql})"


def _openness(statuses: Sequence[object]) -> str:
    """What the statuses have in common, said so that the index of open or of closed runs can be used."""
    are_open = {STATUS_OF_NAME[str(name)] in OPEN_STATUSES for name in statuses}
    if are_open == {True}:
        return "run.is_open AND "
    return "NOT run.is_open AND " if are_open == {False} else ""


def _bound(value: Value) -> str | int | float:
    if isinstance(value, datetime):
        return to_micros(value)
    return int(value) if isinstance(value, bool) else value
