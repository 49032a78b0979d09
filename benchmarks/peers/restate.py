"""Restate, measured: ``python -m benchmarks.peers.restate WORKLOAD SIZE sqlite`` where it is installed.

Owns: its services, its server, and its way through each workload. Never: imports Clew.

How it works: the server and the service (on granian) are processes of their own; this one sends the load over plain
HTTP connections that it keeps, which costs less than a client library would.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import restate

from benchmarks.peers import gauge
from benchmarks.peers.gauge import Figures, Marks

FOLDER = Path(os.environ.get("CLEW_PEER_FOLDER") or tempfile.mkdtemp(prefix="clew-peer-"))
ROLE = os.environ.get("CLEW_PEER_ROLE", "")
START_SECONDS_MAX: Final = 60.0
marks = Marks(FOLDER / "marks")

# --- the service ------------------------------------------------------------------------------------------------------

bench = restate.Service("bench")
parked = restate.Service("parked", inactivity_timeout=timedelta(seconds=1))
echo = restate.Workflow("echo")


async def no_op(number: int) -> int:
    return number


async def mark(word: str, number: int) -> None:
    marks.put(word, number)


@bench.handler()
async def sequence(ctx: restate.Context, count: int) -> list[float]:
    times: list[float] = []
    for number in range(count):
        await ctx.run_typed("step", no_op, number=number)
        times.append(time.perf_counter())
    return times


@bench.handler()
async def fan_out(ctx: restate.Context, count: int) -> int:
    return len(await restate.gather(*[ctx.run_typed("step", no_op, number=number) for number in range(count)]))


@parked.handler()
async def sleeper(ctx: restate.Context, seconds: float) -> None:
    await ctx.sleep(timedelta(seconds=seconds))


@bench.handler()
async def marked_sleeper(ctx: restate.Context, number: int) -> None:
    await ctx.run_typed("asleep", mark, word="asleep", number=number)
    await ctx.sleep(timedelta(seconds=gauge.SLEEP_SECONDS))
    await ctx.run_typed("done", mark, word="done", number=number)


@bench.handler()
async def resumed(ctx: restate.Context, count: int) -> None:
    marks.put("entered", 0)
    for number in range(count):
        await ctx.run_typed("step", no_op, number=number)
    if ROLE == "first":
        marks.put("ready", 0)
        await asyncio.sleep(3600)
    await ctx.run_typed("next", mark, word="next", number=0)


@echo.main()
async def run(ctx: restate.WorkflowContext, count: int) -> int:
    for number in range(count):
        value = await ctx.promise(f"in-{number}", type_hint=int).value()
        await ctx.promise(f"out-{number}", type_hint=int).resolve(value)
    return count


@echo.handler()
async def ask(ctx: restate.WorkflowSharedContext, number: int) -> int:
    await ctx.promise(f"in-{number}", type_hint=int).resolve(number)
    return await ctx.promise(f"out-{number}", type_hint=int).value()


app = restate.app(services=[bench, parked, echo])

# --- processes --------------------------------------------------------------------------------------------------------


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def wait_for_port(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS_MAX
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        if process.poll() is not None or time.monotonic() > deadline:
            log = (FOLDER / "log").read_text(encoding="utf-8", errors="replace")
            raise SystemExit(f"nothing listens on port {port}:\n{log[-2_000:]}")
        time.sleep(0.02)


class Processes:
    """The server and the service."""

    def __init__(self) -> None:
        self.ingress, self.admin, self._node, self._service_port = (free_port() for _ in range(4))
        self._log = (FOLDER / "log").open("ab")
        program = Path(sys.executable).parents[1] / "node_modules" / ".bin" / "restate-server"
        environment = {
            **os.environ,
            "RESTATE_LISTEN_MODE": "tcp",
            "RESTATE_BIND_IP": "127.0.0.1",
            "RESTATE_BIND_PORT": str(self._node),
            "RESTATE_INGRESS__BIND_PORT": str(self.ingress),
            "RESTATE_ADMIN__BIND_PORT": str(self.admin),
            "RESTATE_DISABLE_TELEMETRY": "true",
        }
        named = os.environ.get("CLEW_PEER_RESTATE_SERVER")
        command = [named or str(program), "--no-logo", "--base-dir", str(FOLDER / "data")]
        self.server = subprocess.Popen(command, env=environment, stdout=self._log, stderr=self._log)
        try:
            wait_for_port(self.admin, self.server)
            wait_for_port(self.ingress, self.server)
            self.service = self.serve("")
            self._register()
        except BaseException:
            gauge.kill_tree(self.server)
            raise

    def serve(self, role: str) -> subprocess.Popen[bytes]:
        """Start the service in this role."""
        granian = [sys.executable, "-m", "granian", "--interface", "asgi", "--http", "2", "--workers", "1"]
        where = ["--host", "127.0.0.1", "--port", str(self._service_port), "--no-access-log", "--log-level", "error"]
        environment = {**os.environ, "CLEW_PEER_ROLE": role, "CLEW_PEER_FOLDER": str(FOLDER)}
        command = [*granian, *where, "benchmarks.peers.restate:app"]
        process = subprocess.Popen(command, env=environment, stdout=self._log, stderr=self._log)
        wait_for_port(self._service_port, process)
        return process

    def _register(self) -> None:
        body = json.dumps({"uri": f"http://127.0.0.1:{self._service_port}", "force": True}).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.admin}/deployments", body, {"content-type": "application/json"}
        )
        deadline = time.monotonic() + START_SECONDS_MAX
        while True:
            try:
                urllib.request.urlopen(request, timeout=30).read()
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)
            else:
                return

    def close(self) -> None:
        """End both."""
        for process in (self.service, self.server):
            if process.poll() is None:
                gauge.kill_tree(process)


# --- load -------------------------------------------------------------------------------------------------------------


class Connection:
    """One kept HTTP connection to the server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, port: int) -> Connection:
        """Connect."""
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def post(self, path: str, body: object) -> Any:
        """Send JSON and give the JSON that comes back."""
        data = json.dumps(body).encode()
        lines = [f"POST {path} HTTP/1.1", "Host: bench", "Content-Type: application/json"]
        head = "\r\n".join([*lines, f"Content-Length: {len(data)}", "", ""])
        self._writer.write(head.encode() + data)
        lines = (await self._reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines[1:] if ": " in line)
        answer = b""
        if "content-length" in headers:
            answer = await self._reader.readexactly(int(headers["content-length"]))
        elif headers.get("transfer-encoding") == "chunked":
            while size := int(await self._reader.readline(), 16):
                answer += (await self._reader.readexactly(size + 2))[:-2]
            await self._reader.readexactly(2)
        if not lines[0].split()[1].startswith("2"):
            raise RuntimeError(f"{path} was answered with {lines[0]}: {answer!r}")
        return json.loads(answer) if answer else None


