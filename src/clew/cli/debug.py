"""``clew workflow debug`` and ``clew workflow stack``: a run as its code stood at an event.

Owns: the commands. Never: rebuilds a run (``worker.Replayer`` does), or the prompt (``_debugger``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from clew.cli._connection import Place, command, place_of, place_options, reading
from clew.cli._errors import CommandError
from clew.cli._output import print_json
from clew.cli._replays import code_options, load_converter, load_workflows, read_history
from clew.cli.workflow import workflow
from clew.model.history import WorkflowHistory

if TYPE_CHECKING:
    from clew.worker import RebuiltRun, Replayer


@click.command("debug")
@click.argument("workflow_id", required=False)
@click.option("--run-id", "-r", metavar="ID", help="A certain run; the current one when not given.")
@click.option("--file", "-f", "file", metavar="FILE", help="An exported history, in place of one from a store.")
@code_options
@click.option("--at", type=click.IntRange(1), metavar="EVENT", help="The event to stop at; the last when not given.")
@click.option("--print", "prints", is_flag=True, help="Print the stacks with local variables, and open no debugger.")
@place_options
def debug(
    workflow_id: str | None, run_id: str | None, file: str | None, modules: Sequence[str], data_converter: str | None,
    at: int | None, prints: bool, **options: Any,
) -> None:  # fmt: skip
    """Replay a run to an event and open a debugger on the line where its code waits. Works beside a running owner.

    Nothing of the run is executed for real. In the debugger, `next` and `prev` move along the history, `help` tells the
    rest. Where a workflow task failed, it stands on the line that raised.
    """
    if (workflow_id is None) == (file is None):
        raise CommandError("Give either a WORKFLOW_ID, with --store, or --file with an exported history.")
    replayer = _replayer(modules, data_converter)
    if file is not None:
        history = read_history(file)
    else:
        history = asyncio.run(_fetch(place_of(options), workflow_id or "", run_id))
    _check_event(history, at)
    _look(replayer, history, at, prints=prints)


def _look(replayer: Replayer, history: WorkflowHistory, at: int | None, *, prints: bool) -> None:
    """Stop at one event after another, as the user wishes; at one only, to print it."""
    from clew.cli._debugger import HistoryDebugger, stack_lines

    event_id = at
    while True:
        run = asyncio.run(replayer.rebuild(history, event_id=event_id))
        try:
            _print_place(run)
            if prints:
                stack_lines(run, shows_locals=True)
                return
            event_id = HistoryDebugger(run).stop()
        finally:
            run.close()
        if event_id is None:
            return


@command(workflow, "stack")
@click.argument("workflow_id")
@click.option("--run-id", "-r", metavar="ID", help="A certain run; the current one when not given.")
@code_options
@click.option("--locals", "shows_locals", is_flag=True, help="With the local variables.")
async def stack(
    place: Place, workflow_id: str, run_id: str | None, modules: Sequence[str], data_converter: str | None,
    shows_locals: bool,
) -> None:  # fmt: skip
    """Print where the code of a run waits, with source lines. Works beside a running owner; needs no worker."""
    from clew.cli._debugger import stack_lines

    replayer = _replayer(modules, data_converter)
    run = await replayer.rebuild(await _fetch(place, workflow_id, run_id))
    try:
        if place.is_json:
            print_json(_facts(run, shows_locals=shows_locals))
        else:
            _print_place(run)
            stack_lines(run, shows_locals=shows_locals)
    finally:
        run.close()


def _replayer(modules: Sequence[str], data_converter: str | None) -> Replayer:
    from clew.worker import Replayer  # only commands that replay need the worker

    return Replayer(workflows=load_workflows(modules), data_converter=load_converter(data_converter))


async def _fetch(place: Place, workflow_id: str, run_id: str | None) -> WorkflowHistory:
    async with reading(place) as client:
        return await client.get_workflow_handle(workflow_id, run_id=run_id).fetch_history()


def _check_event(history: WorkflowHistory, at: int | None) -> None:
    if at is not None and at > len(history):
        raise CommandError(f"There is no event {at}: the history ends with event {len(history)}.")


def _print_place(run: RebuiltRun) -> None:
    from clew.cli._debugger import event_text

    history = run.history
    print(f"{history.started.workflow_type} {history.workflow_id}, at event {run.event_id} of {len(history)}:")
    print(event_text(history.events[run.event_id - 1]))
    if run.error is not None:
        print(f"{type(run.error).__name__}: {run.error}")
    elif run.is_closed:
        print("The code has come to its end.")
    elif not run.stacks:
        print("The code has not begun, or waits nowhere.")


def _facts(run: RebuiltRun, *, shows_locals: bool) -> dict[str, Any]:
    from clew.cli._debugger import local_texts

    return {
        "workflow_id": run.history.workflow_id,
        "run_id": run.history.run_id,
        "event_id": run.event_id,
        "is_closed": run.is_closed,
        "error": None if run.error is None else f"{type(run.error).__name__}: {run.error}",
        "stacks": [
            {
                "task": one.name,
                "frames": [
                    {
                        "file": frame.f_code.co_filename,
                        "line": line,
                        "function": frame.f_code.co_qualname,
                        **({"locals": local_texts(frame)} if shows_locals else {}),
                    }
                    for frame, line in one.frames
                ],
            }
            for one in run.stacks
        ],
    }
