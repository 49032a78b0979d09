"""Run hundreds of insurance claims while the worker is killed again and again, and check that nothing went wrong.

The two outside services and the worker are processes of their own. The worker is killed with SIGKILL at random moments
and started again, until all claims are closed. Then histories, payments and letters are compared. The exit status is 0
only if no claim was lost, got stuck or was paid twice.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from clew.client import Client
from examples.claims.plan import Plan, make_plan
from examples.claims.processes import DemoError, kill_while_starting, running
from examples.claims.report import (
    ClaimRecord,
    Report,
    format_history,
    format_report,
    make_report,
    pick_example,
    read_ledger,
    read_letters,
    read_records,
)


@dataclass(frozen=True)
class Settings:
    """How many, how long, how cruel.

    Args:
        spread_seconds: The claims come in over this time.
        deadline_seconds: When they must all be closed.
        life_seconds: Most workers are killed this long after they were ready: shortest and longest.
        start_seconds: Every third is killed this long after its start, while it comes up.
    """

    claim_count: int = 300
    kill_count: int = 6
    seed: int = 1
    day_seconds: float = 0.5
    spread_seconds: float = 15.0
    deadline_seconds: float = 120.0
    life_seconds: tuple[float, float] = (0.3, 2.4)
    start_seconds: tuple[float, float] = (0.3, 1.0)


@dataclass(frozen=True)
class DemoRun:
    """How it went."""

    report: Report
    records: Sequence[ClaimRecord]
    kill_count: int
    seconds: float


def run_demo(directory: Path, settings: Settings) -> DemoRun:
    """Run the demo in an empty folder.

    Raises:
        DemoError: A process failed by itself, or the claims were not all closed by the deadline.
    """
    for folder in ("register", "letters", "desk"):
        (directory / folder).mkdir()
    started_at = time.time()
    plan = make_plan(
        claim_count=settings.claim_count,
        seed=settings.seed,
        started_at=started_at,
        day_seconds=settings.day_seconds,
        spread_seconds=settings.spread_seconds,
    )
    plan.write(directory / "plan.json")
    ledger = directory / "ledger.db"
    seed = ["--seed", str(settings.seed)]
    with contextlib.ExitStack() as services:
        fraud = services.enter_context(running("services.fraud", seed, directory / "fraud.log"))
        payments = services.enter_context(
            running("services.payments", [*seed, "--ledger", str(ledger)], directory / "payments.log")
        )
        worker = [str(directory), "--fraud-url", fraud.first_line, "--payment-url", payments.first_line]
        kill_count = run_worker_under_fire(directory, worker, settings, started_at + settings.deadline_seconds)
    seconds = time.time() - started_at
    records = asyncio.run(_read_store(directory, plan))
    report = make_report(records, read_ledger(ledger), read_letters(directory / "letters"))
    return DemoRun(report, records, kill_count, seconds)


def run_worker_under_fire(directory: Path, arguments: list[str], settings: Settings, deadline: float) -> int:
    """Kill the worker and start it again, as often as wanted; then let it finish. Gives the number of kills."""
    dice = random.Random(settings.seed)
    log = directory / "worker.log"
    for kill_number in range(1, settings.kill_count + 1):
        if kill_number % 3 == 0:  # recovering from a crash must survive a crash, too
            start_seconds = dice.uniform(*settings.start_seconds)
            pid = kill_while_starting("worker", arguments, log, start_seconds)
            print(f"kill -9 {pid}: worker {kill_number}, {start_seconds:.1f} s after its start", flush=True)
            continue
        with running("worker", arguments, log) as worker:
            life_seconds = dice.uniform(*settings.life_seconds)
            if worker.wait_exit(life_seconds):
                return kill_number - 1  # all claims are closed already
            worker.kill()
            print(f"kill -9 {worker.pid}: worker {kill_number}, {life_seconds:.1f} s after it was ready", flush=True)
    with running("worker", arguments, log) as worker:
        if not worker.wait_exit(deadline - time.time()):
            raise DemoError(f"the claims were not all closed after {settings.deadline_seconds:g} s; see {log}")
    return settings.kill_count


async def _read_store(directory: Path, plan: Plan) -> list[ClaimRecord]:
    async with await Client.connect(f"sqlite:{directory / 'claims.db'}") as client:
        return await read_records(client, plan)


def main() -> int:
    """Run the command; gives the exit status."""
    options = _parse_options()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1_000_000)
    settings = Settings(
        options.claims, options.kills, seed, spread_seconds=options.spread, deadline_seconds=options.deadline
    )
    directory = Path(tempfile.mkdtemp(prefix="clew-claims-"))
    print(f"{settings.claim_count} claims, a day lasts {settings.day_seconds:g} s, seed {seed}, files in {directory}")
    is_good = False
    try:
        run = run_demo(directory, settings)
        _print_run(run)
        is_good = not run.report.problems
        if options.export:
            _export(run, options.export)
    except DemoError as error:
        print(f"FAILED: {error}", file=sys.stderr)
        is_good = False
    if is_good and not options.keep:
        shutil.rmtree(directory)
    else:
        print(f"\nThe files are in {directory}. The same dice again: make demo ARGS='--seed {seed}'")
    return 0 if is_good else 1


def _parse_options() -> argparse.Namespace:
    defaults = Settings()
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--claims", type=int, default=defaults.claim_count)
    parser.add_argument("--kills", type=int, default=defaults.kill_count)
    parser.add_argument("--seed", type=int, help="throw the same dice as another run")
    parser.add_argument("--spread", type=float, default=defaults.spread_seconds, help="seconds in which they come in")
    parser.add_argument("--deadline", type=float, default=defaults.deadline_seconds, help="seconds until it has failed")
    parser.add_argument("--export", type=Path, help="write the shown claim's history to this file, as JSON")
    parser.add_argument("--keep", action="store_true", help="keep the folder with database and logs")
    return parser.parse_args()


def _print_run(run: DemoRun) -> None:
    print(f"\n{format_report(run.report, kill_count=run.kill_count, seconds=run.seconds)}")
    example = pick_example(run.records)
    if example is not None:
        print(f"\nThe history of {example.claim_id}, compact:\n\n{format_history(example)}")
    for problem in run.report.problems:
        print(f"PROBLEM: {problem}", file=sys.stderr)
    if not run.report.problems:
        print("\nNo claim was lost, stuck or paid twice.")


def _export(run: DemoRun, path: Path) -> None:
    example = pick_example(run.records)
    if example is None or example.history is None:
        raise DemoError("no claim was paid, so there is no history to export")
    path.write_text(example.history.to_json(), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
