"""Adds up how long the tests that prove took of one run of the whole suite: ``make proof-share``.

Owns: which folders those are, and ``tests/proof_share.json``, which docs/reference/proof.md tells of. Never: runs a
test.

How it works: `make test` leaves ``build/tests.xml``, where each test has the time that it took, with what was set up
and taken down for it. With ``--record`` the sums are kept, with the commit and the machine, unless something failed, a
folder is missing, or code has changed since the report was written. A run on a machine that does other things takes
longer, which the load says. A record that is there already is told of, with how many commits came behind it.
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

from tests.which_code import commit_now, commits_since

ROOT: Final = Path(__file__).resolve().parents[1]
REPORT: Final = ROOT / "build" / "tests.xml"
RECORD: Final = ROOT / "tests" / "proof_share.json"
CODE: Final = ("src", "tests", "scripts", "examples", "conftest.py", "pyproject.toml")
MINUTES_MAX: Final = 10
"""What all of it may take of a run."""

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


def why_not_kept(told: dict[str, Any], report: Path) -> str:
    """What keeps these sums from being a record; empty when nothing does."""
    if missing := [name for name, one in told["folders"].items() if not one["tests"]]:
        return f"no test of {', '.join(missing)} ran. Expected: a run of the whole suite"
    if told["failed"]:
        return f"{told['failed']} tests failed. Expected: a run in which all pass"
    written = report.stat().st_mtime
    if changed := [str(path.relative_to(ROOT)) for path in code_files() if path.stat().st_mtime > written]:
        return f"{changed[0]} and {len(changed) - 1} other files changed since {report.name} was written: `make test`"
    return ""


def code_files() -> list[Path]:
    """What a run of the tests depends on."""
    given = [ROOT / name for name in CODE]
    return [path for one in given for path in (sorted(one.rglob("*.py")) if one.is_dir() else [one])]


def lines_of_record() -> list[str]:
    """What there is to say of the record that is kept."""
    if not RECORD.exists():
        return ["No record is kept yet; --record keeps one."]
    told = json.loads(RECORD.read_text(encoding="utf-8"))
    behind = commits_since(told["commit"])
    return [
        f"The record is of commit {told['commit']}, "
        + ("which is not of this history" if behind is None else f"{behind} commits ago")
        + f": {share_seconds(told) / 60:.1f} min; {MINUTES_MAX} are allowed."
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
        if reason := why_not_kept(told, options.report):
            print(f"Nothing is kept: {reason}.")
            return 1
        machine = (
            f"{platform.machine()}, {os.cpu_count()} processors, {platform.system()}, "
            f"Python {platform.python_version()}, load {os.getloadavg()[2]:.1f} at the end"
        )
        record = {"commit": commit_now(), "machine": machine, **told}
        RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print("\n".join(lines_of_record()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
