"""Bytecodes of the hot paths beside the recorded ones: ``python -m benchmarks.opcodes [--record] [--top N] [NAME …]``.

Owns: counting, the paths that are counted, and the record of them. Never: measures time.

How it works: time on a shared machine says little below a factor of two. The bytecodes that CPython executes for fixed
inputs are the same every time, and nearly all of the engine's time goes with them. So they are counted by a trace
function, with the collector off, on harnesses without threads, disk or clock. What C code does (encoding, SQLite) is
not seen. The numbers belong to one minor version of Python, which the record names.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

from benchmarks.hot_path import EarlyWorker, FixedWorker, HotPath, LocalStepsWorker, MachineWorker
from benchmarks.replaying import SHAPES, replay
from clew.ports.store import RunWrite
from clew.storage.sqlite.commit import GroupCommitter
from clew.storage.sqlite.search_attributes import AttributeNames
from clew.storage.sqlite.tasks import TaskClaims

RECORD: Final = Path(__file__).with_name("opcodes.json")
TOLERANCE: Final = 0.10
"""More than so much above the record fails the test."""

WORKFLOWS: Final = 40
WARM_UP: Final = 20
REPLAYED_STEPS: Final = 400

Counts = Counter[CodeType]


class OpcodeCounter:
    """Counts the bytecodes of this thread while it is entered."""

    def __init__(self) -> None:
        self.counts: Counts = Counter()

    def __enter__(self) -> OpcodeCounter:
        gc.collect()
        gc.disable()
        sys.settrace(self._on_call)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)
        gc.enable()

    def _on_call(self, frame: FrameType, event: str, argument: Any) -> Any:
        code, counts = frame.f_code, self.counts
        frame.f_trace_opcodes, frame.f_trace_lines = True, False

        def on_opcode(frame: FrameType, event: str, argument: Any) -> Any:
            if event == "opcode":
                counts[code] += 1
            return on_opcode

        return on_opcode


def count_workflows(*, has_express: bool, worker: type[FixedWorker] = FixedWorker) -> tuple[Counts, int]:
    """A run of three steps through the engine alone."""

    async def drive() -> Counts:
        async with HotPath(worker=worker, has_express=has_express) as path:
            await path.run(WARM_UP)
            with OpcodeCounter() as counter:
                await path.run(WORKFLOWS)
            return counter.counts

    return asyncio.run(drive()), WORKFLOWS


def count_rows() -> tuple[Counts, int]:
    """The rows of three-activity runs, made into the values of SQLite's statements."""

    async def drive() -> list[tuple[RunWrite, ...]]:
        async with HotPath() as path:
            await path.run(WORKFLOWS)
            return path.store.log

    units = asyncio.run(drive())
    committer = GroupCommitter("", TaskClaims(), AttributeNames())
    with OpcodeCounter() as counter:
        committer.collect(units)
    return counter.counts, WORKFLOWS


def count_replay(shape: str) -> tuple[Counts, int]:
    """A history of so many finished steps, replayed on a new machine."""
    make, workflow_class, _ = SHAPES[shape]
    for _ in range(2):  # What the first one imports, the guard looks through at the second.
        replay(make(WARM_UP), workflow_class)
    history = make(REPLAYED_STEPS)
    with OpcodeCounter() as counter:
        replay(history, workflow_class)
    return counter.counts, REPLAYED_STEPS


PATHS: Final[dict[str, Callable[[], tuple[Counts, int]]]] = {
    "engine, three activities": lambda: count_workflows(has_express=True),
    "engine, three activities, early tasks": lambda: count_workflows(has_express=True, worker=EarlyWorker),
    "engine and workflow machine, three activities": lambda: count_workflows(has_express=True, worker=MachineWorker),
    "engine, three activities, the general way": lambda: count_workflows(has_express=False),
    "engine, three local steps": lambda: count_workflows(has_express=True, worker=LocalStepsWorker),
    "engine, three local steps, the general way": lambda: count_workflows(has_express=False, worker=LocalStepsWorker),
    "rows for SQLite, three activities": count_rows,
    "replay of a local step": lambda: count_replay("local steps"),
    "replay of an activity": lambda: count_replay("activities"),
}
"""What is counted; each answers with the counts and the number of runs they are for."""


def recorded() -> dict[str, Any]:
    """The record: ``python``, the minor version it is for, and ``paths``."""
    return json.loads(RECORD.read_text(encoding="utf-8"))


def python_version() -> str:
    """This interpreter's minor version."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def main() -> None:
    """Count, and show or record."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.opcodes", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="paths; all when none is named")
    parser.add_argument("--record", action="store_true", help="write what is counted to the record")
    parser.add_argument("--total", action="store_true", help="print the bytecodes a run alone, for one path")
    parser.add_argument("--top", type=int, default=0, help="show the functions that take most")
    options = parser.parse_args()
    known = recorded()
    paths = dict(known["paths"]) if known["python"] == python_version() else {}
    for name in options.names or PATHS:
        counts, runs = PATHS[name]()
        total = round(sum(counts.values()) / runs, 1)
        if options.total:
            print(total)
            continue
        print(f"{name:<44} {total:>9.1f}" + (f"   recorded {paths[name]:.1f}" if name in paths else ""))
        for code, number in counts.most_common(options.top):
            print(f"    {number / runs:>9.1f}  {code.co_qualname}")
        if options.record:
            paths[name] = total
    if options.record:
        RECORD.write_text(json.dumps({"python": python_version(), "paths": paths}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
