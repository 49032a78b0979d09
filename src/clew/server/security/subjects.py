"""What a call is about, in ids: for the audit log and for logs.

Owns: which fields of requests are ids and names, and so may be written down. Never: payloads, headers, memos, reasons
and other free text, which may hold anything.
"""

from __future__ import annotations

from typing import Any, Final

_FIELDS: Final = (
    "workflow_id", "run_id", "first_execution_run_id", "workflow_type", "task_queue", "signal_name", "query_type",
    "update_id", "activity_id", "activity_type", "scheduled_event_id", "attempt", "deployment_name", "build_id",
    "key_id", "name", "grants", "instance_id", "identity",
)  # fmt: skip
"""Names of fields; the first two of an update's request are found in its own struct."""

_PARTS: Final = ("start", "update", "request", "token", "target")
"""Fields that hold a struct with ids of its own."""

CHARS_MAX: Final = 1_000
"""Of one value; ids are no longer (`Limits.id_bytes_max`), and what a hostile caller sends is cut."""


def subject_of(request: Any) -> dict[str, str]:
    """The ids in a request; those of its parts fill in what it does not say itself."""
    subject: dict[str, str] = {}
    _gather(request, subject)
    for part in _PARTS:
        value = getattr(request, part, None)
        if value is not None:
            _gather(value, subject)
    return subject


def _gather(struct: Any, subject: dict[str, str]) -> None:
    for name in _FIELDS:
        value = getattr(struct, name, None)
        if not value or name in subject:
            continue
        if isinstance(value, str | int):
            subject[name] = str(value)[:CHARS_MAX]
        elif name == "grants":
            subject[name] = " ".join(value)[:CHARS_MAX]
