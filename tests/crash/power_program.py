"""Engine, worker and client on one file, whose operations on it are written down with what the client was told.

Usage: python -m tests.crash.power_program DATABASE JOURNAL RUNS. The steps are pickled into the file JOURNAL.
"""

from __future__ import annotations

import asyncio
import pickle
import sys
from pathlib import Path
from typing import Any

from clew.client import Client
from clew.storage.sqlite import log_room
from clew.worker import Worker
from tests.crash.caller import SameIds
from tests.crash.killed_program import QUEUE, Sum, double, see_through
from tests.crash.watched_files import Journal, Step, watch


def watch_the_log(journal: Journal) -> None:
    """The log's room is laid out by hand, without SQLite, so that is watched by hand too."""
    extend: Any = log_room.lay_out_from

    def lay_out(path: str, size: int, wanted: int) -> None:
        journal.steps.append(Step("write", path, size, bytes(wanted - size)))
        extend(path, size, wanted)
        journal.steps.append(Step("sync", path))

    log_room.lay_out_from = lay_out


async def main(database: str, runs: int, journal: Journal) -> None:
    """See so many runs through."""
    async with (
        await Client.connect(f"sqlite:{database}", interceptors=[SameIds()]) as client,
        Worker(client, task_queue=QUEUE, workflows=[Sum], activities=[double]),
    ):
        journal.note("ready")
        await asyncio.gather(*(see_through(client, number, set(), journal.note) for number in range(runs)))


if __name__ == "__main__":
    kept = Journal()
    watch(kept.steps.append)
    watch_the_log(kept)
    asyncio.run(main(sys.argv[1], int(sys.argv[3]), kept))
    Path(sys.argv[2]).write_bytes(pickle.dumps(kept.steps))
