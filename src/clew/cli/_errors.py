"""From any error to a message and an exit code.

Owns: the exit codes of outcomes that are no refusals, and what is shown of an error.
Never: the codes of refusals (``service.errors`` has the one table).
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Any, Final

import click
import msgspec

from clew.exceptions import (
    CancelledError,
    ClewError,
    TerminatedError,
    TimeoutError,
    WorkflowAlreadyStartedError,
    WorkflowContinuedAsNewError,
    WorkflowFailureError,
    WorkflowQueryFailedError,
    WorkflowQueryRejectedError,
    WorkflowUpdateFailedError,
)
from clew.model.rejection import RejectionCode
from clew.ports.store import StoreError, StoreFull, StoreInUse, StoreReadOnly, StoreUnavailable
from clew.service.errors import CODE_TABLE, RPCError

LINT_FINDINGS: Final = 1
"""As with other tools that check code."""
USAGE: Final = 2
INTERNAL: Final = 10
FAILED: Final = 11
CANCELLED: Final = 12
TERMINATED: Final = 13
TIMED_OUT: Final = 14
CONTINUED: Final = 15
PARTLY_DONE: Final = 16
"""A command on many runs did not succeed on each of them."""
DOES_NOT_FIT: Final = 17
"""A history that was replayed does not fit the code."""


@dataclass(frozen=True)
class Problem:
    """An error as the command line tells it.

    Args:
        message: For people, on stderr.
        exit_code: Of the process.
        facts: For programs, as JSON.
    """

    message: str
    exit_code: int
    facts: dict[str, Any]


class ReaderGone(Exception):
    """Whoever read our stdout has closed it. Told apart from `BrokenPipeError`, which click answers by itself."""


class CommandError(Exception):
    """A command cannot go on.

    Args:
        message: What happened, what was expected, what to do.
        code: Stable name, for programs.
        exit_code: Of the process.
    """

    def __init__(self, message: str, *, code: str = "invalid_argument", exit_code: int = USAGE) -> None:
        super().__init__(message)
        self.code = code
        self.exit_code = exit_code


def problem_of(error: BaseException) -> Problem:
    """Say what an error means to whoever ran the command."""
    match error:
        case CommandError():
            return _problem(str(error), error.code, error.exit_code)
        case click.ClickException():
            return _problem(_usage_text(error), "usage", error.exit_code)
        case RPCError():
            return _problem(error.message, error.code.value, CODE_TABLE[error.code].exit_code, **_details(error))
        case StoreError():
            code = _store_code(error)
            return _problem(str(error), code.value, CODE_TABLE[code].exit_code)
        case WorkflowFailureError():
            return _outcome(error.cause)
        case WorkflowUpdateFailedError():
            return _failed("The update failed", error.cause)
        case WorkflowContinuedAsNewError():
            return _problem(str(error), "continued_as_new", CONTINUED, new_run_id=error.new_execution_run_id)
        case _:
            return _other(error)


def outcome_problem(code: str, message: str, exit_code: int, **facts: Any) -> Problem:
    """A run that ended without a result."""
    return _problem(message, code, exit_code, **facts)


def _details(error: RPCError) -> dict[str, Any]:
    """The named facts of a refusal; a failure among them as the JSON it is."""
    details: dict[str, Any] = dict(error.rejection.details)
    if "failure" in details:
        details["failure"] = msgspec.Raw(details["failure"])
    return details


def _other(error: BaseException) -> Problem:
    if isinstance(error, WorkflowAlreadyStartedError):
        code = RejectionCode.WORKFLOW_ALREADY_STARTED
        return _problem(str(error), code.value, CODE_TABLE[code].exit_code, run_id=error.run_id)
    if isinstance(error, WorkflowQueryFailedError):
        return _problem(str(error), "query_failed", CODE_TABLE[RejectionCode.QUERY_FAILED].exit_code)
    if isinstance(error, WorkflowQueryRejectedError):
        return _problem(str(error), "query_rejected", CODE_TABLE[RejectionCode.QUERY_REJECTED].exit_code)
    if isinstance(error, (ClewError, ValueError, TypeError)):
        return _problem(str(error), "invalid_argument", USAGE)
    return _problem(f"{type(error).__name__}: {error}. This is a bug in Clew; please report it.", "internal", INTERNAL)


def _outcome(cause: BaseException) -> Problem:
    if isinstance(cause, CancelledError):
        notes = [str(detail) for detail in cause.details]
        text = "\n  ".join(["The workflow was cancelled.", *notes])
        return _problem(text, "cancelled", CANCELLED, **({"notes": notes} if notes else {}))
    if isinstance(cause, TerminatedError):
        return _problem(f"The workflow was terminated: {cause.message}", "terminated", TERMINATED)
    if isinstance(cause, TimeoutError):
        return _problem("The workflow timed out.", "timed_out", TIMED_OUT)
    return _failed("The workflow failed", cause)


def _failed(what: str, cause: BaseException) -> Problem:
    from clew.converter.failure import notes_of  # Whoever starts a node has no need of converters.

    chain: list[dict[str, Any]] = []
    at: BaseException | None = cause
    while at is not None and len(chain) < 20:
        entry: dict[str, Any] = {"type": getattr(at, "type", None) or type(at).__name__, "message": str(at)}
        added = list(notes_of(at))
        chain.append(entry | ({"notes": added} if added else {}))
        at = at.__cause__
    text = "\n  caused by: ".join("\n  ".join([entry["message"], *entry.get("notes", ())]) for entry in chain)
    return _problem(f"{what}: {text}", "failed", FAILED, failure=chain)


def _problem(message: str, code: str, exit_code: int, **details: Any) -> Problem:
    facts: dict[str, Any] = {"code": code, "message": message, "exit_code": exit_code}
    if details:
        facts["details"] = details
    return Problem(message, exit_code, facts)


def _usage_text(error: click.ClickException) -> str:
    text = error.format_message()
    if isinstance(error, click.NoSuchOption) and error.ctx is not None and not error.possibilities:
        known = [name for parameter in error.ctx.command.params for name in parameter.opts]
        close = difflib.get_close_matches(error.option_name, known, n=2)
        text += f" Did you mean {' or '.join(close)}?" if close else ""
    if isinstance(error, click.UsageError) and error.ctx is not None:
        text += f" See `{error.ctx.command_path} --help`."
    return text


def _store_code(error: StoreError) -> RejectionCode:
    match error:
        case StoreInUse() | StoreUnavailable():
            return RejectionCode.UNAVAILABLE
        case StoreFull():
            return RejectionCode.STORE_FULL
        case StoreReadOnly():
            return RejectionCode.STORE_READ_ONLY
        case _:
            return RejectionCode.INVALID_ARGUMENT
