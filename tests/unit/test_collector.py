"""The collector is set once, and only where the program has not set it."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import gc
{before}
from clew.collector import settle_collector
settle_collector()
print(gc.get_threshold()[0], gc.get_freeze_count() > 0, gc.isenabled())
"""


def told(before: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(before=before)], capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout.strip()


def test_the_defaults_give_way() -> None:
    assert told("") == "20000 True True"


def test_a_setting_of_the_program_stays() -> None:
    assert told("gc.set_threshold(1234)") == "1234 False True"
    assert told("gc.disable()").endswith("False False")
