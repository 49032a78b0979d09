"""What a failed workflow task is told and logged as.

Owns: the failures that the worker itself makes up, and the log lines about refused and failed tasks.
Never: decides that a task has failed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import traceback
from datetime import timedelta
from typing import Final

from clew.model.events import WorkflowTaskFailedCause
from clew.model.failure import ApplicationInfo, Failure
from clew.model.rejection import RejectionCode
from clew.service.errors import RPCError
from clew.service.requests import WorkflowTask
from clew.stack_text import stack_text

_OUR_FILES: Final = os.path.dirname(os.path.dirname(__file__)) + os.sep
_STDLIB_FILES: Final = os.path.dirname(os.__file__) + os.sep
_PACKAGES: Final = f"{os.sep}site-packages{os.sep}"

_log: Final = logging.getLogger("clew.worker.workflow")


def blocked_failure(task: WorkflowTask, timeout: timedelta, stack: traceback.StackSummary) -> Failure:
    """Workflow code holds its thread; `stack` says where."""
    return Failure(
        message=(
            f"Workflow {task.workflow_type!r} did not yield for {timeout.total_seconds():g} s; its thread stands at "
            f"{_place(stack)}. Workflow code has to await: move blocking calls and long computations into an activity, "
            "or raise the worker's blocked_thread_timeout."
        ),
        source="clew",
        stack_trace=stack_text(_without_ours(stack)),
        info=ApplicationInfo(type="BlockedThreadError"),
    )


def worker_failure(error: BaseException, what: str) -> Failure:
    """Something went wrong around workflow code, not in it."""
    return Failure(
        message=f"{what}: {type(error).__name__}: {error}",
        source="clew",
        info=ApplicationInfo(type=type(error).__name__),
    )


def log_failed_task(task: WorkflowTask, failure: Failure | None, cause: WorkflowTaskFailedCause) -> None:
    """One line for each task that fails; with the stack at the first attempt, which the others would only repeat."""
    shows_stack = failure is not None and failure.stack_trace and task.attempt <= 1
    _log.warning(
        "workflow.task_failed workflow_type=%s workflow_id=%s run_id=%s attempt=%d cause=%s: %s%s",
        task.workflow_type,
        task.token.workflow_id,
        task.token.run_id,
        task.attempt,
        cause.value,
        _told(failure) if failure is not None else "no failure given",
        f"\n{failure.stack_trace}" if failure is not None and shows_stack else "",
    )


def _told(failure: Failure) -> str:
    kind = failure.info.type if isinstance(failure.info, ApplicationInfo) else ""
    return f"{kind}: {failure.message}" if kind else failure.message


def log_refusal(task: WorkflowTask, error: BaseException | None) -> None:
    """One line for each answer that the engine does not want (any more)."""
    if error is None or isinstance(error, asyncio.CancelledError):
        return
    is_at_fault = isinstance(error, RPCError) and error.code is RejectionCode.BAD_COMMANDS
    _log.log(
        logging.WARNING if is_at_fault else logging.INFO,
        "workflow.answer_refused workflow_id=%s run_id=%s attempt=%d: %s",
        task.token.workflow_id,
        task.token.run_id,
        task.attempt,
        error,
    )


def _without_ours(stack: traceback.StackSummary) -> list[traceback.FrameSummary]:
    """The stack from the first line of user code on; all of it if there is none."""
    first = next((n for n, frame in enumerate(stack) if _is_of_user(frame.filename)), 0)
    return stack[first:]


def _place(stack: traceback.StackSummary) -> str:
    """The innermost line of user code."""
    lines = [frame for frame in stack if _is_of_user(frame.filename)] or list(stack)
    return f"{lines[-1].filename}:{lines[-1].lineno} in {lines[-1].name}" if lines else "an unknown line"


def _is_of_user(filename: str) -> bool:
    if filename.startswith(_STDLIB_FILES) and _PACKAGES not in filename:
        return False
    return not filename.startswith(_OUR_FILES)
