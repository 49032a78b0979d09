"""The one table from rejection code to RPC status, HTTP status, CLI exit code and docs anchor.

Owns: `RPCError`, the exception by which every call of the contract says an expected no, and the table.
Never: decides what is refused (``core`` and ``engine`` do).
"""

from __future__ import annotations

import enum
from typing import Final, NamedTuple

from clew.model.rejection import Rejection, RejectionCode


class RPCStatusCode(enum.IntEnum):
    """Status of a refused call, with the numbers and names of gRPC (grpc/grpc, doc/statuscodes.md)."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class CodeEntry(NamedTuple):
    """One row: what a rejection code is on each surface."""

    status: RPCStatusCode
    http_status: int
    exit_code: int
    anchor: str
    is_retryable: bool = False


_S: Final = RPCStatusCode
_C: Final = RejectionCode

CODE_TABLE: Final[dict[RejectionCode, CodeEntry]] = {
    _C.INVALID_ARGUMENT: CodeEntry(_S.INVALID_ARGUMENT, 400, 2, "invalid-argument"),
    _C.UNAUTHENTICATED: CodeEntry(_S.UNAUTHENTICATED, 401, 3, "unauthenticated"),
    _C.PERMISSION_DENIED: CodeEntry(_S.PERMISSION_DENIED, 403, 3, "permission-denied"),
    _C.RATE_LIMITED: CodeEntry(_S.RESOURCE_EXHAUSTED, 429, 7, "rate-limited", is_retryable=True),
    _C.API_KEY_NOT_FOUND: CodeEntry(_S.NOT_FOUND, 404, 4, "api-key-not-found"),
    _C.NAMESPACE_NOT_FOUND: CodeEntry(_S.NOT_FOUND, 404, 4, "namespace-not-found"),
    _C.NAMESPACE_ALREADY_EXISTS: CodeEntry(_S.ALREADY_EXISTS, 409, 5, "namespace-already-exists"),
    _C.WORKFLOW_NOT_FOUND: CodeEntry(_S.NOT_FOUND, 404, 4, "workflow-not-found"),
    _C.WORKFLOW_ALREADY_STARTED: CodeEntry(_S.ALREADY_EXISTS, 409, 5, "workflow-already-started"),
    _C.WORKFLOW_ALREADY_COMPLETED: CodeEntry(_S.NOT_FOUND, 404, 4, "workflow-already-completed"),
    _C.WORKFLOW_CLOSING: CodeEntry(_S.ABORTED, 409, 6, "workflow-closing", is_retryable=True),
    _C.WORKFLOW_NOT_CLOSED: CodeEntry(_S.FAILED_PRECONDITION, 409, 6, "workflow-not-closed"),
    _C.WORKFLOW_NOT_READY: CodeEntry(_S.FAILED_PRECONDITION, 409, 6, "workflow-not-ready"),
    _C.WORKFLOW_PAUSED: CodeEntry(_S.FAILED_PRECONDITION, 409, 6, "workflow-paused"),
    _C.WORKFLOW_BUSY: CodeEntry(_S.RESOURCE_EXHAUSTED, 429, 6, "workflow-busy", is_retryable=True),
    _C.WORKFLOW_TASK_NOT_FOUND: CodeEntry(_S.NOT_FOUND, 404, 4, "workflow-task-not-found"),
    _C.ACTIVITY_NOT_FOUND: CodeEntry(_S.NOT_FOUND, 404, 4, "activity-not-found"),
    _C.CALLBACK_REFUSED: CodeEntry(_S.PERMISSION_DENIED, 403, 6, "callback-refused"),
    _C.UPDATE_NOT_FOUND: CodeEntry(_S.NOT_FOUND, 404, 4, "update-not-found"),
    _C.DEPLOYMENT_NOT_FOUND: CodeEntry(_S.NOT_FOUND, 404, 4, "deployment-not-found"),
    _C.DEPLOYMENT_CHANGED: CodeEntry(_S.ABORTED, 409, 6, "deployment-changed"),
    _C.DEPLOYMENT_NOT_READY: CodeEntry(_S.FAILED_PRECONDITION, 409, 6, "deployment-not-ready"),
    _C.UNHANDLED_COMMAND: CodeEntry(_S.INVALID_ARGUMENT, 409, 6, "unhandled-command"),
    _C.BAD_COMMANDS: CodeEntry(_S.INVALID_ARGUMENT, 400, 2, "bad-commands"),
    _C.LIMIT_EXCEEDED: CodeEntry(_S.RESOURCE_EXHAUSTED, 429, 7, "limit-exceeded"),
    _C.QUERY_BUFFER_FULL: CodeEntry(_S.RESOURCE_EXHAUSTED, 429, 7, "query-buffer-full", is_retryable=True),
    _C.QUERY_REJECTED: CodeEntry(_S.FAILED_PRECONDITION, 409, 6, "query-rejected"),
    _C.QUERY_FAILED: CodeEntry(_S.INVALID_ARGUMENT, 422, 8, "query-failed"),
    _C.NO_WORKER: CodeEntry(_S.FAILED_PRECONDITION, 503, 9, "no-worker"),
    _C.DEADLINE_EXCEEDED: CodeEntry(_S.DEADLINE_EXCEEDED, 504, 9, "deadline-exceeded"),
    _C.UNAVAILABLE: CodeEntry(_S.UNAVAILABLE, 503, 9, "unavailable", is_retryable=True),
    _C.UNSUPPORTED: CodeEntry(_S.UNIMPLEMENTED, 501, 2, "unsupported"),
    _C.STORE_FULL: CodeEntry(_S.UNAVAILABLE, 507, 9, "store-full", is_retryable=True),
    _C.STORE_READ_ONLY: CodeEntry(_S.UNAVAILABLE, 503, 9, "store-read-only"),
    _C.STORE_CORRUPT: CodeEntry(_S.DATA_LOSS, 500, 10, "store-corrupt"),
    _C.INTERNAL: CodeEntry(_S.INTERNAL, 500, 10, "internal"),
}
"""Every code, once; a test checks that none is missing. Exit codes: see ``docs/reference/errors.md``."""


class RPCError(Exception):
    """A call of the service was refused.

    Attributes:
        rejection: The code, message and named facts.
        status: The same on the scale of gRPC.
    """

    def __init__(self, rejection: Rejection) -> None:
        super().__init__(rejection.message)
        self.rejection = rejection

    @property
    def message(self) -> str:
        """What happened, what was expected, what to do."""
        return self.rejection.message

    @property
    def code(self) -> RejectionCode:
        """The stable code."""
        return self.rejection.code

    @property
    def status(self) -> RPCStatusCode:
        """The status on the scale of gRPC."""
        return CODE_TABLE[self.rejection.code].status

    @property
    def is_retryable(self) -> bool:
        """Whether the very same call may succeed later."""
        return CODE_TABLE[self.rejection.code].is_retryable

    def __reduce__(self) -> tuple[type[RPCError], tuple[Rejection]]:
        return (type(self), (self.rejection,))
