"""`make audit` fails for what is known to be vulnerable, and for what nobody could say anything about."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scripts import audit

HOLE = {"id": "HOLE-1", "fixed_in": ["2.1"], "withdrawn": None}


def page(version: str, *holes: Any) -> dict[str, Any]:
    return {"info": {"version": version}, "vulnerabilities": list(holes)}


def judge_one(line: str, dependency: Any = None, told: Any = None) -> audit.Verdict:
    def fetch(name: str) -> Any:
        if told is None:
            raise OSError("nobody is there")
        return told

    report = None if dependency is None else {"dependencies": [dependency]}
    (verdict,) = audit.judge(line, report, fetch)
    return verdict


def test_what_was_looked_up_by_version_needs_no_page() -> None:
    assert judge_one("A==2.0", {"name": "a", "version": "2.0", "vulns": []}).by == "its version"
    found = judge_one("a==2.0", {"name": "a", "version": "2.0", "vulns": [{"id": "H", "fix_versions": ["2.1"]}]}).found
    assert found == ("H (fixed in 2.1)",)


@pytest.mark.parametrize("dependency", [None, {"name": "a", "skip_reason": "not found"}], ids=["no report", "skipped"])
def test_what_was_not_is_looked_up_on_the_page_of_its_latest_version(dependency: Any) -> None:
    sound = judge_one("a==2.0", dependency, page("2.0"))
    assert (sound.found, sound.by) == ((), "its page")
    assert judge_one("a==2.0", dependency, page("2.0", HOLE)).found == ("HOLE-1 (fixed in 2.1)",)
    assert judge_one("a==2.0", dependency, page("2.0", {**HOLE, "withdrawn": "2026-01-01"})).found == ()


def test_what_cannot_be_looked_up_is_not_taken_for_sound() -> None:
    for verdict in (
        judge_one("a==2.0"),
        judge_one("a==2.0", None, page("2.1")),
        judge_one("a==2.0", None, {"info": {"version": "2.0"}}),
        judge_one("a @ file:///a.whl", None, page("2.0")),
    ):
        assert verdict.by == ""
        assert verdict.problem


@pytest.mark.parametrize(
    ("holes", "latest", "code", "words"),
    [
        ((), "2.0", 0, "1 of 1 packages were looked at; 0 vulnerabilities are known"),
        ((HOLE,), "2.0", 1, "a 2.0: HOLE-1 (fixed in 2.1)"),
        ((), "2.1", 1, "0 of 1 packages were looked at"),
    ],
    ids=["sound", "vulnerable", "unknown"],
)
def test_it_says_what_it_looked_at_and_fails(
    holes: tuple[Any, ...],
    latest: str,
    code: int,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(audit, "fetch_project", lambda name: page(latest, *holes))
    (tmp_path / "frozen.txt").write_text("a==2.0\n")
    (tmp_path / "audit.json").write_text(json.dumps({"dependencies": [{"name": "a", "skip_reason": "not found"}]}))
    assert audit.main([str(tmp_path / "frozen.txt"), str(tmp_path / "audit.json")]) == code
    assert words in capsys.readouterr().out
