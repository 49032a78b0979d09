"""``clew workflow``: list, show, describe, result; start, signal, query, update, cancel, terminate, reset,
delete.

Owns: these commands and their options. Never: formats (``_workflow_views``) or connections (``_connection``).
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any

import click
import msgspec

from clew.cli._connection import Place, command, owning, reading
from clew.cli._errors import PARTLY_DONE, CommandError, problem_of
from clew.cli._groups import NounGroup
from clew.cli._inputs import input_options, read_arguments
from clew.cli._output import print_json, print_json_line
from clew.cli._watching import repeat, watch_option
from clew.cli._workers import worker_for
from clew.cli._workflow_views import (
    json_of,
    print_description,
    print_executions,
    print_history,
    print_new_lines,
)
from clew.client import Client, ResetReapplyExcludeType, ResetType, WorkflowHandle, WorkflowUpdateStage
from clew.client._calls import call_service
from clew.common import RawValue, WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from clew.model.events import Event
from clew.model.history import WorkflowHistory
from clew.service.requests import QueryWorkflowRequest

_RESET_TYPES = {"first": ResetType.FIRST_WORKFLOW_TASK, "last": ResetType.LAST_WORKFLOW_TASK}
_EXCLUDABLE = {"signals": ResetReapplyExcludeType.SIGNAL, "updates": ResetReapplyExcludeType.UPDATE}
_OPEN = "ExecutionStatus = 'Running'"
_CLOSED = "ExecutionStatus != 'Running'"
_RUN_ID = click.option("--run-id", "-r", metavar="ID", help="A certain run; the current one when not given.")


@click.group(cls=NounGroup, later={"debug": "clew.cli.debug:debug", "stack": "clew.cli.debug:stack"})
def workflow() -> None:
    """Runs of workflows."""


@command(workflow, "list")
@click.option("--query", "-q", default="", help="Which, such as \"WorkflowType = 'Claim'\"; all when not given.")
@click.option("--limit", "-l", type=click.IntRange(1), default=100, show_default=True, help="Most runs to print.")
@watch_option
async def list_(place: Place, query: str, limit: int, watch: float | None) -> None:
    """List runs, newest first. Works beside a running owner."""
    async with reading(place) as client:

        async def show() -> None:
            found = client.list_workflows(query, limit=limit, page_size=min(limit, 1_000))
            print_executions([execution async for execution in found], place.output)

        await repeat(watch, show)


@command(workflow, "count")
@click.option("--query", "-q", default="", help="Which; all when not given.")
async def count(place: Place, query: str) -> None:
    """Count runs by status. Works beside a running owner."""
    async with reading(place) as client:
        found = await client.count_workflows(query)
    groups = {group.group_values[0]: group.count for group in found.groups}
    if place.is_json:
        print_json({"count": found.count, "groups": groups})
    else:
        print(f"{found.count}" + "".join(f"  {name}: {number}" for name, number in groups.items()))


@command(workflow, "show")
@click.argument("workflow_id")
@_RUN_ID
@click.option("--full", is_flag=True, help="Every event, also those of workflow tasks.")
@click.option("--follow", "-f", is_flag=True, help="Go on as the run goes on, until it closes.")
async def show(place: Place, workflow_id: str, run_id: str | None, full: bool, follow: bool) -> None:
    """Print the history of a run; with --output json an export that can be replayed. Works beside a running owner."""
    async with reading(place) as client:
        handle = client.get_workflow_handle(workflow_id, run_id=run_id)
        if not follow:
            print_history(await handle.fetch_history(), place.output, is_full=full)
            return
        await _follow(handle, place, is_full=full)


async def _follow(handle: WorkflowHandle[Any, Any], place: Place, *, is_full: bool) -> None:
    events: list[Event] = []
    shown = 0
    async for event in handle.fetch_history_events(wait_new_event=True):
        events.append(event)
        if place.output == "jsonl":
            print_json_line(event)
        elif place.output == "table" and is_full:
            print(f"{event.event_id:>5}  {event.event_time.isoformat()}  {type(event).__name__}")
        elif place.output == "table":
            shown = print_new_lines(events, shown)
        sys.stdout.flush()
    if place.output == "json":
        print_history(WorkflowHistory(handle.id, events), "json", is_full=True)


@command(workflow, "describe")
@click.argument("workflow_id")
@_RUN_ID
@watch_option
async def describe(place: Place, workflow_id: str, run_id: str | None, watch: float | None) -> None:
    """Print what a run is, and what it waits for. Works beside a running owner."""
    async with reading(place) as client:

        async def show() -> None:
            print_description(await client.get_workflow_handle(workflow_id, run_id=run_id).describe(), place.output)

        await repeat(watch, show)


@command(workflow, "result")
@click.argument("workflow_id")
@_RUN_ID
@click.option("--timeout", type=float, metavar="SECONDS", help="Longest wait; for ever when not given.")
@click.option("--follow-runs/--no-follow-runs", default=True, show_default=True, help="Go on to runs that follow.")
async def result(place: Place, workflow_id: str, run_id: str | None, timeout: float | None, follow_runs: bool) -> None:
    """Wait for the result of a run and print it as JSON. Works beside a running owner."""
    async with reading(place) as client:
        handle = client.get_workflow_handle(workflow_id, run_id=run_id, result_type=RawValue)
        try:
            async with asyncio.timeout(timeout):
                value = await handle.result(follow_runs=follow_runs)
        except TimeoutError as error:
            raise CommandError(
                f"Workflow {workflow_id!r} did not close within {timeout:g} s. See `clew workflow describe` for what "
                "it waits for.",
                code="deadline_exceeded",
                exit_code=9,
            ) from error
    _print_result(place, value)


@command(workflow, "start")
@click.argument("workflow_id")
@click.option("--type", "-t", "workflow_type", required=True, help="Type of the workflow.")
@click.option("--task-queue", "-q", required=True, help="Where its workers listen.")
@input_options
@click.option("--execution-timeout", type=float, metavar="SECONDS", help="For the whole chain of runs.")
@click.option("--run-timeout", type=float, metavar="SECONDS", help="For one run.")
@click.option("--start-delay", type=float, metavar="SECONDS", help="Wait before its code runs first.")
@click.option("--cron", default="", help="Run again and again by this schedule.")
@click.option(
    "--id-reuse-policy",
    type=click.Choice([policy.value for policy in WorkflowIDReusePolicy]),
    default=WorkflowIDReusePolicy.ALLOW_DUPLICATE.value,
    show_default=True,
)
@click.option(
    "--id-conflict-policy",
    type=click.Choice([policy.value for policy in WorkflowIDConflictPolicy]),
    default=WorkflowIDConflictPolicy.UNSPECIFIED.value,
    show_default=True,
)
async def start(
    place: Place, workflow_id: str, workflow_type: str, task_queue: str, inputs: Sequence[str],
    input_files: Sequence[str], cron: str, id_reuse_policy: str, id_conflict_policy: str, **seconds: float | None,
) -> None:  # fmt: skip
    """Start a run; a worker picks it up when there is one. Needs to own the store."""
    arguments = read_arguments(inputs, input_files)
    async with owning(place, may_create=True) as client:
        handle = await client.start_workflow(
            workflow_type,
            args=arguments,
            id=workflow_id,
            task_queue=task_queue,
            execution_timeout=_duration(seconds["execution_timeout"]),
            run_timeout=_duration(seconds["run_timeout"]),
            start_delay=_duration(seconds["start_delay"]),
            cron_schedule=cron,
            id_reuse_policy=WorkflowIDReusePolicy(id_reuse_policy),
            id_conflict_policy=WorkflowIDConflictPolicy(id_conflict_policy),
        )
    if place.is_json:
        print_json({"workflow_id": workflow_id, "run_id": handle.result_run_id})
    else:
        print(f"Started workflow {workflow_id!r}, run {handle.result_run_id}.")


@command(workflow, "signal")
@click.argument("workflow_id", required=False)
@click.option("--name", required=True, help="Name of the signal.")
@input_options
@_RUN_ID
@click.option("--query", "-q", help="Signal every open run that fits, in place of one.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask before changing many runs.")
async def signal(
    place: Place, workflow_id: str | None, name: str, inputs: Sequence[str], input_files: Sequence[str],
    run_id: str | None, query: str | None, yes: bool,
) -> int:  # fmt: skip
    """Send a signal to a run, or to many. Needs to own the store."""
    arguments = read_arguments(inputs, input_files)

    async def act(handle: WorkflowHandle[Any, Any]) -> None:
        await handle.signal(name, args=arguments)

    return await _on_runs(place, workflow_id, run_id, query, yes, "Signalled", act)


@command(workflow, "cancel")
@click.argument("workflow_id", required=False)
@_RUN_ID
@click.option("--reason", default="", help="Why, for people and for the workflow's code.")
@click.option("--query", "-q", help="Cancel every open run that fits, in place of one.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask before changing many runs.")
async def cancel(
    place: Place, workflow_id: str | None, run_id: str | None, reason: str, query: str | None, yes: bool
) -> int:
    """Ask a run, or many, to stop; their code may clean up first. Needs to own the store."""

    async def act(handle: WorkflowHandle[Any, Any]) -> None:
        await handle.cancel(reason=reason)

    return await _on_runs(place, workflow_id, run_id, query, yes, "Asked to stop:", act)


@command(workflow, "terminate")
@click.argument("workflow_id", required=False)
@_RUN_ID
@click.option("--reason", default="", help="Why, for people.")
@click.option("--query", "-q", help="Terminate every open run that fits, in place of one.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask before changing many runs.")
async def terminate(
    place: Place, workflow_id: str | None, run_id: str | None, reason: str, query: str | None, yes: bool
) -> int:
    """End a run, or many, at once; their code gets no say. Needs to own the store."""

    async def act(handle: WorkflowHandle[Any, Any]) -> None:
        await handle.terminate(reason=reason)

    return await _on_runs(place, workflow_id, run_id, query, yes, "Terminated", act)


@command(workflow, "delete")
@click.argument("workflow_id", required=False)
@_RUN_ID
@click.option("--query", "-q", help="Delete every closed run that fits, in place of one.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask before changing many runs.")
async def delete(place: Place, workflow_id: str | None, run_id: str | None, query: str | None, yes: bool) -> int:
    """Remove a closed run, or many, and their histories, for good. Needs to own the store.

    Without --run-id it is the latest run of the workflow id; the one before it, if there is one, is the latest then.
    """

    async def act(handle: WorkflowHandle[Any, Any]) -> None:
        await handle.delete()

    return await _on_runs(place, workflow_id, run_id, query, yes, "Deleted", act, _CLOSED)


@command(workflow, "reset")
@click.argument("workflow_id")
@_RUN_ID
@click.option("--event-id", "-e", type=click.IntRange(2), metavar="N", help="To a WorkflowTaskCompleted, by its id.")
@click.option("--type", "-t", "reset_type", type=click.Choice(list(_RESET_TYPES)), help="To the first or last task.")
@click.option("--build-id", metavar="ID", help="To the first workflow task that this build completed.")
@click.option("--reason", required=True, help="Why; it stays in both histories.")
@click.option(
    "--exclude", multiple=True, type=click.Choice(list(_EXCLUDABLE)), help="Leave out what came after the point."
)
async def reset(
    place: Place, workflow_id: str, run_id: str | None, event_id: int | None, reset_type: str | None,
    build_id: str | None, reason: str, exclude: Sequence[str],
) -> None:  # fmt: skip
    """Go on from an earlier point of a run, as a new run. Needs to own the store.

    Give one of --event-id, --type and --build-id. An open run is ended. Signals and updates that came after the point
    come again, and activities keep their idempotency keys.
    """
    async with owning(place) as client:
        made = await client.get_workflow_handle(workflow_id, run_id=run_id).reset(
            reason=reason,
            event_id=event_id,
            reset_type=_RESET_TYPES[reset_type] if reset_type else ResetType.UNSPECIFIED,
            build_id=build_id,
            reapply_exclude=[_EXCLUDABLE[name] for name in exclude],
        )
    if place.is_json:
        print_json({"workflow_id": workflow_id, "run_id": made.run_id})
    else:
        print(f"Reset workflow {workflow_id!r}; it goes on as run {made.run_id}.")


@command(workflow, "query")
@click.argument("workflow_id")
@click.option("--name", required=True, help="Name of the query.")
@input_options
@_RUN_ID
@click.option("--worker", metavar="MODULE:FUNCTION", help="Makes a worker from a client, to answer; see --help.")
@click.option("--timeout", type=float, default=10.0, show_default=True, metavar="SECONDS", help="Longest wait.")
async def query(
    place: Place, workflow_id: str, name: str, inputs: Sequence[str], input_files: Sequence[str],
    run_id: str | None, worker: str | None, timeout: float,
) -> None:  # fmt: skip
    """Ask a run's code a question and print the answer as JSON. Needs to own the store, and a worker.

    The answer comes from workflow code, so some worker must have it: --worker names a function that gets the client and
    returns a Worker, such as claims.worker:make_worker. It runs just for the question.
    """
    arguments = read_arguments(inputs, input_files)
    async with owning(place) as client, worker_for(client, worker):
        request = QueryWorkflowRequest(
            namespace=place.namespace,
            workflow_id=workflow_id,
            run_id=run_id or "",
            query_type=name,
            query_args=await client._values.encode(arguments, f"the arguments of query {name!r}"),
        )
        answer = await call_service(
            client.connection, client.connection.service.query_workflow, request, timeout=timedelta(seconds=timeout)
        )
    print_json(json_of(answer.result))


@command(workflow, "update")
@click.argument("workflow_id")
@click.option("--name", required=True, help="Name of the update.")
@input_options
@_RUN_ID
@click.option("--update-id", metavar="ID", help="Knows a repeat: it gives the first one's result. New if not given.")
@click.option("--no-wait", is_flag=True, help="Return once it is accepted, with its id, and not with its result.")
@click.option("--worker", metavar="MODULE:FUNCTION", help="Makes a worker from a client, to answer; see query --help.")
@click.option("--timeout", type=float, default=10.0, show_default=True, metavar="SECONDS", help="Longest wait.")
async def update(
    place: Place, workflow_id: str, name: str, inputs: Sequence[str], input_files: Sequence[str],
    run_id: str | None, update_id: str | None, no_wait: bool, worker: str | None, timeout: float,
) -> None:  # fmt: skip
    """Have a run's code do something, and print what it answers as JSON. Needs to own the store, and a worker."""
    arguments = read_arguments(inputs, input_files)
    async with owning(place) as client, worker_for(client, worker):
        try:
            async with asyncio.timeout(timeout):
                sent = await client.get_workflow_handle(workflow_id, run_id=run_id).start_update(
                    name,
                    args=arguments,
                    id=update_id,
                    wait_for_stage=WorkflowUpdateStage.ACCEPTED,
                    result_type=RawValue,
                )
                value: RawValue | None = None if no_wait else await sent.result()
        except TimeoutError as error:
            raise CommandError(
                f"Update {name!r} of workflow {workflow_id!r} was not over within {timeout:g} s, and may still happen. "
                "See `clew workflow describe` for what the run waits for; with --update-id the same update can be "
                "asked for again.",
                code="deadline_exceeded",
                exit_code=9,
            ) from error
    if no_wait:
        told = {"workflow_id": workflow_id, "run_id": sent.workflow_run_id, "update_id": sent.id}
        print_json(told) if place.is_json else print(f"Update {sent.id!r} of workflow {workflow_id!r} is accepted.")
    else:
        _print_result(place, value)


