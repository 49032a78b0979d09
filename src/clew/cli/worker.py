"""``clew worker``: run workers from a module; ``clew worker deployment``: which version of them gets the runs.

Owns: these commands. Never: the rules (the engine has them), or what a worker does.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Sequence
from typing import Any

import click

from clew.cli._connection import Place, command, connect, owning, place_of, place_options, reading
from clew.cli._errors import CommandError
from clew.cli._groups import NounGroup
from clew.cli._output import print_json, print_json_line, print_table, time_text
from clew.cli._supervisor import Supervisor
from clew.cli._worker_code import make_workers
from clew.cli._worker_log import LEVELS, set_up_worker_log
from clew.client import WorkerDeploymentDescription, WorkerDeploymentInfo
from clew.common import AutoUpgradeVersioningOverride, PinnedVersioningOverride, VersioningOverride
from clew.model.policies import DeploymentVersion
from clew.telemetry import FORMATS

_UNVERSIONED = "(unversioned)"


@click.group(cls=NounGroup)
def worker() -> None:
    """Workers and their versions."""


@worker.group("deployment", cls=NounGroup)
def deployment() -> None:
    """Worker deployments: their versions, and which of them gets the runs."""


@worker.command("run")
@click.argument("module")
@click.option("--task-queue", "-q", default="default", show_default=True, help="Of a worker made from a bare module.")
@click.option("--processes", "-p", type=click.IntRange(1), default=1, show_default=True, help="How many to run it in.")
@click.option("--reload", "is_reloading", is_flag=True, help="Start anew when code below this directory changes.")
@click.option("--log-level", type=click.Choice(LEVELS), help="Of Clew's log on stderr; info if not set.")
@click.option("--log-format", type=click.Choice(FORMATS), default="text", show_default=True, help="Of that log.")
@place_options
def run(
    module: str,
    task_queue: str,
    processes: int,
    is_reloading: bool,
    log_level: str | None,
    log_format: str,
    **options: Any,
) -> None:
    """Run the worker of a MODULE until it is told to stop (SIGTERM or Ctrl-C).

    MODULE is one with workflows and activities, all of which are registered; or module:function, where the function
    gets a client and returns a Worker, or several. With --processes each process has its own, and one that dies is
    started again. The log goes to stderr, unless the module sets up logging itself.
    """
    place = place_of(options)
    if processes == 1 and not is_reloading:
        asyncio.run(_run_workers(place, module, task_queue, log_level, log_format))
        return
    arguments = ["worker", "run", module, "--task-queue", task_queue, *place.arguments()]
    arguments += ["--log-format", log_format, *(["--log-level", log_level] if log_level is not None else [])]
    asyncio.run(_supervise(Supervisor(arguments, count=processes, is_reloading=is_reloading, secrets=place.secrets())))


async def _run_workers(place: Place, module: str, task_queue: str, log_level: str | None, log_format: str) -> None:
    async with await connect(place) as client:
        workers = await make_workers(client, module, task_queue)
        set_up_worker_log(log_level, log_format)
        print(f"Working for {client.connection.address}, namespace {client.namespace!r}.", file=sys.stderr, flush=True)
        loop = asyncio.get_running_loop()
        running = [asyncio.ensure_future(one.run()) for one in workers]

        def stop() -> None:
            stopping.extend(asyncio.ensure_future(one.shutdown()) for one in workers)

        stopping: list[asyncio.Future[None]] = []
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop)
        try:
            await asyncio.gather(*running)
        finally:
            await asyncio.gather(*(one.shutdown() for one in workers))


async def _supervise(supervisor: Supervisor) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, supervisor.stop)
    await supervisor.run()


_ROUTING = (
    click.option("--conflict-token", default="", help="Of the description this was decided on; any when not given."),
    click.option("--ignore-missing-task-queues", is_flag=True, help="Also if not all task queues are polled by it."),
    click.option("--allow-no-pollers", is_flag=True, help="Also if no worker of the version is running."),
)


def _routing_options(function: Any) -> Any:
    for option in reversed(_ROUTING):
        function = option(function)
    return function


@command(deployment, "list")
async def list_(place: Place) -> None:
    """List deployments with their routing. Works beside a running owner."""
    async with reading(place) as client:
        _print_infos(place, await client.list_worker_deployments())


@command(deployment, "describe")
@click.argument("name")
async def describe(place: Place, name: str) -> None:
    """Print the versions of a deployment, and which are still needed. Works beside a running owner."""
    async with reading(place) as client:
        _print_description(place, await client.get_worker_deployment_handle(name).describe())


@command(deployment, "set-current")
@click.argument("name")
@click.option("--build-id", required=True, help="The version; an empty text for workers without versioning.")
@_routing_options
async def set_current(place: Place, name: str, build_id: str, **options: Any) -> None:
    """Give a version all runs that are not pinned."""
    async with owning(place) as client:
        info = await client.get_worker_deployment_handle(name).set_current_version(build_id, **options)
    _print_infos(place, [info])


@command(deployment, "set-ramping")
@click.argument("name")
@click.option("--build-id", default=None, help="The version; an empty text for workers without versioning.")
@click.option("--percentage", type=click.FloatRange(0, 100), default=0.0, help="Of workflow ids, 0 to 100.")
@click.option("--end", is_flag=True, help="End the ramp.")
@_routing_options
async def set_ramping(
    place: Place, name: str, build_id: str | None, percentage: float, end: bool, **options: Any
) -> None:
    """Give a version a share of the runs that are not pinned."""
    if end == (build_id is not None):
        raise CommandError("Give either --build-id with --percentage, or --end.")
    async with owning(place) as client:
        handle = client.get_worker_deployment_handle(name)
        info = await handle.set_ramping_version(build_id, percentage, **options)
    _print_infos(place, [info])


@command(deployment, "delete-version")
@click.argument("name")
@click.option("--build-id", required=True, help="The version.")
@click.option("--skip-drainage", is_flag=True, help="Also if open runs are pinned to it.")
async def delete_version(place: Place, name: str, build_id: str, skip_drainage: bool) -> None:
    """Forget a version that gets no runs and has no workers."""
    async with owning(place) as client:
        await client.get_worker_deployment_handle(name).delete_version(build_id, skip_drainage=skip_drainage)
    if place.is_json:
        print_json({"deployment_name": name, "build_id": build_id})
    else:
        print(f"Deleted version {build_id!r} of deployment {name!r}.")


@command(deployment, "move")
@click.argument("workflow_id")
@click.option("--run-id", "-r", metavar="ID", help="A certain run; the current one when not given.")
@click.option("--to", "version", metavar="NAME.BUILD", help="Pin the run to this version.")
@click.option("--auto-upgrade", is_flag=True, help="Let the run go with its deployment.")
@click.option("--clear", is_flag=True, help="Take away the exception that was made for the run.")
async def move(
    place: Place, workflow_id: str, run_id: str | None, version: str | None, auto_upgrade: bool, clear: bool
) -> None:
    """Move an open run to another version, from its next task on."""
    if (version is not None) + auto_upgrade + clear != 1:
        raise CommandError("Give one of --to NAME.BUILD, --auto-upgrade and --clear.")
    override = _override(version, auto_upgrade)
    async with owning(place) as client:
        await client.get_workflow_handle(workflow_id, run_id=run_id).update_options(versioning_override=override)
    if place.is_json:
        print_json({"workflow_id": workflow_id, "versioning_override": override})
    else:
        print(f"Workflow {workflow_id!r} " + _moved_text(version, auto_upgrade))


def _override(version: str | None, auto_upgrade: bool) -> VersioningOverride | None:
    if version is not None:
        try:
            return PinnedVersioningOverride(DeploymentVersion.from_canonical_string(version))
        except ValueError as error:
            raise CommandError(str(error)) from error
    return AutoUpgradeVersioningOverride() if auto_upgrade else None


def _moved_text(version: str | None, auto_upgrade: bool) -> str:
    if version is not None:
        return f"is pinned to {version} from its next task on."
    return "goes with its deployment." if auto_upgrade else "goes as its code says."


def _print_infos(place: Place, infos: Sequence[WorkerDeploymentInfo]) -> None:
    if place.output == "json":
        print_json(list(infos))
        return
    if place.output == "jsonl":
        for info in infos:
            print_json_line(info)
        return
    rows = [
        (
            info.name,
            info.current_build_id or _UNVERSIONED,
            "-"
            if info.ramping_build_id is None
            else f"{info.ramping_build_id or _UNVERSIONED} {info.ramp_percentage:g} %",
            time_text(info.routing_changed_at),
            info.identity,
        )
        for info in infos
    ]
    print_table(("NAME", "CURRENT", "RAMPING", "CHANGED", "BY"), rows, empty="There are no worker deployments.")


def _print_description(place: Place, described: WorkerDeploymentDescription) -> None:
    if place.is_json:
        print_json(described)
        return
    info = described.info
    print(f"Deployment {info.name}, conflict token {info.conflict_token}")
    rows = [
        (
            one.build_id,
            one.status.value + (f" {one.ramp_percentage:g} %" if one.ramping_since is not None else ""),
            str(one.open_pinned_count),
            time_text(one.current_since or one.ramping_since or one.last_deactivated_at or one.created_at),
            ", ".join(one.task_queues),
        )
        for one in described.versions
    ]
    print_table(("BUILD", "STATUS", "OPEN PINNED", "SINCE", "TASK QUEUES"), rows, empty="It has no versions.")
