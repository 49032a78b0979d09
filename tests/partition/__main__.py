"""The long form: partitions between network namespaces, for minutes. Needs root, Linux and /dev/net/tun.

    python -m tests.partition --seconds 600 --seed 1

Each run is added to ``record.json`` beside this file, for the page of numbers, if ``--record`` is given.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.partition.namespaces import NamespaceNetwork, why_not
from tests.partition.runner import Settings, Told, run_under_trouble
from tests.partition.trouble import DATABASE, Hosts
from tests.postgres.server import PostgresServer
from tests.which_code import commit_now

RECORD = Path(__file__).with_name("record.json")
HOSTS = Hosts(
    nodes=("node-1", "node-2"), workers=("worker-1", "worker-2"), clients=("client-1", "client-2", "client-3")
)
DATABASE_PATH = "postgres?shards=16&lease=4&sslmode=disable"


class NamespacePostgres(PostgresServer):
    """A server that listens on all addresses, and trusts who comes over the network of the test."""

    def create(self) -> None:
        """Make the data directory."""
        super().create()
        with (self.data / "pg_hba.conf").open("a") as rules:
            rules.write("host all all 10.77.0.0/16 trust\n")


async def run(settings: Settings, folder: Path) -> Told:
    """One run between namespaces."""
    network = NamespaceNetwork(settings.hosts.all(), settings.seed)
    async with network:
        server = NamespacePostgres({"listen_addresses": "*", "max_connections": "100"})
        try:
            await asyncio.to_thread(server.create)
            await asyncio.to_thread(network.on_host, DATABASE, server.start)
            return await run_under_trouble(network, server.port, DATABASE_PATH, settings, folder)
        finally:
            server.remove()


def record(told: dict[str, Any]) -> None:
    """Keep what a run was like."""
    records = json.loads(RECORD.read_text()) if RECORD.exists() else []
    RECORD.write_text(json.dumps([*records, told], indent=2) + "\n")


def main() -> int:
    """Run, tell, record."""
    parser = argparse.ArgumentParser(prog="partition", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--longest", type=float, default=60.0, help="seconds of the longest trouble")
    parser.add_argument("--record", action="store_true", help="add the run to record.json")
    parser.add_argument("--folder", type=Path, help="for logs and calls, which are kept there")
    options = parser.parse_args()
    if reason := why_not():
        sys.stderr.write(f"Partitions between namespaces cannot be made here: {reason}.\n")
        return 2
    settings = Settings(options.seed, options.seconds, options.longest, HOSTS)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        told = asyncio.run(run(settings, folder))
    facts = {
        "commit": commit_now(),
        "network": "namespaces",
        "seed": options.seed,
        "minutes": round((time.monotonic() - began) / 60, 1),
        **told._asdict(),
    }
    sys.stdout.write(f"{json.dumps(facts, indent=2)}\n")
    if options.record:
        record(facts)
    return 0


if __name__ == "__main__":
    sys.exit(main())
