"""``clew queue``: what waits in task queues, since when, and who takes it.

Owns: these commands. Never: the rules (the engine has them).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from clew.cli._connection import Place, command, owning
from clew.cli._groups import NounGroup
from clew.cli._output import print_json, print_json_line, print_table, time_text
from clew.cli._watching import repeat, watch_option
from clew.client import Client
from clew.client._calls import call_service
from clew.service import operations as o


@click.group(cls=NounGroup)
def queue() -> None:
    """Task queues."""


@command(queue, "list")
@watch_option
async def list_(place: Place, watch: float | None) -> None:
    """List the task queues in which tasks wait or to which workers are attached."""
    async with owning(place) as client:

        async def show() -> None:
            request = o.ListTaskQueuesRequest(namespace=place.namespace)
            found = await call_service(client.connection, client.connection.service.list_task_queues, request)
            _print(place, found.task_queues)

        await repeat(watch, show)


@command(queue, "describe")
@click.argument("name")
@watch_option
async def describe(place: Place, name: str, watch: float | None) -> None:
    """Print what waits in a task queue, and the workers that take from it."""
    async with owning(place) as client:
        await repeat(watch, lambda: _describe(client, place, name))


async def _describe(client: Client, place: Place, name: str) -> None:
    request = o.DescribeTaskQueueRequest(namespace=place.namespace, task_queue=name)
    found = await call_service(client.connection, client.connection.service.describe_task_queue, request)
    if place.is_json:
        (print_json_line if place.output == "jsonl" else print_json)(found)
        return
    _print(place, [found])
    rows = [
        (
            one.identity,
            _kinds(one),
            one.deployment_version.to_canonical_string() if one.deployment_version is not None else "-",
            f"{one.workflow_credits} / {one.activity_credits}",
        )
        for one in found.pollers
    ]
    print()
    print_table(("WORKER", "TAKES", "VERSION", "FREE SLOTS"), rows, empty="No worker takes tasks of this queue.")


def _print(place: Place, found: Sequence[o.TaskQueueInfo]) -> None:
    if place.output == "jsonl":
        for one in found:
            print_json_line(one)
    elif place.is_json:
        shown: Any = list(found)
        print_json(shown)
    else:
        rows = [
            (
                one.task_queue,
                str(one.workflow_backlog),
                str(one.activity_backlog),
                time_text(min((t for t in (one.workflow_oldest_at, one.activity_oldest_at) if t), default=None)),
                str(len(one.pollers)),
            )
            for one in found
        ]
        headers = ("TASK QUEUE", "WORKFLOW TASKS", "ACTIVITY TASKS", "OLDEST SINCE", "WORKERS")
        print_table(headers, rows, empty="No tasks wait, and no workers are attached.")


def _kinds(one: o.PollerInfo) -> str:
    kinds = [name for name, takes in (("workflows", one.takes_workflow_tasks), ("activities", one.takes_activity_tasks))
             if takes]  # fmt: skip
    return " and ".join(kinds) or "nothing"
