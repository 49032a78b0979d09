"""``clew activity``: end activities that are completed from elsewhere.

Owns: these commands. Never: whether an attempt is still under way (the engine decides).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import click

from clew.cli._connection import Place, command, owning
from clew.cli._groups import NounGroup
from clew.cli._inputs import input_options, read_arguments
from clew.cli._output import print_json
from clew.client import AsyncActivityHandle, Client
from clew.client._calls import call_service
from clew.exceptions import ApplicationError
from clew.model.inputs import ActivityTarget
from clew.service import operations as o

F = TypeVar("F", bound=Callable[..., Any])


@click.group(cls=NounGroup)
def activity() -> None:
    """Activities that people or other programs complete."""


def _named(function: F) -> F:
    """Add the arguments that name an activity."""
    function = click.option("--run-id", "-r", metavar="ID", help="A certain run; the current one when not given.")(
        function
    )
    return click.argument("workflow_id")(click.argument("activity_id")(function))


@command(activity, "complete")
@_named
@input_options
async def complete(
    place: Place, workflow_id: str, activity_id: str, run_id: str | None, inputs: Sequence[str],
    input_files: Sequence[str],
) -> None:  # fmt: skip
    """Tell that an activity succeeded; --input is its result."""
    results = read_arguments(inputs, input_files)
    async with owning(place) as client:
        await _handle(client, workflow_id, activity_id, run_id).complete(*results[:1])
    _print_done(place, "Completed", workflow_id, activity_id)


@command(activity, "fail")
@_named
@click.option("--message", required=True, help="What happened.")
@click.option("--type", "error_type", help="Kind of the error, which retry policies and workflows select by.")
@click.option("--non-retryable", is_flag=True, help="Let there be no other attempt.")
async def fail(
    place: Place, workflow_id: str, activity_id: str, run_id: str | None, message: str, error_type: str | None,
    non_retryable: bool,
) -> None:  # fmt: skip
    """Tell that an attempt failed; by its retry policy there is another."""
    async with owning(place) as client:
        error = ApplicationError(message, type=error_type, non_retryable=non_retryable)
        await _handle(client, workflow_id, activity_id, run_id).fail(error)
    _print_done(place, "Failed", workflow_id, activity_id)


@command(activity, "cancel")
@_named
async def cancel(place: Place, workflow_id: str, activity_id: str, run_id: str | None) -> None:
    """Tell that an activity ended because it was asked to."""
    async with owning(place) as client:
        await _handle(client, workflow_id, activity_id, run_id).report_cancellation()
    _print_done(place, "Cancelled", workflow_id, activity_id)


@command(activity, "heartbeat")
@_named
async def heartbeat(place: Place, workflow_id: str, activity_id: str, run_id: str | None) -> None:
    """Tell that an attempt is alive."""
    async with owning(place) as client:
        await _handle(client, workflow_id, activity_id, run_id).heartbeat()
    _print_done(place, "Noted", workflow_id, activity_id)


@command(activity, "callback")
@_named
@click.option("--expires-in-hours", type=click.FloatRange(min=0, min_open=True), help="How long; 7 days if not given.")
async def callback(
    place: Place, workflow_id: str, activity_id: str, run_id: str | None, expires_in_hours: float | None
) -> None:
    """Print a secret path of the HTTP API, by which somebody without credentials may end this activity."""
    target = ActivityTarget(
        namespace=place.namespace, workflow_id=workflow_id, activity_id=activity_id, run_id=run_id or ""
    )
    expires_in = timedelta(hours=expires_in_hours) if expires_in_hours is not None else timedelta(0)
    async with owning(place) as client:
        request = o.IssueCallbackRequest(target=target, expires_in=expires_in)
        issued = await call_service(client.connection, client.connection.service.issue_callback, request)
    path = f"/api/v1/callbacks/{issued.token}"
    if place.is_json:
        print_json({"path": path, "expires_at": issued.expires_at})
    else:
        print(path)


def _handle(client: Client, workflow_id: str, activity_id: str, run_id: str | None) -> AsyncActivityHandle:
    return client.get_async_activity_handle(workflow_id=workflow_id, activity_id=activity_id, run_id=run_id)


def _print_done(place: Place, done: str, workflow_id: str, activity_id: str) -> None:
    if place.is_json:
        print_json({"workflow_id": workflow_id, "activity_id": activity_id})
    else:
        print(f"{done}: activity {activity_id!r} of workflow {workflow_id!r}.")
