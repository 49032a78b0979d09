"""The namespaces this node knows, with their secrets and limits.

Owns: the cache of namespace rows and the "unknown namespace" refusal. Never: limits' meaning.
"""

from __future__ import annotations

import difflib
from typing import Final

import msgspec

from clew.core.express import Bounds
from clew.model.limits import LIMITS_DEFAULT, RETENTION_DEFAULT, Limits
from clew.model.rejection import Rejection, RejectionCode
from clew.ports.entropy import Entropy
from clew.ports.store import NamespaceRow, Store
from clew.service.errors import RPCError

DEFAULT_NAMESPACE: Final = "default"
SECRET_BYTES: Final = 32


class Namespace:
    """One namespace as the hot path needs it."""

    __slots__ = ("bounds", "limits", "name", "retention_seconds", "secret", "settings")

    def __init__(self, row: NamespaceRow, limits_default: Limits = LIMITS_DEFAULT) -> None:
        self.name = row.name
        self.secret = row.secret
        self.retention_seconds = row.retention_seconds
        self.settings = msgspec.json.decode(row.settings, type=dict[str, int])
        self.limits: Limits = (
            msgspec.convert({**msgspec.structs.asdict(limits_default), **self.settings}, Limits)
            if self.settings
            else limits_default
        )
        self.bounds = Bounds.of(self.limits)


class Namespaces:
    """See the module docstring."""

    def __init__(self, store: Store, entropy: Entropy, *, limits_default: Limits = LIMITS_DEFAULT) -> None:
        self._store = store
        self._limits_default = limits_default
        self._entropy = entropy
        self._known: dict[str, Namespace] = {}

    async def load(self) -> None:
        """Read all namespaces; make the default one in a new store."""
        rows = await self._store.list_namespaces()
        if not rows:
            await self._store.put_namespace(
                NamespaceRow(
                    name=DEFAULT_NAMESPACE,
                    secret=self._entropy.token(SECRET_BYTES),
                    retention_seconds=int(RETENTION_DEFAULT.total_seconds()),
                )
            )
            rows = await self._store.list_namespaces()
        self._known = {row.name: Namespace(row, self._limits_default) for row in rows}

    def known(self, name: str) -> Namespace | None:
        """The namespace, if this node has met it."""
        return self._known.get(name)

    def get(self, name: str) -> Namespace:
        """The namespace.

        Raises:
            RPCError: There is none of this name (``namespace_not_found``).
        """
        found = self._known.get(name)
        if found is None:
            close = difflib.get_close_matches(name, self._known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(sorted(self._known))}"
            raise RPCError(
                Rejection(
                    code=RejectionCode.NAMESPACE_NOT_FOUND,
                    message=f"namespace {name!r} does not exist in this store; {hint}",
                    details={"namespace": name},
                )
            )
        return found

    async def find(self, name: str) -> Namespace:
        """The namespace, also when another node has made it since this one last looked.

        Raises:
            RPCError: There is none of this name (``namespace_not_found``).
        """
        if name not in self._known:
            await self.load()
        return self.get(name)

    def secret_of(self, name: str) -> bytes:
        """The secret that keys this namespace's idempotency keys."""
        return self.get(name).secret

    def all(self) -> list[Namespace]:
        """Every namespace."""
        return list(self._known.values())
