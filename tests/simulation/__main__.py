"""The simulation as a command: one seed in detail, a plan from a file, or seed after seed.

python -m tests.simulation --seed 7            one seed; on failure it is cut down and written out
python -m tests.simulation --plan failed.json  a plan written by an earlier failure
python -m tests.simulation --from 0 --count 10000 --log seeds.jsonl
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from tests.simulation.plan import Plan, make_plan
from tests.simulation.simulate import Outcome, from_json, shrink, simulate, to_json
from tests.which_code import commit_now


def main() -> int:
    """Run, and answer with the exit code: 0 when every law held."""
    parser = argparse.ArgumentParser(prog="simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="run this one, and say what happened")
    parser.add_argument("--plan", type=Path, help="run the plan in this file")
    parser.add_argument("--from", dest="first", type=int, default=0, help="the first seed of many")
    parser.add_argument("--count", type=int, default=0, help="how many seeds; 0 with --seconds means as many as fit")
    parser.add_argument("--seconds", type=float, default=0.0, help="stop after so much real time")
    parser.add_argument("--store", choices=("model", "sqlite"), default="", help="instead of the one of the seed")
    parser.add_argument("--verbose", action="store_true", help="print the trace")
    parser.add_argument("--no-shrink", action="store_true", help="leave a failing plan as it is")
    parser.add_argument("--out", type=Path, default=Path("build/simulation"), help="where failing plans are written")
    parser.add_argument("--log", type=Path, help="append a line of JSON with the totals for each part of the seeds")
    parser.add_argument("--part", type=int, default=500, help="how many seeds a line of the log is about")
    options = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":
        sys.stdout.write("note: set PYTHONHASHSEED=0, so that sets have the same order in every process\n")
    if options.seed is None and options.plan is None:
        return _many(options)
    plan = from_json(options.plan.read_bytes()) if options.plan else make_plan(options.seed, options.store)
    outcome = simulate(plan, keeps_log=options.verbose)
    sys.stdout.write("".join(f"{line}\n" for line in outcome.log))
    sys.stdout.write(f"{_line(plan, outcome)}\n")
    if outcome.error and not options.no_shrink:
        _write_down(plan, options.out)
    return 1 if outcome.error else 0


def _many(options: argparse.Namespace) -> int:
    ends_at = time.monotonic() + options.seconds if options.seconds else float("inf")
    last = options.first + options.count if options.count else sys.maxsize
    commit = commit_now()
    has_failed = False
    for first in itertools.count(options.first, options.part):
        if first >= last or time.monotonic() > ends_at:
            break
        told = _part(range(first, min(first + options.part, last)), ends_at, options)
        has_failed = has_failed or bool(told["failed"])
        text = json.dumps({"commit": commit, **told})
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
        if options.log:
            options.log.parent.mkdir(parents=True, exist_ok=True)
            with options.log.open("a") as file:
                file.write(f"{text}\n")
    return 1 if has_failed else 0


def _part(seeds: range, ends_at: float, options: argparse.Namespace) -> dict[str, Any]:
    """Some seeds one after the other, and their totals."""
    began = time.monotonic()
    failed: list[int] = []
    totals = dict.fromkeys(("seeds", "steps", "commits", "runs", "nodes", "seconds"), 0)
    for seed in seeds:
        if time.monotonic() > ends_at:
            break
        plan = make_plan(seed, options.store)
        outcome = simulate(plan)
        totals["seeds"] += 1
        for name in ("steps", "commits", "runs", "nodes", "seconds"):
            totals[name] += int(getattr(outcome, name))
        if outcome.error:
            failed.append(seed)
            sys.stdout.write(f"{_line(plan, outcome)}\n")
            sys.stdout.flush()
    return {**totals, "failed": failed, "first": seeds.start, "real_seconds": round(time.monotonic() - began, 1)}


def _line(plan: Plan, outcome: Outcome) -> str:
    return (
        f"seed {plan.seed} on {plan.store}: {outcome.error or 'every law held'} ({outcome.steps} steps, "
        f"{outcome.commits} commits, {outcome.runs} runs, {outcome.nodes} nodes, {outcome.seconds:.0f} s of its time, "
        f"trace {outcome.digest})"
    )


def _write_down(plan: Plan, folder: Path) -> None:
    smaller = shrink(plan, tell=lambda text: sys.stdout.write(f"  {text}\n"))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"seed-{plan.seed}.json"
    path.write_text(to_json(smaller))
    sys.stdout.write(f"cut down to {len(smaller.calls)} calls and {len(smaller.faults)} faults: {path}\n")
    sys.stdout.write(f"{_line(smaller, simulate(smaller))}\n")


if __name__ == "__main__":
    sys.exit(main())
