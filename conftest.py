"""Loads Clew's own plugin for pytest where Clew is not installed, but run from its sources."""

from __future__ import annotations

pytest_plugins = ["clew.pytest_plugin"]
