"""Replay one golden history in this interpreter: ``python -m tests.replay.golden_replay WORKFLOW.py HISTORY.json``."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from clew.client import WorkflowHistory
from clew.worker import Replayer


def load_module(path: Path) -> ModuleType:
    """Import a file by its path."""
    spec = importlib.util.spec_from_file_location(f"golden_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # type hints of dataclasses are looked up there
    spec.loader.exec_module(module)
    return module


async def replay(workflow_path: Path, history_path: Path) -> None:
    """Replay the history.

    Raises:
        Exception: The code no longer fits the history.
    """
    module = load_module(workflow_path)
    history = WorkflowHistory.from_json("golden", history_path.read_text(encoding="utf-8"))
    await Replayer(workflows=module.WORKFLOWS).replay_workflow(history)


if __name__ == "__main__":
    asyncio.run(replay(Path(sys.argv[1]), Path(sys.argv[2])))
    print("replayed")
