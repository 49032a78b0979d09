"""Sets Python's cycle collector for a process that runs an engine.

Owns: the one call below and its numbers. Never: switches the collector off, or changes what the program has set itself.

How it works: an engine makes and drops some thousand small objects a run, nearly all of them freed by their counts.
CPython's default looks through the young ones at every 700 that are alive at once, which a burst of runs passes all the
time, and through everything that was ever imported each time the survivors have grown by a quarter. So what is alive
when the first engine of the process starts is set aside as permanent, and the young are looked at less often. A
program that has set thresholds of its own, or has switched the collector off, keeps its settings
(docs/adr/0013-collector.md).
"""

from __future__ import annotations

import gc
from typing import Final

THRESHOLD_DEFAULTS: Final = (700, 2_000)
"""First thresholds that CPython sets by itself (3.11 and 3.12, and those from 3.13 on)."""

THRESHOLD: Final = 20_000
"""Young objects alive at once before they are looked through: some hundred runs on their way."""

_is_done = False


def settle_collector() -> None:
    """Do it, once a process."""
    global _is_done
    if _is_done:
        return
    _is_done = True
    young, middle, old = gc.get_threshold()
    if gc.isenabled() and young in THRESHOLD_DEFAULTS:
        gc.collect()
        gc.freeze()
        gc.set_threshold(THRESHOLD, middle, old)
