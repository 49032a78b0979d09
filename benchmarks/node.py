"""A node in a process of its own, for measuring over the link: ``python -m benchmarks.node FILE [--uvloop]``.

Owns: one engine on one SQLite file with its links on a free port of loopback, which it prints. Never: measures.
"""

from __future__ import annotations

import asyncio
import sys

from clew.adapters import SystemClock, SystemEntropy, to_ns
from clew.collector import settle_collector
from clew.engine import Engine
from clew.link import LinkServer
from clew.link.websocket import listen
from clew.storage.sqlite import open_store


async def serve(path: str) -> None:
    """Serve until the standard input ends."""
    loop = asyncio.get_running_loop()
    clock, entropy = SystemClock(loop), SystemEntropy()
    engine = Engine(await open_store(f"sqlite:{path}", clock=clock), clock=clock, entropy=entropy)
    await engine.start()
    server = LinkServer(
        engine, node="bench", new_token=lambda: entropy.token(16).hex(), now_ns=lambda: to_ns(clock.now())
    )
    listener = await listen(server, "127.0.0.1", 0)
    settle_collector()
    print(listener.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    listener.close()
    server.close()
    await engine.stop()


def main() -> None:
    """Run."""
    if "--uvloop" in sys.argv:
        import uvloop

        uvloop.run(serve(sys.argv[1]))
    else:
        asyncio.run(serve(sys.argv[1]))


if __name__ == "__main__":
    main()
