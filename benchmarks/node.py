"""A node in a process of its own, for measuring over the link: ``python -m benchmarks.node STORE [PORT]``.

Owns: one node as ``clew server start`` runs it, on that port or a free one of loopback, which it prints.
Never: measures.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading

from clew.server.logs import set_up_logging
from clew.server.node import run_node
from clew.server.settings import load_settings


def main() -> None:
    """Serve until the standard input ends."""
    port = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    settings = load_settings(flags={"store": sys.argv[1], "port": port, "log_level": "warning"})
    set_up_logging(settings)
    asyncio.run(run_node(settings, on_started))


def on_started(url: str) -> None:
    """Tell the port, and stop when the one who reads it is gone."""
    print(url.rpartition(":")[2], flush=True)
    threading.Thread(target=stop_with_input, daemon=True).start()


def stop_with_input() -> None:
    """Wait for the end of the standard input."""
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
