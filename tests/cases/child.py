"""Runs ``MODULE:FUNCTION`` (async, with the remaining arguments) in this process; see `harness.Process`."""

from __future__ import annotations

import asyncio
import importlib
import sys

if __name__ == "__main__":
    module, _, function = sys.argv[1].partition(":")
    asyncio.run(getattr(importlib.import_module(module), function)(*sys.argv[2:]))
