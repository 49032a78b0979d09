"""The shell of the history machine: one node over one store (see `engine.engine`)."""

from __future__ import annotations

from clew.engine.engine import Engine

__all__ = ["Engine"]
