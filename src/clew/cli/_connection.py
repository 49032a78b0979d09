"""How a command reaches a store: beside its owner for reading, as its owner for the rest.

Owns: the options that every command has, and the opening and closing of a client around a command.
Never: prints.
"""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import click

from clew.cli._errors import CommandError, ReaderGone
from clew.client import Client
from clew.client._target import MEMORY, PostgresTarget, ServerTarget, SqliteTarget, parse_target
from clew.model.rejection import RejectionCode
from clew.service.errors import CODE_TABLE, RPCError

F = TypeVar("F", bound=Callable[..., Any])

_NOT_FOUND: Final = CODE_TABLE[RejectionCode.WORKFLOW_NOT_FOUND].exit_code


@dataclass(frozen=True)
class Place:
    """Where a command works.

    Args:
        store: Connection string.
        namespace: Of that store.
        output: ``table``, ``json`` or ``jsonl``.
    """

    store: str
    namespace: str
    output: str

    @property
    def is_json(self) -> bool:
        """Whether a program reads the output."""
        return self.output != "table"


def command(group: click.Group, name: str) -> Callable[[Callable[..., Awaitable[int | None]]], click.Command]:
    """Make an async function a command of `group`; it gets the common options as its first argument, a `Place`."""

    def decorate(function: Callable[..., Awaitable[int | None]]) -> click.Command:
        @functools.wraps(function)
        def run(store: str | None, namespace: str, output: str, **options: Any) -> int | None:
            if not store:
                raise CommandError(
                    "No store given. Pass --store sqlite:FILE, or set the environment variable CLEW_ADDRESS."
                )
            try:
                return asyncio.run(_awaited(function(Place(store, namespace, output), **options)))
            except BrokenPipeError as error:
                raise ReaderGone from error

        decorated = _OUTPUT(_NAMESPACE(_STORE(run)))
        return group.command(name)(decorated)

    return decorate


_STORE = click.option(
    "--store", "-s", envvar=["CLEW_ADDRESS"], metavar="ADDRESS", help="Connection string, such as sqlite:claims.db."
)
_NAMESPACE = click.option("--namespace", "-n", envvar="CLEW_NAMESPACE", default="default", show_default=True)
_OUTPUT = click.option(
    "--output",
    "-o",
    type=click.Choice(["table", "json", "jsonl"]),
    envvar="CLEW_OUTPUT",
    default="table",
    show_default=True,
    help="For people, as one JSON document, or as one JSON document a line.",
)


@asynccontextmanager
async def reading(place: Place) -> AsyncGenerator[Client, None]:
    """A client that only reads, whoever owns the store.

    Raises:
        CommandError: There is no such file.
    """
    target = parse_target(place.store)
    if isinstance(target, ServerTarget):
        async with await _connect(place) as client:
            yield client
        return
    from clew.reading import connect_reader

    connection = await connect_reader(
        target.address if isinstance(target, PostgresTarget) else f"sqlite:{_existing_file(place)}"
    )
    client = Client(connection, namespace=place.namespace, identity=_identity())
    try:
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def owning(place: Place, *, may_create: bool = False) -> AsyncGenerator[Client, None]:
    """A client with the engine in this process.

    Args:
        place: Where.
        may_create: Make the store when there is none.

    Raises:
        CommandError: There is no such file.
        RPCError: Another process owns the store; the message says which and what to do.
    """
    if not may_create and isinstance(parse_target(place.store), SqliteTarget):
        _existing_file(place)
    async with await _connect(place) as client:
        yield client


async def _connect(place: Place) -> Client:
    try:
        return await Client.connect(place.store, namespace=place.namespace, identity=_identity())
    except RPCError as error:
        if error.rejection.details.get("reason") != "StoreInUse":
            raise
        raise CommandError(
            f"{error.message} This command changes or asks a run, which only the owner of the store can do: use a "
            "client in that process, or stop it first. `clew workflow list`, `show`, `describe` and `result` work "
            "beside it.",
            code=error.code.value,
            exit_code=CODE_TABLE[error.code].exit_code,
        ) from error


async def _awaited(awaitable: Awaitable[int | None]) -> int | None:
    return await awaitable


def _existing_file(place: Place) -> str:
    target = parse_target(place.store)
    assert isinstance(target, SqliteTarget), "only files are looked for"
    path = target.path
    if path == MEMORY:
        raise CommandError("A store in memory belongs to one process and is empty here. Give a file.")
    if not os.path.exists(path):
        raise CommandError(
            f"There is no store at {path!r}. Give the file that your workers use, or make one with "
            "`clew workflow start`.",
            code="store_not_found",
            exit_code=_NOT_FOUND,
        )
    return path


def _identity() -> str:
    return f"clew-cli:{os.getpid()}"
