"""``clew dev``: a server for development, with a worker that is started anew when its code changes.

Owns: the command. Never: the server or the worker.
"""

from __future__ import annotations

import asyncio
from typing import Any

import click

from clew.cli._errors import CommandError
from clew.cli._supervisor import Supervisor
from clew.cli.server import need_server, server_options

STORE_DEFAULT = "sqlite:clew-dev.db"


@click.command()
@click.argument("module", required=False)
@click.option("--store", "-s", default=STORE_DEFAULT, show_default=True, help="SQLite store; sqlite::memory: for none.")
@click.option("--task-queue", "-q", default="default", show_default=True, help="Of a worker made from a bare module.")
@server_options
def dev(module: str | None, store: str, task_queue: str, **flags: Any) -> None:
    """Run a server on this machine, with a web view; and a worker, if a MODULE is given.

    MODULE is one with workflows and activities, or module:function, where the function gets a client and returns a
    Worker. The worker runs in a process of its own, which is started anew whenever a file of code below the working
    directory changes. Only programs of this machine can reach the server.
    """
    need_server()
    from clew.server.logs import set_up_logging
    from clew.server.settings import SettingsError, load_settings

    try:
        settings = load_settings(flags={**flags, "store": store})
        set_up_logging(settings)
        asyncio.run(_run(settings, module, task_queue))
    except SettingsError as error:
        raise CommandError(str(error)) from error


async def _run(settings: Any, module: str | None, task_queue: str) -> None:
    from clew.server.node import run_node

    loop = asyncio.get_running_loop()
    started: asyncio.Future[str] = loop.create_future()

    def on_started(url: str) -> None:
        """Told on the service loop."""
        loop.call_soon_threadsafe(started.set_result, url)

    workers: list[tuple[Supervisor, asyncio.Task[None]]] = []

    async def stop_workers() -> None:
        for supervisor, running in workers:
            supervisor.stop()
            await running

    node = asyncio.ensure_future(run_node(settings, on_started, stop_workers))
    await asyncio.wait((node, started), return_when=asyncio.FIRST_COMPLETED)
    if started.done():
        url = started.result()
        click.echo(f"Clew answers at {url} (store {settings.store}). Stop it with Ctrl-C.", err=True)
        if module is not None:
            address = url.removeprefix("http://")
            arguments = ["worker", "run", module, "--address", address, "--task-queue", task_queue]
            supervisor = Supervisor(arguments, is_reloading=True)
            workers.append((supervisor, asyncio.create_task(supervisor.run())))
    try:
        await node
    finally:
        await stop_workers()
