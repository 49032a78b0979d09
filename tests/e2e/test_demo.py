"""The demo in short: real processes, real SIGKILLs, the same checks as `make demo`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from examples.claims.demo import Settings, run_demo
from examples.claims.processes import ROOT, DemoError

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@pytest.fixture(autouse=True)
def _sources_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes of the demo import the package that this test imports."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")])))


def test_claims_survive_kills(tmp_path: Path) -> None:
    settings = Settings(
        claim_count=40,
        kill_count=3,
        seed=11,
        day_seconds=0.4,
        spread_seconds=4.0,
        deadline_seconds=60.0,
        life_seconds=(0.5, 1.5),
    )
    run = run_demo(tmp_path, settings)
    assert run.report.problems == []
    # On a slow machine all may be done before the last one.
    assert 1 <= run.kill_count <= 3
    assert sum(run.report.outcomes.values()) == 40
    assert run.report.paid_count == run.report.ledger.payment_count > 0
    assert run.report.retry_count > 0


def test_claims_that_are_not_done_in_time_fail_the_demo(tmp_path: Path) -> None:
    settings = Settings(claim_count=5, kill_count=0, spread_seconds=30.0, deadline_seconds=1.0)
    with pytest.raises(DemoError, match="not all closed after 1 s"):
        run_demo(tmp_path, settings)


def test_command_prints_the_table_and_exports_a_history(tmp_path: Path) -> None:
    exported = tmp_path / "history.json"
    command = [sys.executable, "-m", "examples.claims.demo", "--claims=12", "--kills=1", "--seed=3", "--spread=2"]
    done = subprocess.run(
        [*command, f"--export={exported}"],
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for text in ("kill -9", "payments == claims paid", "The history of claim-", "No claim was lost"):
        assert text in done.stdout
    assert '"WorkflowExecutionCompleted"' in exported.read_text(encoding="utf-8")
    assert not list(tmp_path.glob("clew-claims-*")), "a good run cleans up after itself"
