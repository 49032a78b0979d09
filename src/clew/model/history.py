"""One run's whole history, as it is exported, kept in files and replayed.

Owns: `WorkflowHistory` and its JSON. Never: where a history is read from, or what it means to code.

How it works: the JSON is the stored form of the events (RFC 3339 instants, payloads that are JSON as that JSON, others
as base64 with their metadata) under ``events``, with the names of the run beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from clew.model.events import Event, WorkflowExecutionStarted


class _Export(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    workflow_id: str = ""
    run_id: str = ""
    events: list[Event]


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(_Export)


@dataclass(frozen=True)
class WorkflowHistory:
    """The events of one run, in order.

    Args:
        workflow_id: Id of the workflow the run belongs to.
        events: All its events so far.
    """

    workflow_id: str
    events: Sequence[Event]

    def __iter__(self) -> Iterator[Event]:
        return iter(self.events)

    def __len__(self) -> int:
        return len(self.events)

    @property
    def run_id(self) -> str:
        """The run, as its first event names it.

        Raises:
            ValueError: The history is empty or does not begin with its start.
        """
        return self.started.original_execution_run_id

    @property
    def started(self) -> WorkflowExecutionStarted:
        """The first event.

        Raises:
            ValueError: The history is empty or does not begin with its start.
        """
        if not self.events or not isinstance(self.events[0], WorkflowExecutionStarted):
            first = type(self.events[0]).__name__ if self.events else "nothing"
            raise ValueError(
                f"A history begins with WorkflowExecutionStarted, but this one of {self.workflow_id!r} begins with "
                f"{first}. Fetch it from event 1 on."
            )
        return self.events[0]

    def to_json(self, *, indent: int | None = None) -> str:
        """Give the history as JSON text.

        Args:
            indent: Spaces a level for people to read; None gives one line.
        """
        run_id = self.run_id if self.events else ""
        data = _encoder.encode(_Export(workflow_id=self.workflow_id, run_id=run_id, events=list(self.events)))
        return (msgspec.json.format(data, indent=indent) if indent is not None else data).decode()

    def to_json_dict(self) -> dict[str, Any]:
        """Give the history as plain JSON values."""
        plain: dict[str, Any] = msgspec.json.decode(self.to_json())
        return plain

    @staticmethod
    def from_json(workflow_id: str | None, history: str | bytes | Mapping[str, Any]) -> WorkflowHistory:
        """Read a history back.

        Args:
            workflow_id: Id to give it; None takes the one in the JSON.
            history: What `to_json` or `to_json_dict` gave.

        Raises:
            ValueError: It is not a history; the message says where.
        """
        data = history if isinstance(history, (str, bytes)) else _encoder.encode(history)
        try:
            # Without the white space of an indented export, which is no part of the payloads.
            export = _decoder.decode(msgspec.json.format(data, indent=-1))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ValueError(
                f"This is not an exported history: {error}. Expected JSON with an 'events' array, as "
                "`WorkflowHistory.to_json` and `clew workflow show --output json` give it."
            ) from error
        return WorkflowHistory(workflow_id if workflow_id is not None else export.workflow_id, export.events)
