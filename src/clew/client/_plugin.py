"""Plugins of a client: what a bundle of settings may change before the client is made.

Owns: `Plugin` and the configurations it sees, with the names of the published API. Never: a plugin (``clew.plugin`` has
a simple one).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypedDict

from clew.client._interceptor import Interceptor
from clew.common import MetricMeter, QueryRejectCondition
from clew.converter import DataConverter
from clew.service.connection import Connection
from clew.service.tls import TLSConfig


class ClientConfig(TypedDict):
    """What a client is made with; `Client.connect` explains each. ``Client(**config)`` makes one."""

    connection: Connection
    namespace: str
    data_converter: DataConverter
    interceptors: Sequence[Interceptor]
    identity: str | None
    default_workflow_query_reject_condition: QueryRejectCondition | None
    plugins: Sequence[Plugin]
    metric_meter: MetricMeter | None


@dataclass
class ConnectConfig:
    """What a connection is made with; `Client.connect` explains each."""

    target: str
    api_key: str | None = field(default=None, repr=False)
    tls: bool | TLSConfig | None = None
    identity: str | None = None

    async def token(self) -> str:
        """The credentials for a server, asked for at each connection; empty for none."""
        return self.api_key or ""

    def tls_config(self) -> TLSConfig | None:
        """How to speak TLS with a server; None for plain TCP."""
        if isinstance(self.tls, TLSConfig):
            return self.tls
        wants_tls = self.tls if self.tls is not None else bool(self.api_key)
        return TLSConfig() if wants_tls else None


class Plugin:
    """Base of what is passed as ``plugins`` to `Client.connect`; override what you need.

    Plugins that are also plugins of a worker are used by workers made with the client. The first of a list configures
    first and is outermost around the connection.
    """

    def name(self) -> str:
        """Give the name by which people know it."""
        return f"{type(self).__module__}.{type(self).__qualname__}"

    def configure_client(self, config: ClientConfig) -> ClientConfig:
        """Change what the client is made with."""
        return config

    async def connect_service_client(
        self, config: ConnectConfig, next: Callable[[ConnectConfig], Awaitable[Connection]]
    ) -> Connection:
        """Connect.

        Args:
            config: Where to.
            next: The rest of the chain; call it to go on.
        """
        return await next(config)
