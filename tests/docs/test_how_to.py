"""The programs in the how-to pages run as they stand and print what the pages say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    "blocking-client.md",
    "exactly-once-in-sql.md",
    "idempotent-http.md",
    "local-steps.md",
    "protect-payloads.md",
    "repair-a-run.md",
    "trace-with-opentelemetry.md",
    "worker-versions.md",
]


@pytest.mark.parametrize("name", PAGES)
def test_program_prints_what_the_page_says(name: str, tmp_path: Path) -> None:
    text = (ROOT / "docs" / "how-to" / name).read_text(encoding="utf-8")
    (program,) = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    (output,) = re.findall(r"^```text\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    (tmp_path / "program.py").write_text(program, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "program.py"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == output
