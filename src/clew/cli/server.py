"""``clew server``: a node of the server.

Owns: the command and its flags. Never: the settings' meaning or precedence (``clew.server.settings``).
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from clew.cli._errors import CommandError
from clew.cli._groups import NounGroup
from clew.model.rejection import RejectionCode
from clew.service.errors import CODE_TABLE


@click.group(cls=NounGroup)
def server() -> None:
    """The server: one port for workers, clients, scripts and people."""


SERVER_OPTIONS: tuple[Callable[[Any], Any], ...] = (
    click.option("--host", metavar="ADDRESS", help="Address to listen on; 127.0.0.1 if not set."),
    click.option("--port", type=int, help="Port to listen on, 0 for a free one; 7233 if not set."),
    click.option("--log-format", type=click.Choice(["text", "json"]), help="Of the log on stderr; text if not set."),
    click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), help="info if not set."),
)


def server_options(function: Any) -> Any:
    """Add the flags that every server has."""
    for option in reversed(SERVER_OPTIONS):
        function = option(function)
    return function


@server.command("start")
@click.option("--store", "-s", metavar="ADDRESS", help="Connection string of the store, such as sqlite:claims.db.")
@click.option("--config", "-c", type=click.Path(path_type=Path), envvar="CLEW_SERVER_CONFIG", help="A TOML file.")
@server_options
@click.option("--api-keys/--no-api-keys", default=None, help="Let in only who comes with an API key; see `clew key`.")
@click.option("--allow-public-without-auth", is_flag=True, default=None, help="Let everybody in who reaches the port.")
@click.option("--shutdown-seconds", type=float, help="How long requests under way may take at the end; 10 if not set.")
def start(config: Path | None, **flags: Any) -> None:
    """Run a node until it is told to stop (SIGTERM or Ctrl-C).

    Each setting comes from the flag; else from the environment (CLEW_SERVER_ and its name, such as CLEW_SERVER_PORT);
    else from the file; else it has its default. docs/reference/server.md lists all settings.
    """
    need_server()
    from clew.server.logs import set_up_logging
    from clew.server.node import run_node
    from clew.server.settings import SettingsError, load_settings

    try:
        environment = {name: value for name, value in os.environ.items() if name != "CLEW_SERVER_CONFIG"}
        settings = load_settings(file=config, environment=environment, flags=flags)
        set_up_logging(settings)
        asyncio.run(run_node(settings, lambda url: click.echo(f"Clew answers at {url}", err=True)))
    except SettingsError as error:
        raise CommandError(str(error)) from error


@server.command("health")
@click.option("--config", "-c", type=click.Path(path_type=Path), envvar="CLEW_SERVER_CONFIG", help="A TOML file.")
@click.option("--host", metavar="ADDRESS", help="Where the node listens; by its settings if not given.")
@click.option("--port", type=int, help="Likewise.")
@click.option("--ready", "is_ready", is_flag=True, help="Ask whether calls can succeed too, not only whether it lives.")
def health(config: Path | None, is_ready: bool, **flags: Any) -> None:
    """Ask the node of this machine whether it lives; for the health check of a container.

    It is found by the same settings as `clew server start` has: flags, environment, file. Over TLS its certificate is
    not checked, since it is for another name than that of this machine.
    """
    need_server()
    from clew.server.health import why_not_alive
    from clew.server.settings import SettingsError, load_settings

    try:
        environment = {name: value for name, value in os.environ.items() if name != "CLEW_SERVER_CONFIG"}
        settings = load_settings(file=config, environment=environment, flags=flags)
    except SettingsError as error:
        raise CommandError(str(error)) from error
    why_not = why_not_alive(settings, path="/readyz" if is_ready else "/healthz")
    if why_not:
        raise CommandError(why_not, code="unavailable", exit_code=CODE_TABLE[RejectionCode.UNAVAILABLE].exit_code)
    click.echo("ready" if is_ready else "ok")


def need_server() -> None:
    """Refuse when the libraries of the server are missing.

    Raises:
        CommandError: They are; it names the extra.
    """
    missing = [name for name in ("starlette", "uvicorn", "websockets") if importlib.util.find_spec(name) is None]
    if missing:
        raise CommandError(
            f"A server needs {' and '.join(missing)}, which this environment has not. Install with: "
            "pip install 'clew[server]'"
        )
