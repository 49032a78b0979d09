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

from tests.simulation.plan import Plan, make_plan
from tests.simulation.simulate import Outcome, from_json, shrink, simulate, to_json


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
    parser.add_argument("--log", type=Path, help="append one line of JSON with the totals")
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
    began = time.monotonic()
    failed: list[int] = []
    totals = dict.fromkeys(("seeds", "steps", "commits", "runs", "nodes", "seconds"), 0)
    seeds = range(options.first, options.first + options.count) if options.count else itertools.count(options.first)
    for seed in seeds:
        if options.seconds and time.monotonic() - began > options.seconds:
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
    told = {**totals, "failed": failed, "first": options.first, "real_seconds": round(time.monotonic() - began, 1)}
    sys.stdout.write(f"{json.dumps(told)}\n")
    if options.log:
        options.log.parent.mkdir(parents=True, exist_ok=True)
        with options.log.open("a") as file:
            file.write(f"{json.dumps(told)}\n")
    return 1 if failed else 0


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
