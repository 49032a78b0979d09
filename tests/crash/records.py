"""What the long sweeps did, kept in the repository for the page of numbers.

Owns: ``record.json``, written when ``CLEW_CRASH_RECORD`` is set (`make crash-soak` sets it). Never: a number that was
not counted.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any, Final

from tests.which_code import commit_now

PATH: Final = Path(__file__).with_name("record.json")


def record(name: str, began: float, **facts: Any) -> None:
    """Keep what the sweep `name` did, over what it did before.

    Args:
        name: Of the sweep.
        began: When it began, by `time.monotonic`.
        facts: What it counted.
    """
    if not os.environ.get("CLEW_CRASH_RECORD"):
        return
    records = json.loads(PATH.read_text()) if PATH.exists() else {}
    records[name] = {"commit": commit_now(), "seconds": round(time.monotonic() - began), **facts}
    PATH.write_text(json.dumps(records, indent=2, sort_keys=True) + "\n")
