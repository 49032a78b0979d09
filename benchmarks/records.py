"""What was measured of engines beside each other: a file of lines, medians of it, and the page that shows them.

Owns: the record of one measurement, how a figure of Clew stands to the others', and the layout of a page. Never:
measures (``benchmarks.peers``), or knows whose turn it is (``beside``, ``servers``, ``postgres``).

How it works: each measurement adds one line of JSON, so a long comparison can be made in parts; a table has the medians
of what is there.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.peers import SHOWN, SIZES, Figures, Peer, Shown

OURS: Final = Peer(
    "clew",
    "Clew",
    packages=(),
    stores=("sqlite", "postgres"),
    workloads=tuple(SIZES),
    settings="engine, worker and caller in one process, everything at its default but for 200 tasks at once",
)
FLOOR: Final = "floor"

TITLES: Final = {
    "W1": "one workflow, 100 activities in sequence",
    "W1-LOCAL": "one workflow, 100 local steps in sequence",
    "W2": "workflows of three activities, 200 in flight",
    "W2-LOCAL": "workflows of three local steps, 200 in flight",
    "W3": "one workflow, 1,000 activities at once",
    "W4": "10,000 workflows that sleep for an hour",
    "W5": "1,000 sleepers, the process killed and started again",
    "W6": "a workflow with 1,000 finished activities, resumed after a kill",
    "W6-LOCAL": "a workflow with 1,000 finished local steps, resumed after a kill",
    "W7": "a message to a waiting workflow and its answer",
}

BASE: Final = {"W1-LOCAL": "W1", "W2-LOCAL": "W2", "W6-LOCAL": "W6"}
"""What stands in the line of local steps for an engine that has one kind of step."""

LOAD_OF_OUR_OWN: Final = 1.5
"""What a comparison itself adds to the load of each processor, at most."""

Record = dict[str, Any]


def read(path: Path) -> list[Record]:
    """What was measured so far."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def add(path: Path, workload: str, engine: str, figures: Figures | None, *, load: float, **more: str) -> None:
    """Add a line to the file, and show it.

    Args:
        path: The file.
        workload: What was measured.
        engine: Its name, or `FLOOR`.
        figures: None where the engine failed.
        load: The machine's load before.
        more: What else belongs to the line: the version of the engine, of the database server.
    """
    print(f"{workload} {engine}: {json.dumps(figures)}", flush=True)
    record = {
        "workload": workload,
        "engine": engine,
        "figures": figures,
        "at": time.strftime("%Y-%m-%d %H:%M"),
        "load": round(load, 1),
        **more,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")


def in_turn(engines: Sequence[Peer], turn: int) -> list[Peer]:
    """The engines in the order of this run: each run begins with another."""
    start = turn % max(1, len(engines))
    return [*engines[start:], *engines[:start]]


# --- medians ----------------------------------------------------------------------------------------------------------


def values(records: Iterable[Record], engine: Peer | None, workload: str, key: str) -> list[float]:
    """What was found of one figure of an engine, None for the floor; of its one kind of step, where it has one."""
    name = FLOOR if engine is None else engine.name
    has_one_kind = engine is not None and not any(each in BASE for each in engine.workloads)
    wanted = BASE.get(workload, workload) if has_one_kind else workload
    return [
        record["figures"][key]
        for record in records
        if record["engine"] == name and record["workload"] == wanted and key in (record["figures"] or {})
    ]


def median(records: Iterable[Record], engine: Peer | None, workload: str, key: str) -> float | None:
    """The median of one figure; None without any."""
    found = values(records, engine, workload, key)
    return statistics.median(found) if found else None


# --- showing ----------------------------------------------------------------------------------------------------------


def table(records: list[Record], others: Sequence[Peer], *, has_floor: bool = False) -> list[str]:
    """Lines of Markdown: the medians of all, and how Clew stands to the best of the others.

    Args:
        records: What was measured.
        others: The peers, in the order of their columns; those that nothing was measured of are left out.
        has_floor: Whether the floor has a column.
    """
    found = {record["engine"] for record in records}
    others = [peer for peer in others if peer.name in found]
    columns = ["workload", "figure", OURS.title, *(peer.title for peer in others), "Clew to the best of them"]
    columns += [*(["floor"] if has_floor else []), "runs"]
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for name in SIZES:
        for shown in SHOWN[name]:
            ours = median(records, OURS, name, shown.key)
            if ours is None:
                continue
            theirs = [median(records, peer, name, shown.key) for peer in others]
            cells = [f"{name}: {TITLES[name]}", shown.key, number(ours), *map(number, theirs)]
            cells.append(standing(shown, ours, theirs))
            cells += [number(median(records, None, name, shown.key))] if has_floor else []
            cells.append(_runs(records, name, [OURS, *others]))
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def _runs(records: list[Record], workload: str, engines: list[Peer]) -> str:
    """How often it was measured; a range when not all were equally often."""
    counts = {len(values(records, engine, workload, SHOWN[workload][0].key)) for engine in engines} - {0}
    return str(min(counts)) if len(counts) == 1 else f"{min(counts)}-{max(counts)}"


def number(value: float | None) -> str:
    """As a table shows it."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def standing(shown: Shown, ours: float, theirs: Iterable[float | None]) -> str:
    """How many times as good as the best of the others."""
    known = [value for value in theirs if value is not None]
    if not known:
        return "-"
    best = max(known) if shown.is_rate else min(known)
    if ours <= 0 or best <= 0:
        return "-"
    times = ours / best if shown.is_rate else best / ours
    return f"{times:.1f} times as good" if times >= 1 else f"**{1 / times:.1f} times as bad**"


def page(
    title: str, introduction: str, shown: list[str], remarks: str, records: list[Record], settings: list[str]
) -> str:
    """A page of the documentation.

    Args:
        title: Its heading.
        introduction: Above the table.
        shown: The table.
        remarks: Below it.
        records: What was measured; says when, and on how busy a machine.
        settings: Points about the machine and the engines.
    """
    lines = [f"# {title}", "", introduction, "", *shown, "", remarks, "", "## Machine and settings", ""]
    return "\n".join([*lines, *settings, *_when(records)]) + "\n"


def _when(records: list[Record]) -> list[str]:
    first, last = (f(record["at"] for record in records) for f in (min, max))
    loads = [record["load"] for record in records]
    is_quiet = statistics.median(loads) <= LOAD_OF_OUR_OWN * (os.cpu_count() or 1)
    machine = "a machine that did nothing else" if is_quiet else "a machine that did other work"
    versions = sorted({record["version"] for record in records if record.get("version")})
    return [
        f"- Measured from {first} to {last} UTC on {machine} (load {min(loads)} to {max(loads)}, that of the",
        "  engines in it). Ratios within a line travel better than figures. Where the load is far above the number of",
        "  processors, waiting times (W1, W5, W7) are the machine's as much as an engine's: compare CPU.",
        *([f"- Versions: {'; '.join(versions)}."] if versions else []),
    ]
