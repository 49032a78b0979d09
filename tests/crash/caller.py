"""A client process of the mixed workload, which is killed in the middle of its calls.

Usage: python -m tests.crash.caller ADDRESS FOLDER. It goes through one round after the other, each a `Mixed` and a
`Held`, and writes the name of a round to ``FOLDER/begun`` before its first call, to ``FOLDER/ended`` after its last.
One that was begun and not ended is gone through again from its first call, with the same request ids: whatever its last
life had asked for, and was not told of, happens once. On SIGTERM it ends when its round does.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

from clew.client import Client, Interceptor, OutboundInterceptor, SignalWorkflowInput, WorkflowFailureError
from clew.common import WorkflowIDReusePolicy
from clew.model.rejection import RejectionCode
from clew.service.errors import RPCError
from tests.crash.mixed import QUEUE, RESULT, SIGNALS, Held, Mixed

T = TypeVar("T")
PAUSE_SECONDS = 0.02
OVER = frozenset({RejectionCode.WORKFLOW_ALREADY_COMPLETED})
"""What a repeat may be told that comes after its run has ended."""


async def insist(call: Callable[[], Awaitable[T]]) -> T:
    """Make the call until it is answered."""
    while True:
        try:
            return await call()
        except RPCError as error:
            if error.code is not RejectionCode.UNAVAILABLE:
                raise
            await asyncio.sleep(PAUSE_SECONDS)


class _IfOpen(contextlib.AbstractContextManager[None]):
    """Lets a repeat be told that its run is over."""

    def __exit__(self, kind: Any, error: BaseException | None, _: Any) -> bool:
        return isinstance(error, RPCError) and error.code in OVER


class SameIds(Interceptor):
    """Sends each signal under an id that its repeat in another life has too."""

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:
        return _SameIds(next)


class _SameIds(OutboundInterceptor):
    async def signal_workflow(self, input: SignalWorkflowInput) -> None:
        input.request_id = f"{input.id}-{input.args[0]}"
        await super().signal_workflow(input)


async def see_mixed(client: Client, workflow_id: str) -> None:
    """One `Mixed`, from its start to its result."""
    handle = await insist(lambda: _start(client, Mixed.run, workflow_id))
    for number in SIGNALS[:1]:
        await _signal(handle, number)
    with _IfOpen():
        answer = await insist(lambda: handle.execute_update(Mixed.add, 5, id=f"{workflow_id}-add"))
        assert answer == 6, answer
    for number in SIGNALS[1:]:
        await _signal(handle, number)
    result = await insist(handle.result)
    assert result == RESULT, result


async def see_held(client: Client, workflow_id: str) -> None:
    """One `Held`, from its start to its cancellation."""
    handle = await insist(lambda: _start(client, Held.run, workflow_id))
    with _IfOpen():
        await insist(handle.cancel)
    try:
        await insist(handle.result)
    except WorkflowFailureError:
        return
    raise AssertionError(f"{workflow_id} was cancelled, and completed")


async def _start(client: Client, run: Any, workflow_id: str) -> Any:
    return await client.start_workflow(
        run, id=workflow_id, task_queue=QUEUE, request_id=f"{workflow_id}-start",
        id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
    )  # fmt: skip


async def _signal(handle: Any, number: int) -> None:
    with _IfOpen():
        await insist(lambda: handle.signal(Mixed.note, number))


def write_down(path: Path, name: str) -> None:
    """Add a line, in one call."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, f"{name}\n".encode())
    os.close(descriptor)


def names(path: Path) -> list[str]:
    """The lines that are there."""
    return path.read_text().split() if path.exists() else []


async def main() -> None:
    address, folder = sys.argv[1], Path(sys.argv[2])
    is_over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, is_over.set)
    client = await insist(lambda: Client.connect(address, interceptors=[SameIds()]))
    print("ready", flush=True)
    begun, ended = names(folder / "begun"), set(names(folder / "ended"))
    left = [name for name in begun if name not in ended]
    number = len(begun)
    while left or not is_over.is_set():
        if not left:
            left = [f"caller{number}"]
            number += 1
            write_down(folder / "begun", left[0])
        name = left.pop(0)
        await asyncio.gather(see_mixed(client, f"mixed-{name}"), see_held(client, f"held-{name}"))
        write_down(folder / "ended", name)
    await client.close()


if __name__ == "__main__":
    asyncio.run(main())
