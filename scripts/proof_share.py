"""Adds up how long the tests that prove took of one run of the whole suite: ``make proof-share``.

Owns: which folders those are, and ``tests/proof_share.json``, which docs/reference/proof.md tells of. Never: runs a
test.

How it works: `make test` leaves ``build/tests.xml``, where each test has the time that it took, with what was set up
and taken down for it. With ``--record`` the sums are kept, with the commit and the machine. A run on a machine that
does other things takes longer, which the load says.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path
from typing import Any, Final

from tests.which_code import commit_now

ROOT: Final = Path(__file__).resolve().parents[1]
REPORT: Final = ROOT / "build" / "tests.xml"
RECORD: Final = ROOT / "tests" / "proof_share.json"
FOLDERS: Final = ("simulation", "crash", "outage", "partition", "soak", "fuzz", "differential", "cases")


def times_of(report: str) -> dict[str, Any]:
    """What a report in JUnit's format tells: tests and seconds of each folder that proves, and of all tests."""
    tests: Counter[str] = Counter()
    seconds: Counter[str] = Counter()
    failed = 0
    suite = ET.fromstring(report).find("testsuite")
    if suite is None:
        raise ValueError("the report has no test suite. Expected: what pytest writes with --junitxml")
    for case in suite.iter("testcase"):
        folder = [*case.get("classname", "").split("."), "", ""][1]
        for name in ("all", *([folder] if folder in FOLDERS else [])):
            tests[name] += 1
            seconds[name] += float(case.get("time", 0))
        failed += case.find("failure") is not None or case.find("error") is not None
    return {
        "folders": {name: {"tests": tests[name], "seconds": round(seconds[name], 1)} for name in FOLDERS},
        "all": {"tests": tests["all"], "seconds": round(seconds["all"], 1)},
        "failed": failed,
        "wall_seconds": round(float(suite.get("time", 0))),
    }


def share_seconds(told: dict[str, Any]) -> float:
    """The seconds of all folders that prove."""
    return float(sum(one["seconds"] for one in told["folders"].values()))


def lines_of(told: dict[str, Any]) -> list[str]:
    """The sums for people."""
    rows = [f"{name:14}{one['tests']:6,}{one['seconds']:9,.1f} s" for name, one in told["folders"].items()]
    total = told["all"]
    return [
        *rows,
        f"{share_seconds(told) / 60:.1f} min of the {total['seconds'] / 60:.1f} min that all {total['tests']:,} tests "
        f"took, which with tests side by side passed in {told['wall_seconds'] / 60:.1f} min; {told['failed']} failed",
    ]


def main(arguments: list[str]) -> int:
    """Print the sums, and keep them if asked to."""
    parser = argparse.ArgumentParser(prog="make proof-share", description=__doc__.splitlines()[0])
    parser.add_argument("report", nargs="?", type=Path, default=REPORT)
    parser.add_argument("--record", action="store_true", help=f"keep the sums in {RECORD.relative_to(ROOT)}")
    options = parser.parse_args(arguments)
    if not options.report.exists():
        print(f"There is no {options.report}. Expected: the report of a run; make one with `make test`.")
        return 1
    told = times_of(options.report.read_text(encoding="utf-8"))
    print("\n".join(lines_of(told)))
    if options.record:
        if missing := [name for name, one in told["folders"].items() if not one["tests"]]:
            print(f"Nothing is kept: no test of {', '.join(missing)} ran. Expected: a run of the whole suite.")
            return 1
        machine = (
            f"{platform.machine()}, {os.cpu_count()} processors, {platform.system()}, "
            f"Python {platform.python_version()}, load {os.getloadavg()[2]:.1f} at the end"
        )
        record = {"commit": commit_now(), "machine": machine, **told}
        RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
