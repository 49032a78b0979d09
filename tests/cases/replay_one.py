"""Replays exported histories in this interpreter and prints ``"ok"`` or the error for each, as a JSON list.

``python -m tests.cases.replay_one SEED``, with the jobs on standard input. The seed decides how much garbage is made
before, so that objects lie elsewhere in memory than in the process that made the histories.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import random
import sys
from typing import Any

from clew.model.history import WorkflowHistory
from clew.worker import Replayer


def main() -> None:
    """Read, replay, report."""
    dice = random.Random(int(sys.argv[1]))
    garbage: list[Any] = [[object() for _ in range(dice.randrange(50))] for _ in range(dice.randrange(2_000))]
    dice.shuffle(garbage)
    del garbage[: len(garbage) // 2]
    print(json.dumps([asyncio.run(_outcome(job)) for job in json.load(sys.stdin)]))


async def _outcome(job: dict[str, Any]) -> str:
    workflows = [_find(name) for name in job["workflows"]]
    try:
        await Replayer(workflows=workflows).replay_workflow(WorkflowHistory.from_json(None, job["history"]))
    except Exception as error:  # noqa: BLE001 - the error is the answer
        return f"{type(error).__name__}: {error}"
    return "ok"


def _find(name: str) -> Any:
    module, _, qualified = name.partition(":")
    found: Any = importlib.import_module(module)
    for part in qualified.split("."):
        found = getattr(found, part)
    return found


if __name__ == "__main__":
    main()
