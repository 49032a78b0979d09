"""The process is killed between the commit of a step and the report of its activity; the payment is made once."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

from clew.contrib.sql import create_table_sql

ROOT = Path(__file__).parents[2]


def test_killed_after_the_commit_the_step_is_not_repeated(tmp_path: Path) -> None:
    payments = tmp_path / "payments.db"
    connection = sqlite3.connect(payments)
    connection.execute("CREATE TABLE payments (amount INTEGER)")
    connection.execute("CREATE TABLE attempts (id INTEGER PRIMARY KEY)")
    connection.execute(create_table_sql("sqlite"))
    connection.commit()
    command = [sys.executable, "-m", "tests.contrib.sql_step_worker", str(tmp_path / "clew.db"), str(payments)]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    ends = [
        subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=90) for _ in range(3)
    ]
    assert [end.returncode for end in ends] == [-signal.SIGKILL, -signal.SIGKILL, 0], ends[-1].stderr
    assert ends[-1].stdout.strip() == "1"
    assert connection.execute("SELECT count(*) FROM payments").fetchone() == (1,)
    assert connection.execute("SELECT count(*) FROM attempts").fetchone() == (3,)
    connection.close()
