"""Small programs with a blocking client, as scripts and servers are: ``python -m … NAME STORE``; they print JSON.

Forking needs processes of its own, apart from the threads of a test run.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from clew import activity, workflow
from clew.client import BlockingClient, Client
from clew.worker import Worker

QUEUE = "blocking"


@activity.defn
async def shout(text: str) -> str:
    return text.upper()


@workflow.defn
class Greet:
    @workflow.run
    async def run(self, name: str) -> str:
        return await workflow.execute_activity(shout, f"hello {name}", start_to_close_timeout=timedelta(seconds=30))


def fork(work: Callable[[], Any]) -> Callable[[], Any]:
    """Fork; the result gives what `work` gave in the child, or its error with the notes."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            answer = work()
        except BaseException as error:  # noqa: BLE001 - the parent is told
            answer = "".join(traceback.format_exception_only(error))
        os.write(writing, json.dumps(answer).encode())
        os._exit(0)
    os.close(writing)

    def answer_of() -> Any:
        with os.fdopen(reading, "rb") as pipe:
            text = pipe.read()
        os.waitpid(child, 0)
        return json.loads(text)

    return answer_of


def start(client: BlockingClient, id: str) -> str:
    client.start_workflow(Greet.run, id, id=id, task_queue=QUEUE)
    return client.get_workflow_handle(id).describe().id


def preloaded(store: str) -> Any:
    """A server that loads its program, forks, and uses the client in the child alone."""
    client = BlockingClient.connect(store, lazy=True)
    in_child = fork(lambda: (start(client, "child"), client.close())[0])()
    with client:
        return [in_child, sorted(execution.id for execution in client.list_workflows())]


def forked_while_connected(store: str) -> Any:
    """The parent keeps the file, and the child joins it."""
    with BlockingClient.connect(store) as client:
        handle = client.start_workflow(Greet.run, "x", id="parent", task_queue=QUEUE)
        in_child = fork(lambda: handle.describe().id)()
        return [in_child, handle.describe().id, start(client, "again")]


def forked_then_closed(store: str) -> Any:
    """The parent closes; then the child's copy of the client, and its handles, connect for themselves."""
    client = BlockingClient.connect(store)
    handle = client.start_workflow(Greet.run, "x", id="parent", task_queue=QUEUE)
    go_reading, go_writing = os.pipe()

    def in_child() -> Any:
        os.close(go_writing)
        os.read(go_reading, 1)
        return [handle.describe().id, start(client, "child"), client.close()]

    answer_of = fork(in_child)
    client.close()
    os.write(go_writing, b"x")
    return answer_of()


def with_a_worker(store: str) -> Any:
    """A script that starts and waits, while a worker of the same process serves in a loop of its own."""

    async def serve(started: threading.Event, stop: asyncio.Event) -> None:
        async with (
            await Client.connect(store) as client,
            Worker(client, task_queue=QUEUE, workflows=[Greet], activities=[shout]),
        ):
            started.set()
            await stop.wait()

    loop, started, stop = asyncio.new_event_loop(), threading.Event(), asyncio.Event()
    thread = threading.Thread(target=loop.run_until_complete, args=(serve(started, stop),))
    thread.start()
    assert started.wait(30)
    with BlockingClient.connect(store) as client:
        result = client.execute_workflow(Greet.run, "you", id="g", task_queue=QUEUE)
    loop.call_soon_threadsafe(stop.set)
    thread.join()
    loop.close()
    return result


def forgotten(store: str) -> Any:
    """A script that never closes its client still ends, and loses nothing."""
    client = BlockingClient.connect(store)
    return start(client, "kept")


PROGRAMS = {
    program.__name__: program
    for program in (preloaded, forked_while_connected, forked_then_closed, with_a_worker, forgotten)
}

if __name__ == "__main__":
    print(json.dumps(PROGRAMS[sys.argv[1]](sys.argv[2])), flush=True)
