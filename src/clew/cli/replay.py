"""``clew replay``: recorded histories against the code at hand.

Owns: the command. Never: replays (``worker.Replayer`` does).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import click

from clew.cli._connection import Place, place_of, place_options, reading
from clew.cli._errors import DOES_NOT_FIT, CommandError
from clew.cli._output import print_json
from clew.cli._replays import (
    Progress,
    Replayed,
    code_options,
    fetch_histories,
    load_converter,
    load_workflows,
    print_failure,
    processes_for,
    read_history,
)
from clew.client import Client
from clew.converter import DataConverter
from clew.model.history import WorkflowHistory


@click.command("replay")
@click.argument("files", nargs=-1, metavar="FILE...")
@code_options
@click.option("--query", "-q", help="Replay the runs of a store that fit, such as \"WorkflowType = 'Claim'\".")
@click.option("--limit", "-l", type=click.IntRange(1), default=1_000, show_default=True, help="Most runs of --query.")
@click.option(
    "--processes", "-p", type=click.IntRange(0), help="In so many processes; by the number of histories if not given."
)
@place_options
def replay(
    files: Sequence[str], modules: Sequence[str], data_converter: str | None, query: str | None, limit: int,
    processes: int | None, **options: Any,
) -> int:  # fmt: skip
    """Replay histories against the workflows of some modules, and say which no longer fit.

    A FILE is what `clew workflow show ID --output json` printed; '-' reads one from stdin. With --query the histories
    are those of a store, which is only read, also beside a running owner.
    """
    if bool(files) == (query is not None):
        raise CommandError("Give either FILEs, or --query with --store for the runs of a store, but not both.")
    place = place_of(options, needs_address=query is not None)
    code = _Code(load_workflows(modules), load_converter(data_converter), processes)
    if query is None:
        results = asyncio.run(_replay_files(code, files))
    else:
        results = asyncio.run(_replay_store(code, place, query, limit))
    if place.is_json:
        print_json([_facts(result, is_file=query is None) for result in results])
    else:
        _print(results)
    return DOES_NOT_FIT if any(result.failure is not None for result in results) else 0


class _Code:
    """The code, and how it is run."""

    def __init__(self, workflows: Sequence[type[Any]], converter: DataConverter | None, processes: int | None) -> None:
        self._workflows = workflows
        self._converter = converter
        self._processes = processes

    async def replay(
        self, histories: AsyncIterator[WorkflowHistory], count: int, sources: Sequence[str] | None
    ) -> list[Replayed]:
        from clew.worker import Replayer  # only commands that replay need the worker

        processes = self._processes if self._processes is not None else processes_for(count)
        replayer = Replayer(workflows=self._workflows, data_converter=self._converter, processes=processes)
        progress = Progress(count)
        found: list[Replayed] = []
        async with replayer.workflow_replay_iterator(histories) as results:
            async for result in results:
                source = sources[len(found)] if sources is not None else result.history.workflow_id
                found.append(Replayed(source=source, history=result.history, failure=result.replay_failure))
                progress.advance()
        progress.end()
        return found


async def _replay_files(code: _Code, files: Sequence[str]) -> list[Replayed]:
    async def histories() -> AsyncIterator[WorkflowHistory]:
        for name in files:
            yield read_history(name)

    return await code.replay(histories(), len(files), files)


async def _replay_store(code: _Code, place: Place, query: str, limit: int) -> list[Replayed]:
    async with reading(place) as client:
        count = min((await client.count_workflows(query)).count, limit)
        return await code.replay(fetch_histories(client, _runs(client, query, limit)), count, None)


async def _runs(client: Client, query: str, limit: int) -> AsyncIterator[tuple[str, str]]:
    async for run in client.list_workflows(query, limit=limit):
        yield run.id, run.run_id


def _facts(result: Replayed, *, is_file: bool) -> dict[str, Any]:
    return {"file": result.source, **result.facts()} if is_file else result.facts()


def _print(results: Sequence[Replayed]) -> None:
    broken = [result for result in results if result.failure is not None]
    for result in broken:
        started = result.history.started
        print(f"{result.source}: {started.workflow_type} run {result.history.run_id} does not fit the code.")
        assert result.failure is not None, "chosen for that"
        print_failure(result.failure)
    fitting = len(results) - len(broken)
    print(f"{len(results)} replayed: {fitting} {'fits' if fitting == 1 else 'fit'}, {len(broken)} do not fit.")
