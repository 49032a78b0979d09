"""What every peer's program measures with: CPU and memory of processes, percentiles, marks in a file, a kill.

Owns: nothing of any peer. Never: imports one, or Clew, so that it runs in every environment. Linux only: the figures
are read from ``/proc``.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, NamedTuple

Figures = dict[str, float]

IN_FLIGHT: Final = 200
"""Workflows at once in W2 and W4."""

SLEEP_SECONDS: Final = 20.0
"""How long the sleepers of W5 sleep: longer than the slowest takes to have all of them asleep."""

_TICKS: Final = os.sysconf("SC_CLK_TCK")


def tree(pids: Iterable[int]) -> list[int]:
    """These processes and all that descend from them."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                fields = (folder / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
                children.setdefault(int(fields[1]), []).append(int(folder.name))
    found, waiting = [], list(pids)
    while waiting:
        pid = waiting.pop()
        found.append(pid)
        waiting += children.get(pid, [])
    return found


def cpu_seconds(pids: Iterable[int]) -> float:
    """CPU of these processes and their descendants."""
    total = 0.0
    for pid in tree(pids):
        with contextlib.suppress(OSError, IndexError):
            fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            total += (int(fields[11]) + int(fields[12])) / _TICKS
    return total


class Memory(NamedTuple):
    """Memory of processes in MB; what they share is counted once (PSS).

    Args:
        total: All of it: a database server's cache is in it as far as it was touched, up to the size it was given.
        held: What is in no file and not shared: what the processes hold for themselves.
    """

    total: float
    held: float


def memory(pids: Iterable[int]) -> Memory:
    """Memory of these processes and their descendants."""
    counts = Counter[str]()
    for pid in tree(pids):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").splitlines()[1:]:
                name, _, rest = line.partition(":")
                counts[name] += int(rest.split()[0])
    return Memory(total=counts["Pss"] * 1024 / 1e6, held=counts["Pss_Anon"] * 1024 / 1e6)


def memory_mb(pids: Iterable[int]) -> float:
    """All memory of these processes and their descendants in MB."""
    return memory(pids).total


def kill_tree(process: subprocess.Popen[bytes]) -> None:
    """End a process and its descendants as a power cut would."""
    for pid in tree([process.pid]):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


def report(figures: Figures) -> None:
    """Print the result, as the last line."""
    print(json.dumps(figures), flush=True)


# --- figures, with the names that all share ---------------------------------------------------------------------------


def step_figures(times: list[float], seconds: float, cpu: float) -> Figures:
    """W1, from the instants at which the steps ran."""
    gaps = sorted(after - before for before, after in itertools.pairwise(times))
    count = len(times)
    return {
        "p50 ms/step": 1e3 * gaps[len(gaps) // 2],
        "p99 ms/step": 1e3 * gaps[int(len(gaps) * 0.99)],
        "mean ms/step": 1e3 * seconds / count,
        "CPU ms/step": 1e3 * cpu / count,
    }


def workflow_figures(count: int, seconds: float, cpu: float) -> Figures:
    """W2."""
    return {"workflows/s": count / seconds, "CPU ms/workflow": 1e3 * cpu / count}


def fan_figures(count: int, seconds: float, cpu: float) -> Figures:
    """W3."""
    return {"s": seconds, "steps/s": count / seconds, "CPU µs/step": 1e6 * cpu / count}


def parked_figures(
    count: int, seconds: float, before: Memory, after: Memory, idle: float, *, asleep_seconds: float | None = None
) -> Figures:
    """W4; `asleep_seconds` is how long it took until all of them slept, where that can be told."""
    return {
        "starts/s": count / seconds,
        **({"asleep/s": count / asleep_seconds} if asleep_seconds is not None else {}),
        "MB added": after.total - before.total,
        "MB held": after.held - before.held,
        "idle CPU %": 100 * idle,
    }


def round_trip_figures(seconds: list[float], cpu: float) -> Figures:
    """W7."""
    ordered = sorted(seconds)
    count = len(ordered)
    return {
        "p50 ms": 1e3 * ordered[count // 2],
        "p99 ms": 1e3 * ordered[int(count * 0.99)],
        "CPU ms": 1e3 * cpu / count,
    }


# --- workloads that kill ----------------------------------------------------------------------------------------------


class Marks:
    """Lines that workers append to a file and that outlive them: a word, a number, and when."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def put(self, word: str, number: int) -> None:
        """Append one."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(f"{word} {number} {time.time()}\n")

    def read(self, word: str) -> list[tuple[int, float]]:
        """All with this word, in order."""
        if not self._path.exists():
            return []
        lines = [line.split() for line in self._path.read_text(encoding="utf-8").splitlines()]
        return [(int(line[1]), float(line[2])) for line in lines if len(line) == 3 and line[0] == word]

    def wait(self, word: str, count: int, seconds_max: float = 240.0) -> list[tuple[int, float]]:
        """Those with this word, once they are of `count` different numbers.

        Raises:
            TimeoutError: They were not in time.
        """
        deadline = time.monotonic() + seconds_max
        while True:
            found = self.read(word)
            if len({number for number, _ in found}) >= count:
                return found
            if time.monotonic() > deadline:
                raise TimeoutError(f"{len(found)} of {count} marks {word!r} within {seconds_max:g} s")
            time.sleep(0.02)


Spawn = Callable[[str], "subprocess.Popen[bytes]"]
"""Starts a worker as ``first`` (which begins the workflows) or ``second``."""


def kill_among_sleepers(spawn: Spawn, marks: Marks, count: int) -> Figures:
    """W5: a worker is killed while `count` workflows sleep, and started again at once.

    A workflow marks ``asleep`` in a step, sleeps `SLEEP_SECONDS`, and marks ``done`` in another.
    """
    worker = spawn("first")
    try:
        asleep = marks.wait("asleep", count)
        time.sleep(1.0)
        early = len(marks.read("done"))
    finally:
        kill_tree(worker)
    due = max(when for _, when in asleep) + SLEEP_SECONDS
    began = time.time()
    worker = spawn("second")
    try:
        done = marks.wait("done", count)
    finally:
        kill_tree(worker)
    numbers = Counter(number for number, _ in done)
    return {
        "s after the last was due": max(when for _, when in done) - max(due, began),
        "done before the kill": early,
        "steps run twice": sum(numbers.values()) - len(numbers),
    }


def kill_after_steps(spawn: Spawn, marks: Marks, count: int) -> Figures:
    """W6: a worker is killed after `count` steps of one workflow; how long until its successor runs the next step.

    The workflow marks ``ready`` after those steps, and waits for ever if its worker is the first; ``entered`` each time
    it is begun; ``next`` in the step after. Counted is from the last ``entered`` before ``next``.
    """
    worker = spawn("first")
    try:
        marks.wait("ready", 1)
        time.sleep(1.0)  # the last step may be on its way to the store still
    finally:
        kill_tree(worker)
    began = time.time()
    worker = spawn("second")
    try:
        (_, following), *_ = marks.wait("next", 1)
    finally:
        kill_tree(worker)
    entered = max(when for _, when in marks.read("entered") if when <= following)
    return {"ms to the next step": 1e3 * (following - entered), "ms from the start": 1e3 * (following - began)}
