"""The driver, and what it need not ask the server.

Owns: the import of asyncpg, and a connection of its that knows the array types of the store's statements. Never: when a
connection is made, or what for (``connections``).

How it works: the first time that a connection meets a type that the driver has no codec for, the driver asks the
server what the type is, with a query over the catalogue that takes 7 to 12 ms. Nearly every array counts as such a
type, and nearly every statement of the store has arrays, so each new connection paid that at its first one: a node that
starts, or one that goes on after its connections were lost. But the numbers of the server's own types are fixed, so
those that the store uses are told here. A driver that asks in another way asks the server, as before; a test notices.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any, Final, NamedTuple

from clew.ports.store import StoreError

_ELEMENTS: Final = {
    # type of the array → (type of its elements, name), from the server's pg_type.dat
    1000: (16, "_bool"),
    1001: (17, "_bytea"),
    1005: (21, "_int2"),
    1007: (23, "_int4"),
    1016: (20, "_int8"),
}


class _Told(NamedTuple):
    """Stands for the statement that asked: it has a name, so no other statement was replaced by it."""

    name: str = "none was needed"


def _row(oid: int) -> dict[str, object]:
    """What the server would say of an array type."""
    element, name = _ELEMENTS[oid]
    row: dict[str, object] = {"oid": oid, "ns": "pg_catalog", "name": name, "kind": b"b"}
    row.update(basetype=None, elemtype=element, elemdelim=",", range_subtype=None, attrtypoids=None, attrnames=None)
    return row


def import_driver() -> Any:
    """The module of the driver.

    Raises:
        StoreError: It is not installed.
    """
    try:
        import asyncpg
    except ImportError as error:
        raise StoreError(
            "a postgresql:// address needs the driver asyncpg, which is not installed. Install it with "
            "pip install 'clew[postgres]'"
        ) from error
    return asyncpg


@cache
def connection_class() -> Any:
    """The class of connections."""
    base: Any = import_driver().Connection
    ask: Any = getattr(base, "_introspect_types", None)

    class KnowingConnection(base):  # type: ignore[misc]
        """A connection that knows the array types of the store's statements."""

        async def _introspect_types(self, typeoids: Iterable[int], *args: Any, **kwargs: Any) -> Any:
            wanted = list(typeoids)
            if all(oid in _ELEMENTS for oid in wanted):
                return [_row(oid) for oid in wanted], _Told()
            return await ask(self, wanted, *args, **kwargs)

    return KnowingConnection
