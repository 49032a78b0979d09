"""The statement of a commit: guards, runs, history and all rows beside, for any number of units at once.

Owns: the text of that statement, composed of the sections that a batch needs. Never: what the values are, or who loses.

How it works: every section takes its rows as arrays, one a column. The sections that write runs are guarded row by row
and give back the ordinals of the units that held; everything else joins with those, so what belongs to a unit that lost
is not written. One statement is one transaction and one round trip. A statement sees the tables as they were at its
start, so no key may be touched by two of its sections: `commit` keeps that.

Columns travel in few pieces: numbers and texts as text, as the server writes arrays, bytes as all of them in one piece
with the place and the size of each. Python makes that of a list at once, while the driver would encode value by value,
which costs more than all the rest of sending a row. The server reads both equally fast.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from itertools import accumulate
from typing import Any, Final, NamedTuple, cast


class Section(NamedTuple):
    """One part of the statement; ``{rows}`` in `sql` are its rows, ``{s}`` is the schema."""

    columns: tuple[tuple[str, str], ...]
    sql: str


WORD: Final = "word"
"""A kind of column: text from a fixed list of plain words."""

_ORDINAL: Final = ("ordinal", "int4")
_KEY: Final = (("shard", "int4"), ("run_key", "int8"))
_WRITE: Final = (
    ("version", "int8"),
    ("status", WORD),
    ("is_open", "bool"),
    ("is_busy", "bool"),
    ("attention_at", "int8"),
    ("history_length", "int8"),
    ("history_size_bytes", "int8"),
    ("state", "bytea"),
)
_BATCH: Final = (("first_event_id", "int8"), ("last_event_id", "int8"), ("events", "bytea"))
_NAMES: Final = (("namespace", "text"), ("workflow_id", "text"), ("run_id", "text"))
_VISIBILITY: Final = (
    ("workflow_type", "text"),
    ("task_queue", "text"),
    ("start_time", "int8"),
    ("execution_time", "int8"),
    ("close_time", "int8"),
    ("first_execution_run_id", "text"),
    ("parent_workflow_id", "text"),
    ("parent_run_id", "text"),
    ("root_workflow_id", "text"),
    ("root_run_id", "text"),
    ("memo", "text"),
    ("search_attributes", "text"),
)

_WAKE_WINDOW_MICROS: Final = 300_000_000
"""How far `attention_at` may be behind `wake_after` before that follows it."""

_SET: Final = ", ".join(f"{name} = d.{name}" for name, _ in _WRITE)
_SET_WAKE: Final = (
    "commit_id = $1, wake_after = CASE WHEN NOT d.is_open THEN NULL "
    f"WHEN d.attention_at BETWEEN e.wake_after AND e.wake_after + {_WAKE_WINDOW_MICROS} THEN e.wake_after "
    "ELSE d.attention_at END"
)
_SET_VISIBILITY: Final = ", ".join(f"{name} = d.{name}" for name, _ in _VISIBILITY)
_GUARD: Final = "e.shard = d.shard AND e.run_key = d.run_key AND e.version = d.expected_version"
_RETURNED: Final = "d.ordinal, d.shard, d.run_key, d.first_event_id, d.last_event_id, d.events"
_HELD: Final = "(d.ordinal IN (SELECT ordinal FROM held)) IS TRUE"
"""Said so that it is looked up in a hash table: as a join it would be a loop in a loop where hash joins are off."""

_INSERTED: Final = ", ".join(name for name, _ in (*_KEY, *_WRITE, *_NAMES, *_VISIBILITY))

RUN_SECTIONS: Final = {
    "updates": Section(
        (_ORDINAL, *_KEY, ("expected_version", "int8"), *_WRITE, *_BATCH),
        f"updates AS (UPDATE {{s}}.executions AS e SET {_SET}, {_SET_WAKE} FROM {{rows}} WHERE {_GUARD} "
        f"RETURNING {_RETURNED})",
    ),
    "revisions": Section(
        (_ORDINAL, *_KEY, ("expected_version", "int8"), *_WRITE, *_BATCH, *_VISIBILITY),
        f"revisions AS (UPDATE {{s}}.executions AS e SET {_SET}, {_SET_WAKE}, {_SET_VISIBILITY} FROM {{rows}} "
        f"WHERE {_GUARD} RETURNING {_RETURNED})",
    ),
    "inserts": Section(
        (_ORDINAL, *_KEY, ("previous_run_key", "int8"), *_WRITE, *_BATCH, *_NAMES, *_VISIBILITY, ("is_latest", "bool")),
        "new_rows AS MATERIALIZED (SELECT * FROM {rows}), "
        f"new_runs AS (INSERT INTO {{s}}.executions ({_INSERTED}, previous_run_key, is_latest, commit_id, wake_after) "
        f"SELECT {_INSERTED}, previous_run_key, is_latest, $1, CASE WHEN is_open THEN attention_at END FROM new_rows "
        "ON CONFLICT (shard, namespace, workflow_id) WHERE is_latest DO NOTHING RETURNING run_key), "
        "inserts AS (SELECT r.ordinal, r.shard, r.run_key, r.first_event_id, r.last_event_id, r.events "
        "FROM new_rows AS r WHERE (r.run_key IN (SELECT run_key FROM new_runs)) IS TRUE)",
    ),
}
"""Those that write runs: rows without and with a change of visibility, and new runs."""

SIDE_SECTIONS: Final = {
    "history": Section(
        (_ORDINAL, *_KEY, *_BATCH),
        "side_history AS (INSERT INTO {s}.history (shard, run_key, first_event_id, last_event_id, events) "
        "SELECT d.shard, d.run_key, d.first_event_id, d.last_event_id, d.events FROM {rows} WHERE {held})",
    ),
    "items_delete": Section(
        (_ORDINAL, *_KEY, ("kind", "int4"), ("item_id", "int8")),
        "items_delete AS (DELETE FROM {s}.pending_items AS p USING {rows} "
        "WHERE {held} AND p.shard = d.shard AND p.run_key = d.run_key AND p.kind = d.kind AND p.item_id = d.item_id)",
    ),
    "items_put": Section(
        (_ORDINAL, *_KEY, ("kind", "int4"), ("item_id", "int8"), ("data", "bytea")),
        "items_put AS (INSERT INTO {s}.pending_items (shard, run_key, kind, item_id, data) "
        "SELECT d.shard, d.run_key, d.kind, d.item_id, d.data FROM {rows} WHERE {held} "
        "ON CONFLICT (shard, run_key, kind, item_id) DO UPDATE SET data = excluded.data)",
    ),
    "tasks_delete": Section(
        (_ORDINAL, ("shard", "int4"), ("task_id", "int8")),
        "tasks_delete AS (DELETE FROM {s}.tasks AS t USING {rows} "
        "WHERE {held} AND t.shard = d.shard AND t.task_id = d.task_id)",
    ),
    "tasks_put": Section(
        (
            _ORDINAL,
            ("task_id", "int8"),
            *_KEY,
            ("namespace", "text"),
            ("task_queue", "text"),
            ("kind", "int2"),
            ("scheduled_event_id", "int8"),
            ("attempt", "int4"),
            ("priority", "int2"),
        ),
        "tasks_put AS (INSERT INTO {s}.tasks (task_id, shard, run_key, namespace, task_queue, kind, "
        "scheduled_event_id, attempt, priority, claimed_until) "
        "SELECT d.task_id, d.shard, d.run_key, d.namespace, d.task_queue, d.kind, d.scheduled_event_id, d.attempt, "
        "d.priority, 0 FROM {rows} WHERE {held} "
        "ON CONFLICT (shard, task_id) DO UPDATE SET run_key = excluded.run_key, namespace = excluded.namespace, "
        "task_queue = excluded.task_queue, kind = excluded.kind, scheduled_event_id = excluded.scheduled_event_id, "
        "attempt = excluded.attempt, priority = excluded.priority, claimed_until = 0)",
    ),
    "outbox_delete": Section(
        (_ORDINAL, ("shard", "int4"), ("message_id", "int8")),
        "outbox_delete AS (DELETE FROM {s}.outbox AS o USING {rows} "
        "WHERE {held} AND o.shard = d.shard AND o.message_id = d.message_id)",
    ),
    "outbox_put": Section(
        (_ORDINAL, ("message_id", "int8"), *_KEY, ("body", "bytea")),
        "outbox_put AS (INSERT INTO {s}.outbox (message_id, shard, run_key, body) "
        "SELECT d.message_id, d.shard, d.run_key, d.body FROM {rows} WHERE {held} "
        "ON CONFLICT (shard, message_id) DO UPDATE SET run_key = excluded.run_key, body = excluded.body)",
    ),
    "attributes_clear": Section(
        (_ORDINAL, *_KEY, ("name", "text"), ("count", "int4")),
        # One row a name that the run has from now on, with how many values; and one without a name for the run itself.
        "kept_names AS MATERIALIZED (SELECT * FROM {rows}), "
        "attributes_clear AS (DELETE FROM {s}.search_attributes AS a USING kept_names AS r "
        "WHERE (r.ordinal IN (SELECT ordinal FROM held)) IS TRUE AND r.name IS NULL AND a.shard = r.shard "
        "AND a.run_key = r.run_key AND NOT EXISTS (SELECT 1 FROM kept_names AS k WHERE k.shard = a.shard "
        "AND k.run_key = a.run_key AND k.name = a.name AND a.ordinal < k.count))",
    ),
    "attributes_put": Section(
        (
            _ORDINAL,
            *_KEY,
            ("name", "text"),
            ("place", "int4"),
            ("kind", "text"),
            ("text_value", "text"),
            ("number_value", "text"),
        ),
        "attributes_put AS (INSERT INTO {s}.search_attributes "
        "(shard, run_key, name, ordinal, kind, text_value, number_value) "
        "SELECT d.shard, d.run_key, d.name, d.place, d.kind, d.text_value, d.number_value::numeric "
        "FROM {rows} WHERE {held} ON CONFLICT (shard, run_key, name, ordinal) DO UPDATE "
        "SET kind = excluded.kind, text_value = excluded.text_value, number_value = excluded.number_value)",
    ),
    "names_put": Section(
        (_ORDINAL, ("namespace", "text"), ("name", "text"), ("kind", "text")),
        "names_put AS (INSERT INTO {s}.search_attribute_names (namespace, name, kind) "
        "SELECT d.namespace, d.name, d.kind FROM {rows} WHERE {held} "
        "ON CONFLICT (namespace, name) DO NOTHING)",
    ),
}

SECTIONS: Final = {**RUN_SECTIONS, **SIDE_SECTIONS}

UNLATCH: Final = (
    "UPDATE {s}.executions AS e SET is_latest = false "
    "FROM unnest($1::int4[], $2::int8[], $3::int8[]) AS d (shard, run_key, closing_version) "
    # Said so that the index on the latest runs of workflow ids, which knows nothing of run keys, is not taken.
    "WHERE e.shard = d.shard AND e.run_key = d.run_key AND e.is_latest::int4 = 1 "
    "AND CASE WHEN d.closing_version = 0 THEN NOT e.is_open ELSE e.version = d.closing_version END "
    "RETURNING e.run_key"
)
"""Make room for the run that follows: the one before is closed, or is closed by the same unit (from that version)."""


_LONE_COLUMNS: Final = (*_KEY, ("expected_version", "int8"), *_WRITE, *_BATCH)


@lru_cache(maxsize=16)
def lone_statement(schema: str) -> str:
    """The statement of a commit that is one plain update: as `statement` of "updates" alone, with values for arrays.

    Parameter 1 is the id of the commit; then come `_LONE_COLUMNS`. It gives back how many runs held, one or none.
    """
    of = {name: f"${number}::{_type_of(kind)}" for number, (name, kind) in enumerate(_LONE_COLUMNS, 2)}
    written = ", ".join(f"{name} = {of[name]}" for name, _ in _WRITE)
    wake = _SET_WAKE.replace("d.is_open", of["is_open"]).replace("d.attention_at", of["attention_at"])
    key = " AND ".join(f"e.{name} = {of[name]}" for name, _ in _KEY)
    batch = ", ".join(of[name] for name, _ in _BATCH)
    return (
        f"WITH updates AS (UPDATE {schema}.executions AS e SET {written}, {wake} "
        f"WHERE {key} AND e.version = {of['expected_version']} RETURNING e.shard, e.run_key), "
        f"first_history AS (INSERT INTO {schema}.history (shard, run_key, first_event_id, last_event_id, events) "
        f"SELECT shard, run_key, {batch} FROM updates WHERE {of['first_event_id']} IS NOT NULL) "
        "SELECT count(*) FROM updates"
    )


def _type_of(kind: str) -> str:
    return "text" if kind == WORD else kind


@lru_cache(maxsize=1024)
def statement(schema: str, names: tuple[str, ...]) -> str:
    """The statement that has these sections, which gives back nothing when all runs held, else the ordinals of those.

    Parameter 1 is the id of the commit, 2 is how many runs it writes; then come the columns in order.
    """
    parts: list[str] = []
    number = 3
    runs = [name for name in names if name in RUN_SECTIONS]
    for name in names:
        section = SECTIONS[name]
        rows, number = _rows(section, number)
        parts.append(section.sql.format(s=schema, rows=rows, held=_HELD))
        if name == runs[-1]:
            parts += _after_runs(schema, runs)
    lost = "CASE WHEN count(*) < $2::int4 THEN coalesce(array_agg(ordinal), '{}') END"
    return "WITH " + ", ".join(parts) + f" SELECT {lost} FROM held"


def _rows(section: Section, number: int) -> tuple[str, int]:
    """The rows of a section as a table ``d`` made of parameters from `number` on, and the number after those."""
    arrays: list[str] = []
    sent: list[str] = []
    columns: list[str] = []
    for column, kind in section.columns:
        if kind == "bytea":
            arrays += [f"${number + 1}::text::int4[]", f"${number + 2}::text::int4[]"]
            sent += [f"{column}_at", f"{column}_size"]
            columns.append(f"substr(${number}::bytea, {column}_at, {column}_size) AS {column}")
            number += 3
        else:
            arrays.append(f"${number}::text::{_type_of(kind)}[]")
            sent.append(column)
            columns.append(column)
            number += 1
    table = f"unnest({', '.join(arrays)}) AS d ({', '.join(sent)})"
    return table if columns == sent else f"(SELECT {', '.join(columns)} FROM {table}) AS d", number


def parameters(name: str, rows: Iterable[tuple[Any, ...]]) -> list[Any]:
    """The columns of these rows of a section, as `statement` expects them."""
    values: list[Any] = []
    for column, (_, kind) in zip(zip(*rows, strict=True), SECTIONS[name].columns, strict=True):
        if kind == "bytea":
            values += _in_one_piece(column)
        elif kind == "text":
            values.append(_to_quoted_text(column))
        else:
            values.append("{" + ",".join(column) + "}" if kind == WORD else _numbers(column))
    return values


def _numbers(column: Iterable[Any]) -> str:
    """An array of numbers or truth values as the server reads it."""
    # What Python writes is what the server reads, but for the brackets and for what is missing.
    return "{" + repr(list(column))[1:-1].replace("None", "NULL") + "}"


def _to_quoted_text(column: tuple[str | None, ...]) -> str:
    """An array of texts as the server writes it, all of them in quotes."""
    if None not in column:
        joined: str = '","'.join(cast("tuple[str, ...]", column))
        if "\\" not in joined and joined.count('"') == 2 * (len(column) - 1):
            return '{"' + joined + '"}'
    return "{" + ",".join(["NULL" if text is None else _quoted(text) for text in column]) + "}"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _in_one_piece(column: tuple[bytes | None, ...]) -> tuple[bytes, str, str]:
    """All bytes of a column, where each begins (counted from 1) and how long it is."""
    if None in column:
        sizes = [None if value is None else len(value) for value in column]
        ends = list(accumulate([size or 0 for size in sizes], initial=1))
        return b"".join([value for value in column if value]), _numbers(ends[:-1]), _numbers(sizes)
    values = cast("tuple[bytes, ...]", column)
    lengths = list(map(len, values))
    return b"".join(values), _numbers(list(accumulate(lengths, initial=1))[:-1]), _numbers(lengths)


def _after_runs(schema: str, runs: Iterable[str]) -> list[str]:
    events = " UNION ALL ".join(
        f"SELECT shard, run_key, first_event_id, last_event_id, events FROM {name} WHERE first_event_id IS NOT NULL"
        for name in runs
    )
    return [
        "held AS (" + " UNION ALL ".join(f"SELECT ordinal FROM {name}" for name in runs) + ")",
        f"first_history AS (INSERT INTO {schema}.history (shard, run_key, first_event_id, last_event_id, events) "
        f"{events})",
    ]
