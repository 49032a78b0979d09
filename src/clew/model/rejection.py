"""Rejections: an expected "no", as a value with a stable code.

Owns: the closed set of codes and the value that carries one. Never: HTTP statuses, exit codes and texts of help, which
``service.errors`` maps from the code in one table.
"""

from __future__ import annotations

import enum

import msgspec


class RejectionCode(enum.Enum):
    """Why a request was not accepted. The values are stable: callers may store and compare them."""

    INVALID_ARGUMENT = "invalid_argument"
    UNAUTHENTICATED = "unauthenticated"
    PERMISSION_DENIED = "permission_denied"
    RATE_LIMITED = "rate_limited"
    API_KEY_NOT_FOUND = "api_key_not_found"
    NAMESPACE_NOT_FOUND = "namespace_not_found"
    NAMESPACE_ALREADY_EXISTS = "namespace_already_exists"
    WORKFLOW_NOT_FOUND = "workflow_not_found"
    WORKFLOW_ALREADY_STARTED = "workflow_already_started"
    WORKFLOW_ALREADY_COMPLETED = "workflow_already_completed"
    WORKFLOW_CLOSING = "workflow_closing"
    WORKFLOW_NOT_CLOSED = "workflow_not_closed"
    WORKFLOW_NOT_READY = "workflow_not_ready"
    WORKFLOW_PAUSED = "workflow_paused"
    WORKFLOW_BUSY = "workflow_busy"
    WORKFLOW_TASK_NOT_FOUND = "workflow_task_not_found"
    ACTIVITY_NOT_FOUND = "activity_not_found"
    CALLBACK_REFUSED = "callback_refused"
    UPDATE_NOT_FOUND = "update_not_found"
    DEPLOYMENT_NOT_FOUND = "deployment_not_found"
    DEPLOYMENT_CHANGED = "deployment_changed"
    DEPLOYMENT_NOT_READY = "deployment_not_ready"
    UNHANDLED_COMMAND = "unhandled_command"
    BAD_COMMANDS = "bad_commands"
    LIMIT_EXCEEDED = "limit_exceeded"
    QUERY_BUFFER_FULL = "query_buffer_full"
    QUERY_REJECTED = "query_rejected"
    QUERY_FAILED = "query_failed"
    NO_WORKER = "no_worker"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    UNAVAILABLE = "unavailable"
    UNSUPPORTED = "unsupported"
    STORE_FULL = "store_full"
    STORE_READ_ONLY = "store_read_only"
    STORE_CORRUPT = "store_corrupt"
    INTERNAL = "internal"


class Rejection(msgspec.Struct, gc=False, frozen=True, kw_only=True, omit_defaults=True):
    """An expected no.

    Args:
        code: Which one; stable.
        message: What happened, what was expected, what to do.
        details: Named facts for programs, such as ``run_id`` of the run that is already there.
    """

    code: RejectionCode
    message: str
    details: dict[str, str] = msgspec.field(default_factory=dict[str, str])
