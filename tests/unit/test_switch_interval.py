"""The interval is set once, and only where the program has not set it."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
{before}
from clew.switch_interval import settle_switch_interval
settle_switch_interval()
{after}
settle_switch_interval()
print(round(1e6 * sys.getswitchinterval()))
"""


def told(*, before: str = "", after: str = "") -> str:
    program = PROGRAM.format(before=before, after=after)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.strip()


def test_the_default_gives_way() -> None:
    assert told() == "500"


def test_a_setting_of_the_program_stays() -> None:
    assert told(before="sys.setswitchinterval(0.01)") == "10000"
    assert told(after="sys.setswitchinterval(0.005)") == "5000"
