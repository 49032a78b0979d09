"""A worker for the time of one command.

Owns: finding the function that makes it, and running it. Never: what it runs.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

from clew.cli._errors import CommandError
from clew.client import Client


@asynccontextmanager
async def worker_for(client: Client, named: str | None) -> AsyncGenerator[None, None]:
    """Run the worker that `named` makes; none if it is None.

    Args:
        client: Given to the function.
        named: ``module:function``; the function gets the client and returns a ``Worker``.

    Raises:
        CommandError: There is no such function, or it does not return a worker.
    """
    if named is None:
        yield
        return
    made = load_named(named)(client)
    worker = await made if inspect.isawaitable(made) else made
    if not hasattr(worker, "__aenter__"):
        raise CommandError(f"--worker {named} returned {worker!r}; it must return a clew.worker.Worker.")
    async with worker:
        yield


def load_named(named: str) -> Callable[..., Any]:
    """Load ``module:function``, looking in the current directory too.

    Raises:
        CommandError: There is none.
    """
    module_name, _, function_name = named.partition(":")
    if not module_name or not function_name:
        raise CommandError(f"{named!r} does not name a function; write module:function, such as claims.worker:make.")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = getattr(importlib.import_module(module_name), function_name)
    except (ImportError, AttributeError) as error:
        raise CommandError(f"Cannot load {named!r}: {error}.") from error
    if not callable(found):
        raise CommandError(f"{named} is {type(found).__name__}, not a function that takes a client.")
    function: Callable[..., Any] = found
    return function