async def post(port: int, path: str, body: object) -> Any:
    """Send one request on a connection of its own."""
    return await (await Connection.open(port)).post(path, body)


async def post_all(port: int, path: str, bodies: Iterable[object], in_flight: int) -> None:
    """Send requests, so many at once."""
    waiting = iter(bodies)

    async def some() -> None:
        connection = await Connection.open(port)
        for body in waiting:
            await connection.post(path, body)

    await asyncio.gather(*[some() for _ in range(in_flight)])


async def measure(workload: str, size: int, processes: Processes) -> Figures:
    port, pids = processes.ingress, [processes.server.pid, processes.service.pid]
    await post(port, "/bench/sequence", 3)
    own, memory = time.process_time(), gauge.memory(pids)
    cpu, clock = gauge.cpu_seconds(pids), time.perf_counter()

    def passed() -> tuple[float, float]:
        used = gauge.cpu_seconds(pids) - cpu + time.process_time() - own
        return time.perf_counter() - clock, used

    if workload == "W1":
        times: list[float] = await post(port, "/bench/sequence", size)
        return gauge.step_figures(times, *passed())
    if workload == "W2":
        await post_all(port, "/bench/sequence", [3] * size, gauge.IN_FLIGHT)
        return gauge.workflow_figures(size, *passed())
    if workload == "W3":
        await post(port, "/bench/fan_out", size)
        return gauge.fan_figures(size, *passed())
    if workload == "W4":
        await post_all(port, "/parked/sleeper/send", [3600.0] * size, 50)
        seconds, _ = passed()
        await asyncio.sleep(20)
        after, cpu = gauge.memory(pids), gauge.cpu_seconds(pids)
        await asyncio.sleep(10)
        return gauge.parked_figures(size, seconds, memory, after, (gauge.cpu_seconds(pids) - cpu) / 10)
    assert workload == "W7", f"Restate is not measured in {workload}"
    await post(port, "/echo/one/run/send", size)
    connection = await Connection.open(port)
    seconds_each: list[float] = []
    for number in range(size):
        began = time.perf_counter()
        answer = await connection.post("/echo/one/ask", number)
        seconds_each.append(time.perf_counter() - began)
        assert answer == number, f"sent {number}, got {answer}"
    return gauge.round_trip_figures(seconds_each, passed()[1])


def measure_with_kill(workload: str, size: int, processes: Processes) -> Figures:
    gauge.kill_tree(processes.service)

    def spawn(role: str) -> subprocess.Popen[bytes]:
        processes.service = processes.serve(role)
        if role == "first":
            path, bodies = ("marked_sleeper", list(range(size))) if workload == "W5" else ("resumed", [size])
            asyncio.run(post_all(processes.ingress, f"/bench/{path}/send", bodies, min(50, len(bodies))))
        return processes.service

    if workload == "W5":
        return gauge.kill_among_sleepers(spawn, marks, size)
    return gauge.kill_after_steps(spawn, marks, size)


def main() -> None:
    workload, size = sys.argv[1], int(sys.argv[2])
    processes = Processes()
    try:
        if workload in {"W5", "W6"}:
            figures = measure_with_kill(workload, size, processes)
        else:
            figures = asyncio.run(measure(workload, size, processes))
    finally:
        processes.close()
    gauge.report(figures)


if __name__ == "__main__":
    main()
