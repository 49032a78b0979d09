"""Comparing histories, and the list of differences that have a reason.

Owns: what counts as a difference. Never: runs anything.

How it works: the sequence of event types of each run has to be the same; if it is, every field of every event has to be
the same too. ``differences.toml`` lists what may differ: by event type and field (for all programs or for some), or the
whole sequence of one program's run, always with the reason.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

Histories = dict[str, list[dict[str, Any]]]

REASONS_FILE: Final = Path(__file__).parent / "differences.toml"


@dataclass(frozen=True)
class Difference:
    """One field of one event (`field` is a dotted path), or the events of one run (`field` is ``events``)."""

    run: str
    event_type: str
    field: str
    theirs: Any
    ours: Any

    def __str__(self) -> str:
        return f"{self.run}: {self.event_type}.{self.field}\n  theirs: {self.theirs!r}\n  ours:   {self.ours!r}"


@dataclass(frozen=True)
class Reason:
    """Why a difference is there; `programs` empty means all."""

    event: str
    field: str
    because: str
    programs: tuple[str, ...] = ()

    def explains(self, program: str, difference: Difference) -> bool:
        """Whether this is that difference."""
        return (
            (not self.programs or program in self.programs)
            and self.event in ("*", difference.event_type)
            and (difference.field == self.field or difference.field.startswith(self.field + "."))
        )


@dataclass(frozen=True)
class Reasons:
    """All that is listed."""

    listed: tuple[Reason, ...]

    def split(self, program: str, differences: Sequence[Difference]) -> tuple[list[Difference], set[Reason]]:
        """The differences that nothing explains, and the reasons that explained some."""
        unexplained: list[Difference] = []
        used: set[Reason] = set()
        for difference in differences:
            reasons = [reason for reason in self.listed if reason.explains(program, difference)]
            used.update(reasons)
            if not reasons:
                unexplained.append(difference)
        return unexplained, used


def load_reasons(path: Path = REASONS_FILE) -> Reasons:
    """Read the list."""
    with path.open("rb") as file:
        entries = tomllib.load(file)["difference"]
    return Reasons(
        tuple(
            Reason(entry["event"], entry["field"], entry["because"], tuple(entry.get("programs", ())))
            for entry in entries
        )
    )


def compare(theirs: Histories, ours: Histories) -> list[Difference]:
    """What differs, run by run."""
    found: list[Difference] = []
    if list(theirs) != list(ours):
        found.append(Difference("", "", "runs", list(theirs), list(ours)))
    for run in [run for run in theirs if run in ours]:
        types = [event["type"] for event in theirs[run]], [event["type"] for event in ours[run]]
        if types[0] != types[1]:
            found.append(Difference(run, "", "events", *types))
            continue
        for one, other in zip(theirs[run], ours[run], strict=True):
            found += _fields(run, one["type"], "", one, other)
    return found


def _fields(run: str, event_type: str, path: str, theirs: Any, ours: Any) -> list[Difference]:
    if isinstance(theirs, dict) and isinstance(ours, dict):
        found: list[Difference] = []
        for key in sorted({*theirs, *ours}):
            found += _fields(run, event_type, f"{path}.{key}".lstrip("."), theirs.get(key), ours.get(key))
        return found
    return [] if theirs == ours else [Difference(run, event_type, path, theirs, ours)]
