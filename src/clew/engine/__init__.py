"""The shell of the history machine: one node over one store (see `engine.engine`)."""

from __future__ import annotations

from clew.engine.engine import Engine
from clew.engine.fleet import FleetSettings

__all__ = ["Engine", "FleetSettings"]
