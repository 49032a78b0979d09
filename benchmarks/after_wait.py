"""What code costs after a wait: ``python -m benchmarks.after_wait``.

A chain of objects that fits into a processor's own cache is walked right after it has been walked, and again with a
wait in between: computing, a sleep, and a write that is synced. On a machine of its own all take about as long. On a
virtual one that had nothing else to do meanwhile, its host may have given the processor, or its cache, to somebody
else: then each object comes from afar, and so does all that a lone step needs after its commit (docs/adr/0057).

Owns: this measurement. Never: measures Clew.
"""

from __future__ import annotations

import itertools
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Final

OBJECTS: Final = 4_000
"""Of 64 bytes each, with what lies beside them: half a MB, a quarter of what a processor of today has for itself."""

ROUNDS: Final = 300
WAIT_SECONDS: Final = 0.0001
WRITTEN_BYTES: Final = 12_360
"""What a lone step adds to SQLite's log."""


class Link:
    """One object of the chain."""

    __slots__ = ("following", "value")

    def __init__(self, value: int) -> None:
        self.value = value
        self.following: Link | None = None


def make_chain() -> Link:
    """A chain that leads through memory in no order, so that nothing can be fetched ahead."""
    links = [Link(number) for number in range(OBJECTS)]
    random.Random(0).shuffle(links)
    for link, following in itertools.pairwise(links):
        link.following = following
    return links[0]


def walk(chain: Link) -> int:
    """From one end to the other."""
    total, link = 0, chain
    while (following := link.following) is not None:
        total += link.value
        link = following
    return total


def measure() -> dict[str, float]:
    """What of the way one object takes after each kind of wait: the median, in ns."""
    chain = make_chain()
    with tempfile.TemporaryFile() as file:
        file.write(bytes(ROUNDS * WRITTEN_BYTES))
        file.flush()
        os.fsync(file.fileno())
        file.seek(0)

        def compute() -> None:
            until = time.perf_counter() + WAIT_SECONDS
            while time.perf_counter() < until:
                pass

        def write() -> None:
            file.write(bytes(WRITTEN_BYTES))
            file.flush()
            os.fsync(file.fileno())

        waits: dict[str, Callable[[], object]] = {
            "nothing": lambda: None,
            "computing": compute,
            "a sleep": lambda: time.sleep(WAIT_SECONDS),
            "a synced write": write,
        }
        taken: dict[str, list[float]] = {name: [] for name in waits}
        for _ in range(ROUNDS):
            for name, wait in waits.items():
                walk(chain)
                wait()
                clock = time.perf_counter()
                walk(chain)
                taken[name].append(time.perf_counter() - clock)
    return {name: 1e9 * statistics.median(seconds) / OBJECTS for name, seconds in taken.items()}


def main() -> None:
    """Measure, and show."""
    found = measure()
    print(f"{OBJECTS} objects in a row, medians of {ROUNDS}; load {os.getloadavg()[0]:.1f}")
    for name, nanoseconds in found.items():
        print(f"    after {name:<16} {nanoseconds:>6.1f} ns an object  {nanoseconds / found['nothing']:>5.2f}")


if __name__ == "__main__":
    main()
