"""Runs the programs on Clew: the package that they import is renamed, nothing else."""

from __future__ import annotations

import enum
import json
import types
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from clew.client import Client, ResetReapplyExcludeType
from clew.model.payload import from_stored
from clew.worker import Worker
from tests.compat.test_programs import load
from tests.differential.bench import Bench
from tests.differential.projection import Event, scrub, snake

PROGRAMS_DIR = Path(__file__).parent / "programs"


def programs() -> dict[str, tuple[types.ModuleType, Any]]:
    """Every program by name."""
    found: dict[str, tuple[types.ModuleType, Any]] = {}
    for path in sorted(PROGRAMS_DIR.glob("*.py")):
        module = load(path)
        for program in module.PROGRAMS:
            assert program.__name__ not in found, f"two programs are named {program.__name__}"
            found[program.__name__] = (module, program)
    return found


def from_clew(event: Any) -> Event:
    """The neutral form of an event of Clew; every field is there, defaults too."""
    fields = _plain(event)
    del fields["event_time"]
    kind = type(event).__name__
    if kind == "WorkflowExecutionUpdateCompleted":
        outcome = fields["outcome"]
        fields["outcome"] = {"failure": outcome["failure"]} if outcome["failure"] else {"success": outcome["result"]}
    return {"id": fields.pop("event_id"), "type": kind, **fields}


def _plain(value: Any) -> Any:
    if isinstance(value, msgspec.Raw):
        payload = from_stored(value)
        encoding = payload.metadata["encoding"].decode()
        if encoding == "binary/null":
            return None
        return json.loads(payload.data) if encoding.startswith("json/") else {"data": payload.data.hex()}
    if isinstance(value, msgspec.Struct):
        plain = {name: _plain(getattr(value, name)) for name in value.__struct_fields__}
        if "info" in plain and "stack_trace" in plain:  # a failure: its kind names the published field
            info = plain.pop("info")
            if info is not None:
                kind = type(value.info).__name__.removesuffix("Info")  # type: ignore[attr-defined]
                plain[snake(kind[0].lower() + kind[1:])] = info
        return plain
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, enum.Enum):
        return value.value if isinstance(value.value, str) else _words(value.name)
    return value.isoformat() if isinstance(value, datetime) else value


def _words(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_"))


async def run(name: str, program: Any, address: str) -> dict[str, list[dict[str, Any]]]:
    """Run one program and give its scrubbed histories."""
    client = await Client.connect(address)
    try:

        async def read(workflow_id: str, run_id: str) -> list[dict[str, Any]]:
            history = await client.get_workflow_handle(workflow_id, run_id=run_id or None).fetch_history()
            return [from_clew(event) for event in history.events]

        async def reset(workflow_id: str, run_id: str, event_id: int, without: Sequence[str]) -> str:
            made = await client.get_workflow_handle(workflow_id, run_id=run_id or None).reset(
                reason="mend",
                event_id=event_id,
                reapply_exclude=[ResetReapplyExcludeType(kind.capitalize()) for kind in without],
            )
            return made.run_id or ""

        bench = Bench(name, client, Worker, read, reset)
        await program(bench)
        return scrub(await bench.histories())
    finally:
        await client.close()
