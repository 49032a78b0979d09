"""Names of workflows in a world with two namespaces.

Owns: `OTHER`, the second namespace, names that say in which namespace a workflow id lies, and `Placed`, by which a
client's calls go there. Never: decides which world has one.

How it works: the checkers and the plans of the simulation know a run by the name of its workflow. In the namespace that
every world has that is its id; in the other one it has that namespace before it. So the same checks that tell apart two
ids tell apart one id in two namespaces.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from clew.ports.store import NamespaceRow

MAIN: Final = "default"
OTHER: Final = "other"
ROWS: Final = tuple(
    NamespaceRow(name=name, secret=f"the secret of {name}".encode(), retention_seconds=86_400 * 30)
    for name in (MAIN, OTHER)
)

PARTS: Final = ("start", "update")
"""Fields of a request that are requests themselves."""


def named(namespace: str, workflow_id: str) -> str:
    """The name of a workflow id in a namespace."""
    return workflow_id if namespace == MAIN else f"{namespace}/{workflow_id}"


def placed(request: Any) -> Any:
    """The request with the namespace and the id that its name stands for."""
    changed: dict[str, Any] = {
        part: placed(getattr(request, part))
        for part in PARTS
        if isinstance(getattr(request, part, None), msgspec.Struct)
    }
    namespace, separator, workflow_id = getattr(request, "workflow_id", "").partition("/")
    if separator:
        changed |= {"namespace": namespace, "workflow_id": workflow_id}
    return msgspec.structs.replace(request, **changed) if changed else request


class Placed:
    """A client's end of its wire: what it asks of a name goes to the namespace of that."""

    def __init__(self, wire: Any) -> None:
        self._wire = wire

    def __getattr__(self, method: str) -> Any:
        call = getattr(self._wire, method)
        return lambda request: call(placed(request))
