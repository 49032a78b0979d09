"""What the commands that replay have in common: the code, the histories, and how a mismatch is told.

Owns: loading workflow classes by module, reading histories from files and stores, and the look of a failure.
Never: replays (``worker.Replayer`` does).
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from clew.cli._errors import CommandError
from clew.client import Client
from clew.converter import DataConverter
from clew.exceptions import NondeterminismError
from clew.model.history import WorkflowHistory
from clew.model.rejection import RejectionCode
from clew.service.errors import RPCError

F = TypeVar("F", bound=Callable[..., Any])

HISTORIES_PER_PROCESS: Final = 200
"""A process takes about a third of a second to start, in which a couple of hundred usual histories are replayed."""

_PROCESSES_MAX: Final = 8


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """What came of one history.

    Args:
        source: The file, or the workflow id.
        history: The history.
        failure: Why it does not fit; None if it does.
    """

    source: str
    history: WorkflowHistory
    failure: Exception | None

    def facts(self) -> dict[str, Any]:
        """The same as JSON."""
        facts: dict[str, Any] = {
            "workflow_id": self.history.workflow_id,
            "run_id": self.history.run_id,
            "workflow_type": self.history.started.workflow_type,
            "fits": self.failure is None,
        }
        return facts if self.failure is None else {**facts, **failure_facts(self.failure)}


def code_options(function: F) -> F:
    """Add the options that say where the code is: ``--module`` and ``--data-converter``."""
    function = click.option(
        "--data-converter", metavar="MODULE:NAME", help="The DataConverter of the runs, if it is not the usual one."
    )(function)
    return click.option(
        "--module", "-m", "modules", multiple=True, required=True, metavar="MODULE", help="Where the workflows are."
    )(function)


def load_workflows(modules: Sequence[str]) -> list[type[Any]]:
    """Import modules and give their workflow classes.

    Raises:
        CommandError: A module cannot be imported, or there is no workflow in any.
    """
    from clew.workflow._definition import Definition

    found: dict[str | None, type[Any]] = {}
    for module_name in modules:
        for _, value in inspect.getmembers(load_module(module_name), inspect.isclass):
            definition = Definition.from_class(value)
            if definition is not None:
                found[definition.name] = definition.cls
    if not found:
        raise CommandError(f"No class decorated with @workflow.defn in {', '.join(modules)}.")
    return list(found.values())


def load_converter(named: str | None) -> DataConverter | None:
    """Load ``module:name``, a data converter; None for none.

    Raises:
        CommandError: There is none of that name.
    """
    if named is None:
        return None
    module_name, _, name = named.partition(":")
    found = getattr(load_module(module_name), name or "", None)
    if not isinstance(found, DataConverter):
        raise CommandError(
            f"--data-converter {named} is {type(found).__name__}; name a DataConverter as module:name, such as "
            "claims.conversion:CONVERTER."
        )
    return found


def load_module(name: str) -> Any:
    """Import a module, looking in the current directory too.

    Raises:
        CommandError: It cannot be imported.
    """
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(name)
    except Exception as error:
        what = error if isinstance(error, ImportError) else f"{type(error).__name__}: {error}"
        raise CommandError(f"Cannot load module {name!r}: {what}.") from error


def read_history(name: str) -> WorkflowHistory:
    """Read an exported history from a file, or from stdin for ``-``.

    Raises:
        CommandError: The file cannot be read, or holds something else.
    """
    try:
        data = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except OSError as error:
        raise CommandError(f"Cannot read {name}: {error.strerror}.") from error
    try:
        history = WorkflowHistory.from_json(None, data)
        history.started  # noqa: B018 - which says what is wrong with a history that has no beginning
        return history
    except ValueError as error:
        raise CommandError(f"{name}: {error}") from error


async def fetch_histories(client: Client, runs: AsyncIterator[tuple[str, str]]) -> AsyncIterator[WorkflowHistory]:
    """Fetch the histories of runs, given by workflow and run id; those that are gone by now are left out."""
    async for workflow_id, run_id in runs:
        try:
            yield await client.get_workflow_handle(workflow_id, run_id=run_id).fetch_history()
        except RPCError as error:
            if error.code is not RejectionCode.WORKFLOW_NOT_FOUND:
                raise


def processes_for(count: int) -> int:
    """How many processes replay so many histories best; 0 for this one alone."""
    processes = min(count // HISTORIES_PER_PROCESS, os.cpu_count() or 1, _PROCESSES_MAX)
    return processes if processes > 1 else 0


def failure_facts(failure: Exception) -> dict[str, Any]:
    """A failure of a replay as JSON."""
    facts: dict[str, Any] = {"error": type(failure).__name__, "problem": f"{type(failure).__name__}: {failure}"}
    if isinstance(failure, NondeterminismError):
        facts |= {
            "event_id": failure.event_id,
            "recorded": failure.recorded,
            "attempted": failure.attempted,
            "differences": list(failure.differences),
            "source_line": failure.source_line,
        }
    return facts


def print_failure(failure: Exception) -> None:
    """Print a failure, both sides of a mismatch on a line each."""
    if not isinstance(failure, NondeterminismError) or not failure.recorded:
        print(f"  {type(failure).__name__}: {failure}")
        return
    print(f"  recorded:  {failure.recorded}")
    print(f"  attempted: {failure.attempted}")
    for difference in failure.differences:
        print(f"  differs:   {difference}")
    if failure.source_line:
        print(f"  at:        {failure.source_line}")


class Progress:
    """How far a command has come, on stderr, if that is a terminal.

    Args:
        total: Of how many.
    """

    def __init__(self, total: int) -> None:
        self._total = total
        self._done = 0
        self._step = max(total // 200, 1)
        self._is_shown = sys.stderr.isatty() and total > 1

    def advance(self) -> None:
        """One more is done."""
        self._done += 1
        if self._is_shown and (self._done % self._step == 0 or self._done >= self._total):
            print(f"\rreplayed {self._done} of {self._total}", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        """Leave the line to what comes next."""
        if self._is_shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
