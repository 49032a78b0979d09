"""Where the CPU of W2 goes: by thread, or by function within one thread.

    python -m benchmarks.stages                     CPU per thread
    python -m benchmarks.stages --profile service   functions on the service loop (or: main, writer, workflow)

Owns: counting. CPU per thread comes from the kernel (``/proc``, Linux only). Profiling slows the thread about twofold,
so only the shares mean something.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import pstats
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

from benchmarks.workflows import Sequence
from benchmarks.workloads import IN_FLIGHT, QUEUE, engine, worker

_NS: Final = 1e-9


def main() -> None:
    """Read the arguments and measure."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stages", description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=1_000, help="workflows")
    parser.add_argument("--profile", metavar="THREAD", help="part of a thread's name, or main")
    parser.add_argument("--sort", default="tottime", help="tottime or cumtime")
    options = parser.parse_args()
    profile = _ThreadProfile(options.profile) if options.profile else None
    if profile is not None:
        profile.install()
    asyncio.run(_measure(options.count, profile))
    if profile is not None:
        profile.show(options.sort)


async def _measure(count: int, profile: _ThreadProfile | None) -> None:
    async with engine() as client, worker(client):
        gate = asyncio.Semaphore(IN_FLIGHT)

        async def one(number: int) -> None:
            async with gate:
                await client.execute_workflow(Sequence.run, 3, id=f"w-{number}", task_queue=QUEUE)

        await asyncio.gather(*(one(-number) for number in range(1, 51)))
        before, clock, cpu = _cpu_seconds(), time.perf_counter(), time.process_time()
        await asyncio.gather(*(one(number) for number in range(count)))
        seconds, cpu, after = time.perf_counter() - clock, time.process_time() - cpu, _cpu_seconds()
    print(f"{count / seconds:.0f} workflows/s, {1e3 * cpu / count:.3f} ms CPU a workflow; by thread:")
    for name in sorted(after, key=lambda name: before.get(name, 0.0) - after[name]):
        used = after[name] - before.get(name, 0.0)
        if used / cpu > 0.001:
            print(f"    {name:<36} {1e6 * used / count:>8.0f} µs a workflow  {100 * used / cpu:>5.1f} %")


def _cpu_seconds() -> dict[str, float]:
    """CPU of each thread that lives, by name; threads of one name count together."""
    found: dict[str, float] = {}
    for thread in threading.enumerate():
        path = Path(f"/proc/self/task/{thread.native_id}/schedstat")
        if path.exists():
            seconds = int(path.read_text().split()[0]) * _NS
            name = thread.name.rstrip("0123456789")
            found[name] = found.get(name, 0.0) + seconds
    return found


class _ThreadProfile:
    """cProfile in the first thread that is made with this in its name."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._profile = cProfile.Profile()
        self._is_taken = False

    def install(self) -> None:
        """Watch for the thread."""
        if self._name == "main":
            self._profile.enable()
        else:
            threading.setprofile(self._begin)

    def _begin(self, frame: Any, event: str, arg: Any) -> None:
        sys.setprofile(None)
        if not self._is_taken and self._name in threading.current_thread().name:
            self._is_taken = True
            self._profile.enable()

    def show(self, sort: str) -> None:
        """Print the functions that took the most."""
        self._profile.disable()
        pstats.Stats(self._profile).sort_stats(sort).print_stats(45)


if __name__ == "__main__":
    main()
