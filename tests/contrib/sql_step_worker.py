"""A worker whose activity dies with its process after the commit of its step: ``python -m … STORE PAYMENTS``."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import sys
from datetime import timedelta

from clew import activity, workflow
from clew.client import Client
from clew.common import RetryPolicy
from clew.contrib.sql.sqlite3 import run_once
from clew.worker import Worker

QUEUE = "payments"


@activity.defn
def pay(path: str) -> int:
    connection = sqlite3.connect(path)
    connection.execute("INSERT INTO attempts DEFAULT VALUES")
    connection.commit()

    def insert() -> int:
        connection.execute("INSERT INTO payments (amount) VALUES (100)")
        number: int = connection.execute("SELECT max(rowid) FROM payments").fetchone()[0]
        return number

    with connection:
        number = run_once(connection, insert)
    attempts: int = connection.execute("SELECT count(*) FROM attempts").fetchone()[0]
    connection.close()
    if attempts <= 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


@workflow.defn
class PayOut:
    @workflow.run
    async def run(self, path: str) -> int:
        return await workflow.execute_activity(
            pay,
            path,
            start_to_close_timeout=timedelta(seconds=1),
            retry_policy=RetryPolicy(initial_interval=timedelta(milliseconds=10)),
        )


async def main(store: str, payments: str) -> None:
    async with (
        await Client.connect(f"sqlite:{store}") as client,
        Worker(client, task_queue=QUEUE, workflows=[PayOut], activities=[pay]),
    ):
        handle = client.get_workflow_handle_for(PayOut.run, "pay-1")
        if (await client.count_workflows()).count == 0:
            handle = await client.start_workflow(PayOut.run, payments, id="pay-1", task_queue=QUEUE)
        print(await asyncio.wait_for(handle.result(), 60), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
