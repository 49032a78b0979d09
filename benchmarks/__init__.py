"""Measurements of the embedded engine, next to the floor: ``python -m benchmarks.run``."""

from __future__ import annotations
