"""Where the CPU of W2 goes: by thread, by stage of a transition, or by function within one thread.

    python -m benchmarks.stages                     CPU per thread
    python -m benchmarks.stages --stages            CPU per transition by stage (``make bench-stages``)
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
    parser.add_argument("--stages", action="store_true", help="CPU per transition by stage")
    parser.add_argument("--sort", default="tottime", help="tottime or cumtime")
    options = parser.parse_args()
    if options.stages:
        _show_stages(options.count)
        return
    profile = _ThreadProfile(options.profile) if options.profile else None
    if profile is not None:
        profile.install()
    asyncio.run(_measure(options.count))
    if profile is not None:
        profile.show(options.sort)


async def _measure(count: int) -> dict[str, float]:
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
    return {name: (after[name] - before.get(name, 0.0)) / count for name in after}


TRANSITIONS: Final = 8
"""Of a run of three activities: its start, and two for each activity, and the last task, which closes it."""

STAGES: Final = {
    "decide": ("clew/core/", "clew/engine/"),
    "encode": ("engine/pipeline.py", "core/codec.py", "model/events.py", "engine/summary.py", "'encode'"),
    "deliver": ("engine/offers.py", "clew/worker/", "clew/bridge.py", "clew/service/", "model/inputs.py"),
    "decode": ("clew/converter/", "model/payload.py", "'decode'"),
    "activate": ("clew/replay/", "clew/workflow/", "clew/activity/", "<string>"),
}
"""Parts of file names, or names of built-in functions, by stage; the longest that fits counts. The rest, with most
built-in functions, is put down to the loop."""


def _show_stages(count: int) -> None:
    """CPU of the service thread, divided by what a profile of it says; the writer's is the commit."""
    by_thread = asyncio.run(_measure(count))
    profile = _ThreadProfile("service")
    profile.install()
    asyncio.run(_measure(count))
    threading.setprofile(None)
    shares = profile.shares()
    service = sum(used for name, used in by_thread.items() if name.startswith("clew-service"))
    stages = {stage: service * share for stage, share in shares.items()}
    stages["commit"] = by_thread.get("clew-store-writer", 0.0)
    stages["caller"] = by_thread.get("MainThread", 0.0)
    print("\nby stage (the service thread's by its profile, which favours what calls little):")
    for stage, seconds in sorted(stages.items(), key=lambda item: -item[1]):
        print(
            f"    {stage:<10} {1e6 * seconds / TRANSITIONS:>7.1f} µs a transition  {1e6 * seconds:>7.0f} µs a workflow"
        )


def _stage_of(filename: str, function: str) -> str:
    name = f"{filename}:{function}"
    fitting = [(len(part), stage) for stage, parts in STAGES.items() for part in parts if part in name]
    return max(fitting)[1] if fitting else "loop"


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

    def shares(self) -> dict[str, float]:
        """The share of each stage in the thread's time, waiting left out."""
        self._profile.disable()
        seconds: dict[str, float] = {}
        for (filename, _, function), (_, _, own, _, _) in pstats.Stats(self._profile).stats.items():  # type: ignore[attr-defined]
            if "acquire" in function or "select" in function or "poll" in function:
                continue
            stage = _stage_of(filename, function)
            seconds[stage] = seconds.get(stage, 0.0) + own
        total = sum(seconds.values())
        return {stage: own / total for stage, own in seconds.items()}

    def show(self, sort: str) -> None:
        """Print the functions that took the most."""
        self._profile.disable()
        pstats.Stats(self._profile).sort_stats(sort).print_stats(45)


if __name__ == "__main__":
    main()
