"""``clew replay``: exported histories against the code at hand.

Owns: the command. Never: replays (``worker.Replayer`` does).
"""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from clew.cli._errors import DOES_NOT_FIT, CommandError
from clew.cli._output import print_json, print_table
from clew.model.history import WorkflowHistory


@click.command("replay")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option(
    "--module", "-m", "modules", multiple=True, required=True, metavar="MODULE", help="Where the workflows are."
)
@click.option("--output", "-o", type=click.Choice(["table", "json"]), envvar="CLEW_OUTPUT", default="table")
def replay(files: Sequence[str], modules: Sequence[str], output: str) -> int:
    """Replay histories against the workflows of some modules, and say which no longer fit.

    A FILE is what `clew workflow show ID --output json` printed; '-' reads one from stdin.
    """
    histories = [(name, _read_history(name)) for name in files]
    results = asyncio.run(_replay_all(histories, _load_workflows(modules)))
    if output == "json":
        print_json([{"file": name, "fits": not problem, "problem": problem} for name, problem in results])
    else:
        rows = [(name, "fits" if not problem else "does not fit", problem) for name, problem in results]
        print_table(("FILE", "CODE", "WHY"), rows, empty="No histories.")
    return DOES_NOT_FIT if any(problem for _, problem in results) else 0


async def _replay_all(
    histories: Sequence[tuple[str, WorkflowHistory]], workflows: Sequence[type[Any]]
) -> list[tuple[str, str]]:
    from clew.worker import Replayer  # only this command needs the worker

    replayer = Replayer(workflows=workflows)
    results: list[tuple[str, str]] = []
    for name, history in histories:
        result = await replayer.replay_workflow(history, raise_on_replay_failure=False)
        problem = result.replay_failure
        results.append((name, "" if problem is None else f"{type(problem).__name__}: {problem}"))
    return results


def _read_history(name: str) -> WorkflowHistory:
    try:
        data = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except OSError as error:
        raise CommandError(f"Cannot read {name}: {error.strerror}.") from error
    try:
        return WorkflowHistory.from_json(None, data)
    except ValueError as error:
        raise CommandError(f"{name}: {error}") from error


def _load_workflows(modules: Sequence[str]) -> list[type[Any]]:
    from clew.workflow._definition import Definition

    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    found: dict[str | None, type[Any]] = {}
    for module_name in modules:
        try:
            module = importlib.import_module(module_name)
        except ImportError as error:
            raise CommandError(f"Cannot load module {module_name!r}: {error}.") from error
        for value in vars(module).values():
            definition = Definition.from_class(value) if isinstance(value, type) else None
            if definition is not None:
                found[definition.name] = definition.cls
    if not found:
        raise CommandError(f"No class decorated with @workflow.defn in {', '.join(modules)}.")
    return list(found.values())
