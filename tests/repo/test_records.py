"""Records of long proofs say what was counted, and on which code."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import which_code
from tests.postgres import record

REPORT = """<?xml version="1.0" encoding="utf-8"?>
<testsuites><testsuite name="pytest" errors="1" failures="1" tests="5" time="61.5">
<testcase classname="tests.conformance.store.test_a" name="a" time="1.5" />
<testcase classname="tests.conformance.store.test_a" name="b" time="1"><skipped>no</skipped></testcase>
<testcase classname="tests.cases.test_c003" name="c" time="2">{}</testcase>
<testcase classname="tests.postgres.test_copy" name="d" time="2"/>
<testcase classname="tests.outage.test_e" name="e" time="2"/>
</testsuite></testsuites>
"""


def test_tests_are_counted_by_folder() -> None:
    told = record.count([REPORT.format("<error>no</error>")])
    assert told["conformance"] == {"passed": 1, "failed": 0, "skipped": 1, "again": 0, "seconds": 2}
    assert told["cases"] == {"passed": 0, "failed": 1, "skipped": 0, "again": 0, "seconds": 2}
    assert record.why_not_kept({**told, "cases": {**told["cases"], "passed": 1}}) == "1 tests failed"


def test_what_is_looked_at_again_counts_once_and_is_told() -> None:
    told = record.count([REPORT.format("<error>no</error>"), REPORT.format("")])
    assert told["cases"] == {"passed": 1, "failed": 0, "skipped": 0, "again": 1, "seconds": 4}
    assert told["outage"] == {"passed": 1, "failed": 0, "skipped": 0, "again": 0, "seconds": 4}


def test_what_ran_in_part_or_failed_is_no_record() -> None:
    told = record.count([REPORT.format("")])
    assert record.why_not_kept(told) == ""
    del told["outage"]
    assert "no test of outage passed" in record.why_not_kept(told)


RECORDS = (
    "soak/record.json", "soak/leaks.json", "crash/record.json", "partition/record.json", "fuzz/record.json",
    "differential/record.json", "postgres/record.json", "proof_share.json",
)  # fmt: skip


def commits_of(told: Any) -> Iterator[str]:
    """Every commit that a record names, however deep."""
    if isinstance(told, dict):
        if "commit" in told:
            yield told["commit"]
        told = list(told.values())
    for one in told if isinstance(told, list) else ():
        yield from commits_of(one)


def test_every_record_is_of_code_of_this_history() -> None:
    if which_code.is_cut_off():
        pytest.skip("the history is not here")
    tests = Path(__file__).parents[1]
    texts = [path.read_text() for name in RECORDS if (path := tests / name).exists()]
    texts += (tests / "simulation" / "soaked.jsonl").read_text().splitlines()
    commits = {commit for text in texts for commit in commits_of(json.loads(text))}
    assert commits
    assert [commit for commit in sorted(commits) if which_code.commits_since(commit) is None] == []


def _git(folder: Path, *arguments: str) -> None:
    command = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", *arguments]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)


def test_the_code_is_changed_by_code_and_not_by_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(which_code, "ROOT", tmp_path)
    assert which_code.commit_now() == "", "no repository"
    written = tmp_path / "tests" / "crash" / "record.json"
    written.parent.mkdir(parents=True)
    code = tmp_path / "code.py"
    for path in (written, code):
        path.write_text("{}")
    _git(tmp_path, "init", "-q")
    _git(tmp_path, "add", ".")
    _git(tmp_path, "commit", "-q", "-m", "Begin")
    clean = which_code.commit_now()
    assert len(clean) == 12
    written.write_text(json.dumps({"kills": 3}))
    assert which_code.commit_now() == clean
    code.write_text("1")
    assert which_code.commit_now() == f"{clean}-dirty"
