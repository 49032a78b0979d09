"""Connection strings: which engine a client means.

Owns: reading the string and saying what is wrong with it. Never: connects.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple
from urllib.parse import unquote

_FORMS: Final = (
    "Use 'sqlite:claims.db' (a file beside the program), 'sqlite:///srv/claims.db' (an absolute path), "
    "'sqlite::memory:' (gone when the client closes), 'postgresql://user:password@host/database' (an engine in each "
    "process) or 'host:7233' (a server; several nodes with commas between)."
)
_HOST_PORT: Final = re.compile(r"^(?:\[([0-9A-Fa-f:.%]+)\]|([A-Za-z0-9._-]+)):(\d{1,5})$")
_PORT_MAX: Final = 65_535
_SCHEME: Final = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*)://")


MEMORY: Final = ":memory:"
"""The path of a store that is on no disk."""


class SqliteTarget(NamedTuple):
    """A SQLite file, or `MEMORY`."""

    path: str


class ServerTarget(NamedTuple):
    """A server: host and port of each of its nodes."""

    nodes: tuple[tuple[str, int], ...]


class PostgresTarget(NamedTuple):
    """A PostgreSQL database, as its adapter reads it."""

    address: str


def parse_target(target: str) -> SqliteTarget | PostgresTarget | ServerTarget:
    """Read a connection string.

    Raises:
        ValueError: It is not one, or names an engine that this build cannot reach.
    """
    if not target.strip():
        raise ValueError(f"A connection string is needed, but got {target!r}. {_FORMS}")
    if target.startswith("sqlite:"):
        return SqliteTarget(_sqlite_path(target))
    scheme = _SCHEME.match(target)
    if scheme and scheme[1] in ("postgresql", "postgres"):
        return PostgresTarget(target)
    if scheme:
        raise ValueError(f"Nothing here speaks {scheme[1]!r}, so {_redacted(target)!r} cannot be opened. {_FORMS}")
    nodes = [_HOST_PORT.match(part.strip()) for part in target.split(",")]
    if any(nodes):
        return ServerTarget(tuple(_node(target, node) for node in nodes))
    raise ValueError(
        f"{target!r} does not say what kind of store it is. {_FORMS} If it is a SQLite file, write 'sqlite:{target}'."
    )


def _node(target: str, node: re.Match[str] | None) -> tuple[str, int]:
    if node is None:
        raise ValueError(f"{target!r} is a list of nodes in which one is not 'host:port'. {_FORMS}")
    port = int(node[3])
    if not 0 < port <= _PORT_MAX:
        raise ValueError(f"{target!r} names port {port}; ports are 1 to {_PORT_MAX}. {_FORMS}")
    return node[1] or node[2], port


def _sqlite_path(target: str) -> str:
    rest = target.removeprefix("sqlite:")
    if rest.startswith("//"):
        if not rest.startswith("///"):
            raise ValueError(
                f"{target!r} names a host, which a SQLite file has not. Three slashes begin an absolute path. {_FORMS}"
            )
        rest = unquote(rest[2:])
    if not rest:
        raise ValueError(f"{target!r} names no file. {_FORMS}")
    if "?" in rest or "\0" in rest:
        raise ValueError(f"{target!r} has options or a zero byte; a SQLite connection string is only a path. {_FORMS}")
    return rest


def _redacted(target: str) -> str:
    """Without a password, since messages end up in logs."""
    return re.sub(r"(://[^/@:]*):[^/@]*@", r"\1:…@", target)
