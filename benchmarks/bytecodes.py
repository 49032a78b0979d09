"""Bytecodes of a whole workflow, by thread and function: ``python -m benchmarks.bytecodes [--local] [--link]``.

Owns: counting across the threads of one process: engine, worker, writer and caller as they are, or with ``--link`` a
node with its port, and its client. Never: judges (`opcodes` compares what is the same every time with the record; here
batches and threads fall as they may).

How it works: a trace function in every thread. It slows everything thirtyfold, so turns of workflow code may be moved
to other threads; what counts is what each function takes, and how often it is called. Not every bytecode costs the
same: from its eighth run on CPython 3.11 puts a quick form in the place of most instructions, which needs what it
meets to be the same each time. ``--slow`` names the attributes that stayed slow: class attributes and properties read
through an instance, members of enumerations, and what is written to a msgspec struct. Such a one takes 40 to 60 ns, a
quick one 3.
"""

from __future__ import annotations

import argparse
import asyncio
import dis
import gc
import os
import signal
import sys
import tempfile
import threading
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import CodeType, FrameType, FunctionType
from typing import Any, Final

from benchmarks.workflows import LocalSequence, Sequence
from benchmarks.workloads import IN_FLIGHT, QUEUE, Steps, engine, worker
from clew.client import Client
from clew.server.node import run_node
from clew.server.settings import load_settings

_ATTRIBUTES: Final = ("LOAD_ATTR", "STORE_ATTR", "LOAD_METHOD")


class _Tracer:
    """Counts while it is on, for each thread by itself."""

    def __init__(self) -> None:
        self.is_on = False
        self.opcodes: dict[int, Counter[CodeType]] = defaultdict(Counter)
        self.calls: dict[int, Counter[CodeType]] = defaultdict(Counter)

    def on_call(self, frame: FrameType, event: str, argument: Any) -> Any:
        """The trace function."""
        if not self.is_on:
            return None
        thread_id, code = threading.get_ident(), frame.f_code
        counts = self.opcodes[thread_id]
        self.calls[thread_id][code] += 1
        frame.f_trace_opcodes, frame.f_trace_lines = True, False

        def on_opcode(frame: FrameType, event: str, argument: Any) -> Any:
            if event == "opcode":
                counts[code] += 1
            return on_opcode

        return on_opcode


@asynccontextmanager
async def _linked() -> AsyncIterator[Client]:
    """A client of a node that has its own threads in this process."""
    with tempfile.TemporaryDirectory(prefix="clew-bench-") as folder:
        settings = load_settings(flags={"store": f"sqlite:{folder}/bench.db", "port": 0, "log_level": "warning"})
        started: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        call = asyncio.get_running_loop().call_soon_threadsafe
        serving = asyncio.create_task(run_node(settings, lambda url: call(started.set_result, url)))
        async with await Client.connect((await started).rpartition("/")[2]) as client:
            yield client
        os.kill(os.getpid(), signal.SIGTERM)
        await serving


async def _run(count: int, workflow: Steps, tracer: _Tracer, is_linked: bool) -> dict[int | None, str]:
    async with _linked() if is_linked else engine() as client, worker(client):
        gate = asyncio.Semaphore(IN_FLIGHT)

        async def one(number: int) -> None:
            async with gate:
                await client.execute_workflow(workflow.run, 3, id=f"w-{number}", task_queue=QUEUE)

        await asyncio.gather(*(one(-number) for number in range(1, 101)))
        tracer.is_on = True
        await asyncio.gather(*(one(number) for number in range(count)))
        tracer.is_on = False
        return {thread.ident: thread.name for thread in threading.enumerate()}


def _show(tracer: _Tracer, names: dict[int | None, str], count: int, top: int) -> None:
    total = sum(sum(counts.values()) for counts in tracer.opcodes.values())
    print(f"{total / count:.0f} bytecodes a workflow")
    for thread_id, counts in sorted(tracer.opcodes.items(), key=lambda item: -sum(item[1].values())):
        calls = tracer.calls[thread_id]
        name = names.get(thread_id, str(thread_id))
        print(f"{name}: {sum(counts.values()) / count:.0f} in {sum(calls.values()) / count:.0f} calls")
        for code, number in counts.most_common(top):
            place = f"{code.co_filename.rpartition('/')[2]}:{code.co_firstlineno}"
            print(f"    {number / count:>8.1f} {calls[code] / count:>7.2f}  {code.co_qualname}  {place}")


def _show_slow(workflow: Steps, tracer: _Tracer, count: int, top: int, is_linked: bool) -> None:
    """Run once more, untraced, and name the attributes that have no quick form in what was called most."""
    calls: Counter[CodeType] = sum(tracer.calls.values(), Counter())
    asyncio.run(_run(1_500, workflow, _Tracer(), is_linked))
    gc.unfreeze()
    live = {found.__code__ for found in gc.get_objects() if isinstance(found, FunctionType)}
    rows: list[tuple[float, str, str]] = []
    for code in live & set(calls):
        slow = [
            f"{instruction.opname[:5].rstrip('_').lower()} {instruction.argval}"
            for instruction in dis.get_instructions(code, adaptive=True)
            if instruction.opname.removesuffix("_ADAPTIVE") in _ATTRIBUTES
        ]
        if slow:
            rows.append((calls[code] / count, code.co_qualname, ", ".join(slow)))
    print("\nattributes without a quick form (those on ways that are not taken among them), by calls a workflow:")
    for number, name, attributes in sorted(rows, reverse=True)[:top]:
        print(f"    {number:>7.2f}  {name}: {attributes}")


def main() -> None:
    """Count, and show."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bytecodes", description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=200, help="workflows")
    parser.add_argument("--top", type=int, default=60, help="functions shown of each thread")
    parser.add_argument("--local", action="store_true", help="three local steps in place of three activities")
    parser.add_argument("--link", action="store_true", help="over a link to a node, in threads of its own here")
    parser.add_argument("--slow", action="store_true", help="name the attributes that have no quick form")
    options = parser.parse_args()
    workflow: Steps = LocalSequence if options.local else Sequence
    tracer = _Tracer()
    threading.settrace(tracer.on_call)
    sys.settrace(tracer.on_call)
    names = asyncio.run(_run(options.count, workflow, tracer, options.link))
    sys.settrace(None)
    threading.settrace(None)  # type: ignore[arg-type]
    _show(tracer, names, options.count, options.top)
    if options.slow:
        _show_slow(workflow, tracer, options.count, options.top, options.link)


if __name__ == "__main__":
    main()
