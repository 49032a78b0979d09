"""Starting and signalling workflows inside the caller's own transaction.

Owns: `start_workflow`, `signal_workflow`, and how a statement is run on each kind of connection.
Never: begins, commits or rolls back your transaction.

How it works: a client is made whose calls, instead of going to an engine, become a row of the store's inbox in your
transaction. So arguments are checked and converted as they always are, and the row is there if and only if you commit.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar, cast

import msgspec

from clew.client import Client
from clew.converter import DataConverter
from clew.exceptions import ClewError
from clew.model.limits import LIMITS_DEFAULT
from clew.service import requests as r
from clew.service.contract import Service

T = TypeVar("T")

_SCHEMA: Final = re.compile(r"[a-z_][a-z0-9_]{0,62}")


class UnknownConnectionError(ClewError):
    """The connection is of no library that is known here."""


async def start_workflow(
    connection: Any,
    workflow: str | Callable[..., Awaitable[Any]],
    *args: Any,
    id: str,
    task_queue: str,
    namespace: str = "default",
    data_converter: DataConverter = DataConverter.default,
    schema: str = "clew",
    **options: Any,
) -> None:
    """Start a workflow if and only if the transaction of `connection` commits.

    The run is started by an engine soon after the commit. Since nobody waits for the engine's answer, choose the id so
    that it is not taken by a run of something else: a start that is refused for good (the id is taken) stays in the
    table ``inbox`` with the reason, and is logged by the engine.

    Args:
        connection: Of asyncpg, SQLAlchemy (``AsyncConnection``, ``AsyncSession``) or psycopg (``AsyncConnection``), to
            the database that the engines use.
        workflow: Run method of the workflow class, or the name of a type.
        *args: Its arguments.
        id: Workflow id.
        task_queue: Where the workers listen that know this workflow.
        namespace: Of the run.
        data_converter: How arguments become payloads; the one of your clients.
        schema: With Clew's tables, as in the connection string of the engines.
        **options: As of `Client.start_workflow`; give a `request_id` to make a repeat of this start harmless.

    Raises:
        UnknownConnectionError: The connection is of another kind.
        EncodeError: An argument cannot be converted.
    """
    client = _client(connection, namespace, data_converter, schema)
    await client.start_workflow(cast(Any, workflow), args=args, id=id, task_queue=task_queue, **options)


async def signal_workflow(
    connection: Any,
    workflow_id: str,
    signal: str | Callable[..., Any],
    *args: Any,
    run_id: str | None = None,
    namespace: str = "default",
    data_converter: DataConverter = DataConverter.default,
    schema: str = "clew",
) -> None:
    """Signal a run if and only if the transaction of `connection` commits.

    Args:
        connection: As for `start_workflow`.
        workflow_id: Whom to signal: the run of this id that is open when the signal is delivered.
        signal: Signal method of the workflow class, or a name.
        *args: Its arguments.
        run_id: That very run only.
        namespace: Of the run.
        data_converter: How arguments become payloads; the one of your clients.
        schema: With Clew's tables.

    Raises:
        UnknownConnectionError: The connection is of another kind.
        EncodeError: An argument cannot be converted.
    """
    client = _client(connection, namespace, data_converter, schema)
    handle = client.get_workflow_handle(workflow_id, run_id=run_id)
    await handle.signal(cast(Any, signal), args=args)


def _client(connection: Any, namespace: str, data_converter: DataConverter, schema: str) -> Client:
    if not _SCHEMA.fullmatch(schema):
        raise ValueError(f"{schema!r} is no name of a schema; expected lower-case letters, digits and underscores")
    return Client(
        cast(Any, _InboxConnection(_executor(connection), schema)), namespace=namespace, data_converter=data_converter
    )


class _InboxService:
    """The two calls that can be asked for without an answer."""

    def __init__(self, execute: Callable[[str, str, str], Awaitable[None]], schema: str) -> None:
        self._execute = execute
        self._schema = schema

    async def start_workflow(self, request: r.StartWorkflowRequest) -> r.StartWorkflowResponse:
        """Put the start into the inbox; there is no run yet."""
        await self._execute(self._schema, "start", msgspec.json.encode(request).decode())
        return r.StartWorkflowResponse(run_id="", first_execution_run_id="")

    async def signal_workflow(self, request: r.SignalWorkflowRequest) -> None:
        """Put the signal into the inbox."""
        await self._execute(self._schema, "signal", msgspec.json.encode(request).decode())

    def __getattr__(self, name: str) -> Any:
        raise ClewError(f"{name} cannot be part of your transaction; start_workflow and signal_workflow can")


class _InboxConnection:
    """A connection (see ``service.connection``) that leads into the inbox."""

    def __init__(self, execute: Callable[[str, str, str], Awaitable[None]], schema: str) -> None:
        self.service: Service = cast(Service, _InboxService(execute, schema))
        self.service_loop = asyncio.get_running_loop()
        self.limits = LIMITS_DEFAULT
        self.address = "the inbox, in your transaction"
        self.is_closed = False

    def call(self, method: Callable[[Any], Awaitable[T]], request: Any) -> Awaitable[T]:
        """Run the statement in the task of the caller, whose transaction it is."""
        return method(request)


def _executor(connection: Any) -> Callable[[str, str, str], Awaitable[None]]:
    """How to run the one statement on this kind of connection."""
    libraries = {base.__module__.partition(".")[0] for base in type(connection).__mro__}
    if "sqlalchemy" in libraries or hasattr(connection, "run_sync"):
        return lambda schema, kind, request: _by_sqlalchemy(connection, schema, kind, request)
    if "psycopg" in libraries and inspect.iscoroutinefunction(connection.execute):
        return lambda schema, kind, request: connection.execute(f"SELECT {schema}.enqueue(%s, %s)", (kind, request))
    if hasattr(connection, "fetchval"):
        return lambda schema, kind, request: connection.fetchval(f"SELECT {schema}.enqueue($1, $2)", kind, request)
    raise UnknownConnectionError(
        f"A {type(connection).__module__}.{type(connection).__name__} was given. Expected: a connection of asyncpg, an "
        "AsyncConnection or AsyncSession of SQLAlchemy, or psycopg's AsyncConnection. From anything else call the SQL "
        "functions clew.start_workflow and clew.signal_workflow"
    )


async def _by_sqlalchemy(connection: Any, schema: str, kind: str, request: str) -> None:
    import sqlalchemy

    await connection.execute(
        sqlalchemy.text(f"SELECT {schema}.enqueue(:kind, :request)"), {"kind": kind, "request": request}
    )