def _print_result(place: Place, value: RawValue | None) -> None:
    payload = value.payload if value is not None else None
    is_json = payload is not None and payload.metadata.get("encoding") == b"json/plain"
    if payload is not None and not is_json and payload.metadata.get("encoding") != b"binary/null":
        raw: Any = {"metadata": payload.metadata, "data": payload.data}
    else:
        raw = msgspec.Raw(payload.data) if payload is not None and is_json else None
    (print_json_line if place.output == "jsonl" else print_json)(raw)


async def _on_runs(
    place: Place, workflow_id: str | None, run_id: str | None, query: str | None, yes: bool, done: str,
    act: Callable[[WorkflowHandle[Any, Any]], Awaitable[None]], which: str = _OPEN,
) -> int:  # fmt: skip
    """Do something to one run, or to all that fit a query, each on its own."""
    if (workflow_id is None) == (query is None):
        raise CommandError("Give either a WORKFLOW_ID, or --query for many, but not both.")
    async with owning(place) as client:
        if workflow_id is not None:
            await act(client.get_workflow_handle(workflow_id, run_id=run_id))
            _print_done(place, done, [workflow_id], [])
            return 0
        return await _on_many(client, place, query or "", yes, done, act, which)


async def _on_many(
    client: Client, place: Place, query: str, yes: bool, done: str,
    act: Callable[[WorkflowHandle[Any, Any]], Awaitable[None]], which: str,
) -> int:  # fmt: skip
    if not query.strip():
        raise CommandError("An empty --query would mean every run. Say which, such as \"WorkflowType = 'Claim'\".")
    # By itself first: what is wrong with it is told by its own positions.
    await client.count_workflows(query)
    wanted = f"({query}) AND {which}"
    found = [(run.id, run.run_id) async for run in client.list_workflows(wanted)]
    if found and not yes:
        if not sys.stdin.isatty():
            raise CommandError(f"{len(found)} runs fit. Add --yes to go ahead without being asked.")
        click.confirm(f"{len(found)} runs fit. Go ahead?", abort=True, err=True)
    changed: list[str] = []
    problems: list[dict[str, Any]] = []
    for found_id, found_run_id in found:
        try:
            await act(client.get_workflow_handle(found_id, run_id=found_run_id))
            changed.append(found_id)
        except Exception as error:  # noqa: BLE001 - one run that closed meanwhile must not stop the others; it is told
            problems.append({"workflow_id": found_id, **problem_of(error).facts})
    _print_done(place, done, changed, problems)
    return PARTLY_DONE if problems else 0


def _print_done(place: Place, done: str, changed: Sequence[str], problems: Sequence[dict[str, Any]]) -> None:
    if place.is_json:
        print_json({"workflow_ids": changed, "problems": problems})
        return
    print(f"{done} {', '.join(changed)}." if 0 < len(changed) <= 5 else f"{done} {len(changed)} workflows.")
    for problem in problems:
        print(f"{problem['workflow_id']}: {problem['message']}", file=sys.stderr)


def _duration(seconds: float | None) -> timedelta | None:
    return timedelta(seconds=seconds) if seconds is not None else None
