"""Adds up what `make test-postgres` did: ``python -m tests.postgres.record REPORT … [--record]``.

Owns: ``record.json``, which docs/reference/proof.md tells of. Never: runs a test.

How it works: each of its runs of pytest leaves a report in JUnit's format. What passed, failed and was skipped is added
up by folder, with the release of the server, which is asked for it, and the commit. With ``--record`` that is kept,
unless something failed or a folder is not there. What failed on a machine that was too busy may be run again alone,
with a report of its own, which is given behind the others.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import xml.etree.ElementTree as ET
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, Final

from tests.postgres.versions import release_of_server
from tests.which_code import commit_now

RECORD: Final = Path(__file__).with_name("record.json")
FOLDERS: Final = ("conformance", "postgres", "outage", "cases")


def count(reports: list[str]) -> dict[str, dict[str, int]]:
    """By folder of tests, how many passed, failed and were skipped, and what they took.

    A later report of a test counts in place of an earlier one; how many were looked at again after a failure is told.
    """
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    outcomes: dict[tuple[str, str], str] = {}
    for case in (case for report in reports for case in ET.fromstring(report).iter("testcase")):
        name = (case.get("classname", ""), case.get("name", ""))
        of_folder = counts[[*name[0].split("."), ""][1]]
        kinds = {child.tag for child in case}
        outcome = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        if before := outcomes.get(name):
            of_folder[before] -= 1
            of_folder["again"] += before == "failed"
        outcomes[name] = outcome
        of_folder[outcome] += 1
        of_folder["milliseconds"] += round(1000 * float(case.get("time", 0)))
    words = ("passed", "failed", "skipped", "again")
    return {
        name: {**{word: told[word] for word in words}, "seconds": round(told["milliseconds"] / 1000)}
        for name, told in counts.items()
    }


def why_not_kept(folders: dict[str, dict[str, int]]) -> str:
    """What keeps these counts from being a record; empty when nothing does."""
    if missing := [name for name in FOLDERS if not folders.get(name, {}).get("passed")]:
        return f"no test of {', '.join(missing)} passed. Expected: the reports of a whole `make test-postgres`"
    failed = sum(told["failed"] for told in folders.values())
    return f"{failed} tests failed" if failed else ""


def main(arguments: list[str]) -> int:
    """Print the counts, and keep them if asked to."""
    parser = argparse.ArgumentParser(prog="python -m tests.postgres.record", description=__doc__.splitlines()[0])
    parser.add_argument("reports", nargs="+", type=Path)
    parser.add_argument("--record", action="store_true", help="keep the counts in tests/postgres/record.json")
    options = parser.parse_args(arguments)
    folders = count([path.read_text(encoding="utf-8") for path in options.reports])
    told: dict[str, Any] = {"commit": commit_now(), "server": release_of_server(), "date": time.strftime("%Y-%m-%d")}
    told["folders"] = folders
    print(json.dumps(told, indent=1))
    if not options.record:
        return 0
    if reason := why_not_kept(folders):
        print(f"Nothing is kept: {reason}.")
        return 1
    RECORD.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
