"""One client under partitions, which writes down every call: when it began, when it ended, and what it was told.

Usage: python -m tests.partition.client_program ADDRESS NAME SEED BEGAN PATH. It makes calls until SIGTERM, waits for
those under way, and ends. PATH gets one JSON object a line: the operation, ``from``, ``to`` (by the machine's monotonic
clock), and ``told``: ``ok`` with a value, ``fail`` (it did not happen) or ``info`` (it may have happened, or may yet).

How it works: registers change with time, by the clock that all clients share, so that all work on the same two at a
time and none gets more calls than a search for their order can bear. A client that does not know of a few calls on a
register leaves it alone until the next.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from clew.client import Client, WorkflowUpdateFailedError, WorkflowUpdateRPCTimeoutOrCancelledError
from clew.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from clew.exceptions import WorkflowAlreadyStartedError
from clew.model.rejection import RejectionCode
from clew.service.errors import RPCError
from tests.partition.programs import QUEUE, Job, Register, connect

EPOCH_SECONDS = 6.0
"""How long two registers are in use."""

CALLS_MAX = 9
"""Of one client on one register."""

UNKNOWN_MAX = 3
"""Calls of one client on one register that got no answer: each doubles the search."""

PATIENCE_SECONDS = 15.0
PAUSE_SECONDS = 0.25
OPEN_CODES = frozenset({RejectionCode.UNAVAILABLE, RejectionCode.DEADLINE_EXCEEDED})
"""Told when nobody knows what became of a call."""


class Recorder:
    """Writes down calls, each when it is over."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    async def call(self, operation: dict[str, Any], call: Callable[[], Awaitable[Any]]) -> str:
        """Make one call; answers what was told."""
        began = time.monotonic()
        value: Any = None
        try:
            value = await call()
            told = "ok"
        except RPCError as error:
            told, value = "info" if error.code in OPEN_CODES else "fail", error.code.value
        except WorkflowUpdateFailedError as error:
            told, value = "fail", str(error.cause)
        except (TimeoutError, WorkflowUpdateRPCTimeoutOrCancelledError):
            told, value = "info", "gave up"
        line = {**operation, "from": began, "to": time.monotonic(), "told": told, "value": value}
        os.write(self._file, json.dumps(line).encode() + b"\n")
        return told


class Caller:
    """The calls of one client."""

    def __init__(
        self,
        client: Client,
        name: str,
        chance: random.Random,
        began: float,
        recorder: Recorder,
        stopped: asyncio.Event,
    ) -> None:
        self.client = client
        self.name = name
        self.chance = chance
        self.began = began
        self.recorder = recorder
        self.stopped = stopped
        self.number = 0
        self.calls: Counter[str] = Counter()
        self.unknown: Counter[str] = Counter()

    def next_number(self) -> int:
        """One that no other call of this client has."""
        self.number += 1
        return self.number

    async def work_on_registers(self) -> None:
        """One call after the other."""
        while not self.stopped.is_set():
            await asyncio.sleep(PAUSE_SECONDS * self.chance.random() * 2)
            epoch = int((time.monotonic() - self.began) / EPOCH_SECONDS)
            register = f"register-{epoch}-{self.chance.randrange(2)}"
            if self.calls[register] >= CALLS_MAX or self.unknown[register] >= UNKNOWN_MAX:
                continue
            if not self.calls[register]:
                await self._call({"do": "start", "id": register}, partial(self._start, register))
            self.calls[register] += 1
            if await self._one_call(register) == "info":
                self.unknown[register] += 1

    async def work_on_jobs(self) -> None:
        """Starts jobs, and cancels those that are held."""
        while not self.stopped.is_set():
            await asyncio.sleep(PAUSE_SECONDS * 8 * self.chance.random())
            number = self.next_number()
            is_held = number % 3 == 0
            job = f"{'held' if is_held else 'job'}-{self.name}-{number}"
            told = await self._call({"do": "start", "id": job}, partial(self._start_job, job, is_held))
            if told == "ok" and is_held:
                await self._call({"do": "cancel", "id": job}, self.client.get_workflow_handle(job).cancel)

    async def _one_call(self, register: str) -> str:
        handle = self.client.get_workflow_handle_for(Register.run, register)
        kind = self.chance.choice(("write", "swap", "add", "read", "read", "signal"))
        number = self.next_number()
        operation = {"do": kind, "id": register, "call": f"{self.name}-{number}"}
        if kind == "read":
            return await self._call(operation, lambda: handle.query(Register.read))
        if kind == "signal":
            return await self._call(operation, lambda: handle.signal(Register.note, operation["call"]))
        # Few values, so that a swap often finds the one that it wants.
        arguments = [self.chance.randrange(1, 5) for _ in range(2 if kind == "swap" else 1)]

        return await self._call(
            {**operation, "arguments": arguments},
            lambda: handle.execute_update(kind, args=arguments, id=operation["call"]),
        )

    async def _call(self, operation: dict[str, Any], call: Callable[[], Awaitable[Any]]) -> str:
        async def bounded() -> Any:
            async with asyncio.timeout(PATIENCE_SECONDS):
                return await call()

        return await self.recorder.call(operation, bounded)

    async def _start(self, register: str) -> None:
        with contextlib.suppress(WorkflowAlreadyStartedError):
            await self.client.start_workflow(
                Register.run, id=register, task_queue=QUEUE,
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
            )  # fmt: skip

    async def _start_job(self, job: str, is_held: bool) -> None:
        await self.client.start_workflow(Job.run, is_held, id=job, task_queue=QUEUE)


async def main() -> None:
    address, name, seed, began, path = sys.argv[1:6]
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    client = await connect(address)
    caller = Caller(client, name, random.Random(f"{seed} {name}"), float(began), Recorder(path), stopped)
    print("ready", flush=True)
    await asyncio.gather(*(caller.work_on_registers() for _ in range(2)), caller.work_on_jobs())
    await client.close()


if __name__ == "__main__":
    asyncio.run(main())
