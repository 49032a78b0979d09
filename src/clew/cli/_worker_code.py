"""Workers from a user's module.

Owns: what is found in a module, and the workers made of it. Never: runs them.

How it works: ``module:function`` names a function that gets the client and returns a `Worker`, or several. A bare
``module`` is looked through: every class decorated with ``@workflow.defn`` and every function decorated with
``@activity.defn`` that it holds is registered with one worker.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, cast

from clew.activity._definition import _Definition as ActivityDefinition
from clew.cli._errors import CommandError
from clew.cli._replays import load_module
from clew.cli._workers import load_named
from clew.client import Client
from clew.worker import Worker


async def make_workers(client: Client, named: str, task_queue: str) -> list[Worker]:
    """The workers that `named` stands for.

    Args:
        client: Theirs.
        named: ``module`` or ``module:function``.
        task_queue: For those of a bare module.

    Raises:
        CommandError: There is no such module or function, or it holds nothing to run.
    """
    if ":" in named:
        return await _made_by(client, named)
    workflows, activities = definitions_of(load_module(named))
    if not workflows and not activities:
        raise CommandError(
            f"Module {named!r} has no class decorated with @workflow.defn and no function decorated with "
            "@activity.defn. Name a function that makes a worker, as module:function, if they are elsewhere."
        )
    return [Worker(client, task_queue=task_queue, workflows=workflows, activities=activities)]


def definitions_of(module: Any) -> tuple[list[type[Any]], list[Callable[..., Any]]]:
    """The workflow classes and the activities that a module holds, each once."""
    from clew.workflow._definition import Definition

    workflows: dict[str | None, type[Any]] = {}
    activities: dict[str | None, Callable[..., Any]] = {}
    for _, value in inspect.getmembers(module):
        if inspect.isclass(value):
            definition = Definition.from_class(value)
            if definition is not None:
                workflows[definition.name] = definition.cls
        elif inspect.isroutine(value) and (found := ActivityDefinition.from_callable(value)) is not None:
            activities[found.name] = value
    return list(workflows.values()), list(activities.values())


async def _made_by(client: Client, named: str) -> list[Worker]:
    made: Any = load_named(named)(client)
    if inspect.isawaitable(made):
        made = await made
    workers = list(cast(Sequence[Any], made)) if isinstance(made, (list, tuple)) else [made]
    for worker in workers:
        if not isinstance(worker, Worker):
            raise CommandError(f"{named} returned {worker!r}; it must return a clew.worker.Worker, or a list of them.")
    return workers
