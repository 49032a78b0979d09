"""Look again at the few tests that failed in the last run: were they unlucky, or is something broken?

Owns: the verdict on a run in which very few tests failed. Never: excuses a test that fails again, or many at once.

How it works: many tests here run real threads, processes and deadlines, and a shared machine now and then stalls one.
pytest keeps which tests failed last. If they are at most `FAILED_MAX`, each is run alone `RUNS` times more, and has to
pass every time. A test that did is named in the output as unstable: that is a defect to be mended, not noise.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Final

FAILED_MAX: Final = 5
RUNS: Final = 2
LAST_FAILED: Final = Path(".pytest_cache/v/cache/lastfailed")


def main() -> int:
    """The exit code: 0 when every test that failed has passed `RUNS` times since."""
    if not LAST_FAILED.exists():
        print("second look: pytest left no record of failed tests; the run itself broke")
        return 1
    failed = sorted(json.loads(LAST_FAILED.read_text()))
    if not 0 < len(failed) <= FAILED_MAX:
        print(f"second look: {len(failed)} failures; only 1 to {FAILED_MAX} are looked at again")
        return 1
    for test in failed:
        for _ in range(RUNS):
            again = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test], check=False)
            if again.returncode != 0:
                print(f"second look: FAILED AGAIN {test}")
                return 1
    for test in failed:
        print(f"second look: UNSTABLE {test}: failed once, then passed {RUNS} times alone; mend it")
    return 0


if __name__ == "__main__":
    sys.exit(main())
