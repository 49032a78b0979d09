"""What all drivers share: the step, its table, and results as text.

Owns: `Step` and the DDL. Never: a connection.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final, Literal, TypeAlias, cast, final
from uuid import UUID

import msgspec

from clew.contrib.idempotency import current_idempotency_key
from clew.converter import CallableSignature, DataConverter, Payload
from clew.exceptions import ClewError, DecodeError
from clew.model.payload import from_stored, to_stored

TABLE_DEFAULT: Final = "clew_steps"
KEY_CHARS_MAX: Final = 255
_SHOWN_CHARS: Final = 100
Dialect: TypeAlias = Literal["sqlite", "postgresql"]

_PLAIN_TYPES: Final = frozenset(
    (type(None), bool, int, float, str, bytes, datetime, date, time, timedelta, Decimal, UUID)
)

_TABLE_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?")
_DDL: Final[dict[Dialect, str]] = {
    "sqlite": (
        "CREATE TABLE IF NOT EXISTS {table} (\n"
        "    step_key TEXT NOT NULL PRIMARY KEY,\n"
        "    result TEXT,\n"
        "    recorded_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP\n"
        ")"
    ),
    "postgresql": (
        "CREATE TABLE IF NOT EXISTS {table} (\n"
        "    step_key varchar(255) PRIMARY KEY,\n"
        "    result text,\n"
        "    recorded_at timestamptz NOT NULL DEFAULT CURRENT_TIMESTAMP\n"
        ")"
    ),
}


class StepError(ClewError):
    """A step was not used as it must be, so it cannot be told whether it took effect."""


@final
class Step:
    """One step inside its block.

    Attributes:
        key: By which it is recorded.
        is_done: Whether an earlier attempt did it. Then change nothing: `result` is what it recorded.
    """

    def __init__(self, key: str, *, is_done: bool, result: Any = None) -> None:
        self.key = key
        self.is_done = is_done
        self._result = result

    def __repr__(self) -> str:
        return f"<Step {self.key} {'done' if self.is_done else 'new'}>"

    @property
    def result(self) -> Any:
        """What was recorded, by this attempt or an earlier one; None if nothing was."""
        return self._result

    def record(self, result: Any) -> None:
        """Record the result, to be committed with the step.

        Raises:
            StepError: The step is done already; the block must look at `is_done` first.
        """
        if self.is_done:
            raise StepError(
                f"Step {self.key} was done by an earlier attempt, and its block ran again. Begin the block with "
                "`if not step.is_done:`, or use run_once, which leaves it out. Roll this transaction back."
            )
        self._result = result


def create_table_sql(dialect: Dialect, table: str = TABLE_DEFAULT) -> str:
    """Give the DDL of the table of keys, for your migrations.

    Args:
        dialect: ``sqlite`` or ``postgresql``; ``clew.contrib.sql.sqlalchemy.steps_table`` serves every other.
        table: Its name, perhaps with a schema.

    Raises:
        ValueError: The dialect is unknown, or the name is none.
    """
    if dialect not in _DDL:
        raise ValueError(f"There is no DDL for {dialect!r}; there is for {', '.join(_DDL)}.")
    return _DDL[dialect].format(table=checked_table(table))


def checked_table(table: str) -> str:
    """Give the name back, if it can stand in a statement as it is.

    Raises:
        ValueError: It cannot.
    """
    if not _TABLE_NAME.fullmatch(table):
        raise ValueError(f"The table is named {table!r}; use letters, digits and underscores, perhaps after a schema.")
    return table


def step_key(key: str | None, step: str | None) -> str:
    """Give the key of a step.

    Args:
        key: Given by the caller; None for that of the running activity.
        step: Names the step within the activity.

    Raises:
        RuntimeError: No key is given, and no activity is running here.
        ValueError: Both are given, or the key is empty or too long.
    """
    if key is None:
        return current_idempotency_key(step)
    if step is not None:
        raise ValueError("Give either key or step: a step has the activity's key with the step's name in it.")
    if not 0 < len(key) <= KEY_CHARS_MAX:
        raise ValueError(f"A key has 1 to {KEY_CHARS_MAX} characters, but this one has {len(key)}.")
    return key


def result_type_of(body: Callable[..., Any], result_type: Any | None) -> Any | None:
    """Give the type of what `body` returns, by its annotations, unless it is given."""
    return result_type if result_type is not None else CallableSignature(body).return_type


def encode_result(step: Step, result_type: Any | None) -> str:
    """Give the result of a step as text, once it is sure that a repeat will get the same.

    Raises:
        EncodeError: It cannot be converted.
        StepError: A repeat would get something else, or nothing.
    """
    [payload] = DataConverter.default.payload_converter.to_payloads([step.result])
    try:
        repeated = _from_payload(payload, result_type)
    except DecodeError as error:
        raise StepError(
            f"Step {step.key} gave {_short(step.result)}, which does not fit the type that it is said to give "
            f"({error}). A repeat could not be given it, so it is undone. Correct the annotation of what the step "
            "returns, or result_type."
        ) from error
    if not _is_same(repeated, step.result):
        said = "since nothing says its type" if result_type is None else "by the type that it is said to give"
        raise StepError(
            f"Step {step.key} gave {_short(step.result)}, but a repeat would be given {_short(repeated)}, {said}; so "
            "it is undone. Annotate what the step returns (a lambda cannot be), or pass "
            f"result_type={type(step.result).__name__}; or return what JSON can say."
        )
    return bytes(to_stored(payload)).decode()


def _is_same(repeated: Any, given: Any) -> bool:
    """Whether nobody could tell what a repeat is given from what the first attempt was."""
    if type(repeated) is type(given):
        return repeated == given or not _is_plain(given)
    return isinstance(given, (int, float)) and isinstance(repeated, (int, float)) and repeated == given


def _is_plain(value: Any) -> bool:
    """Whether values of its type, and of what it holds, equal each other when they are the same, as those of a class of
    the user need not."""
    if isinstance(value, dict):
        items = cast("dict[Any, Any]", value)
        return all(map(_is_plain, items)) and all(map(_is_plain, items.values()))
    if isinstance(value, (list, tuple, set, frozenset)):
        return all(map(_is_plain, cast("Iterable[Any]", value)))
    return type(value) in _PLAIN_TYPES and value == value


def decode_done(key: str, text: str | None, result_type: Any | None, table: str) -> Step:
    """Give the step that an earlier attempt did.

    Raises:
        StepError: It was committed from within its block, so that what it did is not known.
        DecodeError: The result does not fit `result_type`.
    """
    if text is None:
        raise StepError(
            f"Step {key} was begun but not ended, and yet is in table {table!r}: its transaction was committed from "
            "within its block. Find out whether it took effect; then delete the row to let it run, or set its result "
            "to the JSON that it should give. Commit only after the block."
        )
    result = _from_payload(from_stored(msgspec.Raw(text.encode())), result_type)
    return Step(key, is_done=True, result=result)


def _from_payload(payload: Payload, result_type: Any | None) -> Any:
    hints = [result_type] if result_type is not None else None
    [value] = DataConverter.default.payload_converter.from_payloads([payload], hints)
    return value


def _short(value: Any) -> str:
    text = repr(value)
    shown = text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"
    return f"{shown} ({type(value).__name__})"
