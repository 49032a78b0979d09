"""``clew deploy``: will the code at hand run what is under way?

Owns: the command, which runs it looks at, and how it groups what it finds. Never: replays, or changes anything.

How it works: open runs are listed from the newest to the oldest, and for each workflow type a sample spread evenly over
that order is kept: runs of one age tend to stand at one place in the code, so the spread reaches many places. Each is
replayed as a whole history. Failures with the same type, place and kind are one finding, with the runs it was seen in.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import click

from clew.cli._connection import Place, command, reading
from clew.cli._errors import DOES_NOT_FIT
from clew.cli._groups import NounGroup
from clew.cli._output import print_json, print_table
from clew.cli._replays import (
    Progress,
    code_options,
    failure_facts,
    fetch_histories,
    load_converter,
    load_workflows,
    print_failure,
    processes_for,
)
from clew.client import Client
from clew.exceptions import NondeterminismError

_SHOWN_RUNS_MAX: Final = 5


@click.group(cls=NounGroup)
def deploy() -> None:
    """Deployments of workflow code."""


@command(deploy, "check")
@code_options
@click.option("--query", "-q", default="", help="Which open runs; all when not given.")
@click.option(
    "--sample", type=click.IntRange(1), default=100, show_default=True, help="Most runs of each workflow type."
)
@click.option("--processes", "-p", type=click.IntRange(0), help="In so many processes; by their number if not given.")
async def check(
    place: Place, modules: Sequence[str], data_converter: str | None, query: str, sample: int, processes: int | None
) -> int:
    """Replay a sample of the open runs, and say which would break on the code at hand, why and where.

    A run breaks if its history does not fit the code, or if the modules have no workflow of its type. The store is only
    read, also beside a running owner.
    """
    from clew.worker import Replayer

    workflows, converter = load_workflows(modules), load_converter(data_converter)
    async with reading(place) as client:
        samples = await _sample_runs(client, query, sample)
        count = sum(len(one.runs) for one in samples.values())
        replayer = Replayer(
            workflows=workflows,
            data_converter=converter,
            processes=processes if processes is not None else processes_for(count),
        )
        findings: dict[tuple[str, str, str], _Finding] = {}
        progress = Progress(count)
        histories = fetch_histories(client, _ids(samples))
        async with replayer.workflow_replay_iterator(histories, is_whole=True) as results:
            async for result in results:
                workflow_type = result.history.started.workflow_type
                samples[workflow_type].checked_count += 1
                progress.advance()
                if result.replay_failure is not None:
                    samples[workflow_type].broken_count += 1
                    key = _kind_of(workflow_type, result.replay_failure)
                    finding = findings.setdefault(key, _Finding(workflow_type, result.replay_failure))
                    finding.runs.append((result.history.workflow_id, result.history.run_id))
        progress.end()
    _report(place, samples, list(findings.values()))
    return DOES_NOT_FIT if findings else 0


@dataclass
class _Sample:
    """Every so-many-th open run of one type."""

    open_count: int = 0
    stride: int = 1
    runs: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    checked_count: int = 0
    broken_count: int = 0

    def offer(self, run: tuple[str, str], size: int) -> None:
        if self.open_count % self.stride == 0:
            if len(self.runs) == size:
                # Of those so far every second stays, and from here on only every second as often is taken.
                self.runs, self.stride = self.runs[::2], self.stride * 2
            if self.open_count % self.stride == 0 and len(self.runs) < size:
                self.runs.append(run)
        self.open_count += 1


@dataclass
class _Finding:
    """One way to break."""

    workflow_type: str
    failure: Exception
    runs: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])


async def _sample_runs(client: Client, query: str, size: int) -> dict[str, _Sample]:
    wanted = "ExecutionStatus = 'Running'" + (f" AND ({query})" if query.strip() else "")
    samples: dict[str, _Sample] = {}
    async for run in client.list_workflows(wanted):
        samples.setdefault(run.workflow_type, _Sample()).offer((run.id, run.run_id), size)
    return samples


async def _ids(samples: dict[str, _Sample]) -> AsyncIterator[tuple[str, str]]:
    for sample in samples.values():
        for run in sample.runs:
            yield run


def _kind_of(workflow_type: str, failure: Exception) -> tuple[str, str, str]:
    """What makes two failures the same finding: not the ids, which differ from run to run."""
    if isinstance(failure, NondeterminismError):
        return workflow_type, failure.source_line, failure.recorded.partition(" (event")[0]
    return workflow_type, type(failure).__name__, ""


def _report(place: Place, samples: dict[str, _Sample], findings: Sequence[_Finding]) -> None:
    if place.is_json:
        print_json(_facts(samples, findings))
        return
    rows = [
        (name, str(one.open_count), str(one.checked_count), str(one.broken_count) if one.broken_count else "-")
        for name, one in sorted(samples.items())
    ]
    print_table(("TYPE", "OPEN", "REPLAYED", "WOULD BREAK"), rows, empty="There are no open runs.")
    for finding in findings:
        shown = ", ".join(workflow_id for workflow_id, _ in finding.runs[:_SHOWN_RUNS_MAX])
        more = len(finding.runs) - _SHOWN_RUNS_MAX
        print(f"\n{finding.workflow_type} would break, seen in {len(finding.runs)} of its runs:")
        print_failure(finding.failure)
        print(f"  runs:      {shown}{f' and {more} more' if more > 0 else ''}")
    if findings:
        print("\nKeep the former code for these runs behind workflow.patched(), or let them end on old workers first.")


def _facts(samples: dict[str, _Sample], findings: Sequence[_Finding]) -> dict[str, Any]:
    return {
        "fits": not findings,
        "workflows": [
            {
                "workflow_type": name,
                "open_count": one.open_count,
                "replayed_count": one.checked_count,
                "broken_count": one.broken_count,
            }
            for name, one in sorted(samples.items())
        ],
        "findings": [
            {
                "workflow_type": finding.workflow_type,
                **failure_facts(finding.failure),
                "runs": [{"workflow_id": workflow_id, "run_id": run_id} for workflow_id, run_id in finding.runs],
            }
            for finding in findings
        ],
    }
