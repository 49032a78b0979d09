"""What calls of the engine may answer: the refusal that users meet is offered on from here."""

from __future__ import annotations

from clew.service.errors import RPCError, RPCStatusCode
from clew.service.tls import TLSConfig

__all__ = ["RPCError", "RPCStatusCode", "TLSConfig"]
