"""`make proof-share` adds up what a report says, by folder."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from scripts import proof_share

REPORT = """<?xml version="1.0" encoding="utf-8"?>
<testsuites><testsuite name="pytest" errors="0" failures="1" tests="4" time="61.5">
<testcase classname="tests.simulation.test_simulation" name="test_a" time="60.25" />
<testcase classname="tests.cases.test_c001.TestIt" name="test_b[1]" time="0.5" />
<testcase classname="tests.cases.test_c003" name="test_c" time="2"><failure message="no">no</failure></testcase>
<testcase classname="tests.unit.cases.test_d" name="test_d" time="7" />
</testsuite></testsuites>
"""


def test_times_are_added_up_by_folder() -> None:
    told = proof_share.times_of(REPORT)
    folders = {name: (one["tests"], one["seconds"]) for name, one in told["folders"].items() if one["tests"]}
    assert folders == {"simulation": (1, 60.2), "cases": (2, 2.5)}
    assert set(told["folders"]) == set(proof_share.FOLDERS)
    assert (told["all"], told["failed"], told["wall_seconds"]) == ({"tests": 4, "seconds": 69.8}, 1, 62)
    assert proof_share.share_seconds(told) == pytest.approx(62.7)
    assert "1.0 min of the 1.2 min that all 4 tests took" in proof_share.lines_of(told)[-1]


def test_every_folder_that_proves_is_there() -> None:
    assert all((proof_share.ROOT / "tests" / name).is_dir() for name in proof_share.FOLDERS)


def test_without_a_report_it_says_what_makes_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert proof_share.main([str(tmp_path / "none.xml")]) == 1
    assert "make test" in capsys.readouterr().out


def test_a_run_of_a_part_is_not_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "some.xml").write_text(REPORT, encoding="utf-8")
    assert proof_share.main([str(tmp_path / "some.xml"), "--record"]) == 1
    assert "no test of crash, outage" in capsys.readouterr().out


def test_what_failed_or_is_older_than_the_code_is_not_kept(tmp_path: Path) -> None:
    folders = {name: {"tests": 1, "seconds": 1.0} for name in proof_share.FOLDERS}
    report = tmp_path / "tests.xml"
    report.write_text(REPORT, encoding="utf-8")
    assert proof_share.why_not_kept({"folders": folders, "failed": 1}, report) == (
        "1 tests failed. Expected: a run in which all pass"
    )
    newest = max(path.stat().st_mtime for path in proof_share.code_files())
    os.utime(report, (newest + 1, newest + 1))
    assert proof_share.why_not_kept({"folders": folders, "failed": 0}, report) == ""
    os.utime(report, (newest - 1, newest - 1))
    assert "changed since tests.xml was written" in proof_share.why_not_kept({"folders": folders, "failed": 0}, report)


def test_a_record_is_told_of_with_its_age(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof_share, "RECORD", tmp_path / "record.json")
    assert proof_share.lines_of_record() == ["No record is kept yet; --record keeps one."]
    kept = {"commit": "0" * 12, "folders": {"cases": {"tests": 3, "seconds": 90.0}}}
    proof_share.RECORD.write_text(json.dumps(kept), encoding="utf-8")
    assert proof_share.lines_of_record() == [
        f"The record is of commit {'0' * 12}, which is not of this history: 1.5 min; 10 are allowed."
    ]
    monkeypatch.setattr(proof_share, "commits_since", lambda commit: 7)
    assert "7 commits ago" in proof_share.lines_of_record()[0]
