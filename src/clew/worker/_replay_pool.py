"""Replays in other processes, for histories by the thousand.

Owns: the pool, what goes to it and comes back, and how far it runs ahead. Never: how a history is replayed.

How it works: a replay keeps a core busy, so threads would not help. Each process makes one replayer from the arguments
of ours, and gets histories as the JSON they are exported as. Processes are spawned, never forked: the caller has
threads. A failure comes back as the exception it was; one that cannot be pickled as its text.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import pickle
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from typing import Any, Final

from clew.exceptions import ClewError
from clew.model.history import WorkflowHistory

_AHEAD_PER_PROCESS: Final = 4
"""Histories under way for each process: enough that none waits for the next to be read, few enough for the memory."""

_replayers: Final[list[Any]] = []
"""In a process of the pool: its one replayer."""


class ReplayProcessError(ClewError):
    """What a replay in another process raised, where the exception itself could not be brought over."""


async def replay_in_processes(
    make: Callable[..., Any],
    arguments: Mapping[str, Any],
    histories: AsyncIterator[WorkflowHistory],
    processes: int,
    is_whole: bool,
) -> AsyncGenerator[tuple[WorkflowHistory, Exception | None], None]:
    """Give each history with what is wrong with it, in their order.

    Args:
        make: Makes a replayer; the class.
        arguments: Of the replayer that each process makes.
        histories: The histories.
        processes: How many.
        is_whole: See `Replayer.replay_workflow`.

    Raises:
        TypeError: The arguments cannot be pickled; the message says which.
    """
    loop = asyncio.get_running_loop()
    initial = _pickled(make, arguments)
    pool = ProcessPoolExecutor(
        processes, mp_context=multiprocessing.get_context("spawn"), initializer=_begin, initargs=(initial,)
    )
    under_way: deque[tuple[WorkflowHistory, asyncio.Future[bytes | None]]] = deque()
    try:
        async for history in histories:
            work = loop.run_in_executor(pool, _replay, history.workflow_id, history.to_json(), is_whole)
            under_way.append((history, work))
            if len(under_way) >= processes * _AHEAD_PER_PROCESS:
                yield await _next(under_way)
        while under_way:
            yield await _next(under_way)
    finally:
        for _, work in under_way:
            work.cancel()
        await asyncio.to_thread(pool.shutdown, cancel_futures=True)


async def _next(
    under_way: deque[tuple[WorkflowHistory, asyncio.Future[bytes | None]]],
) -> tuple[WorkflowHistory, Exception | None]:
    history, work = under_way.popleft()
    pickled = await work
    failure: Exception | None = None if pickled is None else pickle.loads(pickled)
    return history, failure


def _pickled(make: Callable[..., Any], arguments: Mapping[str, Any]) -> bytes:
    for name, value in arguments.items():
        try:
            pickle.dumps(value)
        except Exception as error:
            raise TypeError(
                f"Replayer({name}=…) cannot be handed to another process: {error}. Define it at the top level of a "
                "module, or replay in this process with processes=0."
            ) from error
    return pickle.dumps((make, dict(arguments)))


# --- in a process of the pool -------------------------------------------------------------------------------


def _begin(initial: bytes) -> None:
    make, arguments = pickle.loads(initial)
    _replayers.append(make(**arguments))


def _replay(workflow_id: str, history_json: str, is_whole: bool) -> bytes | None:
    history = WorkflowHistory.from_json(workflow_id, history_json)
    replaying = _replayers[0].replay_workflow(history, raise_on_replay_failure=False, is_whole=is_whole)
    failure = asyncio.run(replaying).replay_failure
    if failure is None:
        return None
    try:
        data = pickle.dumps(failure)
        pickle.loads(data)
        return data
    except Exception as error:  # noqa: BLE001 (a foreign exception may fail in any way; its text is what counts)
        stand_in = ReplayProcessError(f"{type(failure).__name__}: {failure}")
        stand_in.add_note(f"It could not be brought over from the process that replayed ({error}).")
        return pickle.dumps(stand_in)
