"""`make proof-share` adds up what a report says, by folder."""

from __future__ import annotations

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
