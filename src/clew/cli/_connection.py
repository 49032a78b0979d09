"""How a command reaches an engine: of a server; or of a store, beside its owner for reading, as its owner for the rest.

Owns: the options that every command has, and the opening and closing of a client around a command.
Never: prints.
"""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import click

from clew.cli._errors import CommandError, ReaderGone
from clew.cli._profiles import load_profile, profiles_path
from clew.client import Client
from clew.client._target import MEMORY, PostgresTarget, ServerTarget, SqliteTarget, parse_target
from clew.model.rejection import RejectionCode
from clew.service.errors import CODE_TABLE, RPCError
from clew.service.tls import TLSConfig

F = TypeVar("F", bound=Callable[..., Any])

_NOT_FOUND: Final = CODE_TABLE[RejectionCode.WORKFLOW_NOT_FOUND].exit_code


@dataclass(frozen=True)
class Place:
    """Where a command works.

    Args:
        store: Connection string, of a store or of a server.
        namespace: In which it works.
        output: ``table``, ``json`` or ``jsonl``.
        api_key: Credentials for a server.
        tls: How to speak TLS with a server.
        profile: The one that was named.
    """

    store: str
    namespace: str
    output: str
    api_key: str | None = None
    tls: bool | TLSConfig | None = None
    profile: str | None = None

    @property
    def is_sqlite(self) -> bool:
        """Whether it is a file of this machine."""
        return self.store.startswith("sqlite:")

    def arguments(self) -> list[str]:
        """The flags by which another process works at the same place; secrets are left out."""
        profile = [] if self.profile is None else ["--profile", self.profile]
        tls = ["--tls"] if self.tls is True else []
        return ["--address", self.store, "--namespace", self.namespace, *profile, *tls]

    def secrets(self) -> dict[str, str]:
        """What such a process needs besides, for its environment: on a command line everybody could read it."""
        return {} if self.api_key is None else {"CLEW_API_KEY": self.api_key}

    @property
    def is_json(self) -> bool:
        """Whether a program reads the output."""
        return self.output != "table"


def command(
    group: click.Group, name: str, *, needs_address: bool = True
) -> Callable[[Callable[..., Awaitable[int | None]]], click.Command]:
    """Make an async function a command of `group`; it gets the common options as its first argument, a `Place`.

    Args:
        group: Where it belongs.
        name: How it is called.
        needs_address: Whether it works at one place. One that takes its places as arguments has only those of the
            common options that say how to print.
    """
    common = _PLACE_OPTIONS if needs_address else _PRINT_OPTIONS

    def decorate(function: Callable[..., Awaitable[int | None]]) -> click.Command:
        @functools.wraps(function)
        def run(**options: Any) -> int | None:
            place = place_of(options, needs_address=needs_address)
            try:
                return asyncio.run(_awaited(function(place, **options)))
            except BrokenPipeError as error:
                raise ReaderGone from error

        return group.command(name)(_with_options(run, common))

    return decorate


_OUTPUTS: Final = ("table", "json", "jsonl")
_PROFILE: Final = click.option(
    "--profile", envvar="CLEW_PROFILE", help="Takes what is not given here from a file; see the top."
)
_OUTPUT: Final = click.option(
    "--output",
    "-o",
    type=click.Choice(_OUTPUTS),
    envvar="CLEW_OUTPUT",
    help="For people (table, if not set), as one JSON document, or as one a line.",
)
_PRINT_OPTIONS: Final = (_PROFILE, _OUTPUT)
_PLACE_OPTIONS: Final = (
    click.option(
        "--store",
        "--address",
        "-s",
        "store",
        envvar="CLEW_ADDRESS",
        metavar="ADDRESS",
        help="Connection string of a store, such as sqlite:claims.db, or HOST:PORT of a server.",
    ),
    click.option("--namespace", "-n", envvar="CLEW_NAMESPACE", help="`default` if none is set."),
    _PROFILE,
    click.option("--api-key", envvar="CLEW_API_KEY", metavar="KEY", help="For a server; rather set CLEW_API_KEY."),
    click.option("--tls/--no-tls", default=None, help="Speak TLS with a server; done when there is a key."),
    _OUTPUT,
)


def place_options(function: F) -> F:
    """Add the options that say where a command works; `place_of` reads them."""
    return _with_options(function, _PLACE_OPTIONS)


def _with_options(function: F, options: Sequence[Callable[[F], F]]) -> F:
    for option in reversed(options):
        function = option(function)
    return function


def place_of(options: dict[str, Any], *, needs_address: bool = True) -> Place:
    """Take the common options out, and give the place they mean, with the profile filled in.

    Args:
        options: What click gave; a command need not have all of them.
        needs_address: Whether the command cannot do without.

    Raises:
        CommandError: There is no address, or no such profile.
    """
    named = options.pop("profile")
    profile = load_profile(named)
    store = options.pop("store", None) or profile.address
    namespace = options.pop("namespace", None) or profile.namespace or "default"
    output = options.pop("output") or profile.output or "table"
    api_key = options.pop("api_key", None) or profile.credentials()
    tls = options.pop("tls", None)
    if output not in _OUTPUTS:
        raise CommandError(f"The profile sets output to {output!r}; it may be {', '.join(_OUTPUTS)}.")
    if not store and needs_address:
        raise CommandError(
            "No store given. Pass --store sqlite:FILE, or --address HOST:PORT for a server, or set the environment "
            f"variable CLEW_ADDRESS, or make a profile in {profiles_path()}."
        )
    return Place(store, namespace, output, api_key, tls if tls is not None else profile.tls_config(), named)


@asynccontextmanager
async def reading(place: Place) -> AsyncGenerator[Client, None]:
    """A client that only reads, whoever owns the store.

    Raises:
        CommandError: There is no such file.
    """
    target = parse_target(place.store)
    if isinstance(target, ServerTarget):
        async with await connect(place) as client:
            yield client
        return
    from clew.reading import connect_reader

    connection = await connect_reader(
        target.address if isinstance(target, PostgresTarget) else f"sqlite:{_existing_file(place)}"
    )
    client = Client(connection, namespace=place.namespace, identity=caller_identity())
    try:
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def owning(place: Place, *, may_create: bool = False) -> AsyncGenerator[Client, None]:
    """A client with the engine in this process, or one of a server.

    Args:
        place: Where.
        may_create: Make the store when there is none.

    Raises:
        CommandError: There is no such file.
        RPCError: Another process owns the store; the message says which and what to do.
    """
    if not may_create and place.is_sqlite:
        _existing_file(place)
    async with await connect(place) as client:
        yield client


async def connect(place: Place) -> Client:
    """A client of the engine at that place; close it."""
    try:
        return await Client.connect(
            place.store, namespace=place.namespace, identity=caller_identity(), api_key=place.api_key, tls=place.tls
        )
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


def caller_identity() -> str:
    """Who a command says that it is, in histories and logs."""
    return f"clew-cli:{os.getpid()}"
