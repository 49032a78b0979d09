"""Run one workflow on the installed package and check where the package came from."""

from __future__ import annotations

import asyncio
import sysconfig
import tempfile
from datetime import timedelta
from pathlib import Path

import clew
from clew import activity, workflow
from clew.client import Client
from clew.worker import Worker


@activity.defn
async def greet(name: str) -> str:
    return f"Hello, {name}!"


@workflow.defn
class Greeting:
    @workflow.run
    async def run(self, name: str) -> str:
        return await workflow.execute_activity(greet, name, start_to_close_timeout=timedelta(seconds=10))


async def main(directory: str) -> None:
    async with (
        await Client.connect(f"sqlite:{directory}/smoke.db") as client,
        Worker(client, task_queue="smoke", workflows=[Greeting], activities=[greet]),
    ):
        result = await client.execute_workflow(Greeting.run, "wheel", id="smoke-1", task_queue="smoke")
    assert result == "Hello, wheel!", result


site_packages = Path(sysconfig.get_paths()["purelib"])
assert Path(clew.__file__).is_relative_to(site_packages), f"{clew.__file__} is not the installed package"
with tempfile.TemporaryDirectory() as scratch:
    asyncio.run(asyncio.wait_for(main(scratch), timeout=30))
print("the wheel works without extras")
