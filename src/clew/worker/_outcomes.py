"""How an attempt ended, as the request that reports it.

Owns: the rules below. Never: sends anything, or calls user code other than converters.

=========================================  =============================================================================
the function                               what is reported
=========================================  =============================================================================
returns                                    completed; failed for good if the result cannot be stored
raises                                     failed, with the error; the retry policy decides what follows
ends by a cancellation that was asked for  cancelled
ends by its worker's shutdown              failed, type ``WorkerShutdown``: another worker tries again
ends because it was paused or reset        failed, type ``ActivityPause`` or ``ActivityReset``
ends after it timed out or was gone        nothing that counts: the engine has the last word already
completes asynchronously                   that it goes on elsewhere
=========================================  =============================================================================
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, TypeAlias, final

from clew.activity import _CompleteAsyncError
from clew.converter import DataConverter, to_stored_payloads
from clew.exceptions import ApplicationError, ApplicationErrorCategory, CancelledError
from clew.model.failure import ApplicationInfo, Failure
from clew.model.inputs import CancelActivityRequest, CompleteActivityRequest, FailActivityRequest, TaskToken
from clew.model.limits import Limits
from clew.model.payload import Payloads
from clew.service.tokens import encode_task_token
from clew.worker._attempt import ActivityReport, Attempt

CompletesAsync: TypeAlias = _CompleteAsyncError

SHUTDOWN_TYPE: Final = "WorkerShutdown"
_NO_RESULT: Final[Payloads] = ()
_log: Final = logging.getLogger("clew.worker.activity")


@final
class Outcomes:
    """Makes the report of an attempt; on any thread.

    Args:
        data_converter: Of the client.
        limits: Of the engine.
        identity: Of the worker.
    """

    def __init__(self, data_converter: DataConverter, limits: Limits, identity: str) -> None:
        self._payload_converter = data_converter.payload_converter
        self._failure_converter = data_converter.failure_converter
        self._limits = limits
        self._identity = identity

    def to_completion(self, attempt: Attempt, result: object) -> CompleteActivityRequest:
        """The function returned `result`.

        Raises:
            ApplicationError: It cannot be stored.
        """
        payloads = (self._payload_converter.to_stored(result),)
        size = len(payloads[0])
        if size > self._limits.payload_bytes_max:
            raise ApplicationError(
                f"The result of {attempt} has {size:,} bytes; the limit is {self._limits.payload_bytes_max:,}. "
                "Store it elsewhere and return a reference to it.",
                type="PayloadTooLarge",
                non_retryable=True,
            )
        return CompleteActivityRequest(token=attempt.task.token, result=payloads, identity=self._identity)

    def to_report(self, attempt: Attempt, error: BaseException) -> ActivityReport | None:
        """The function, or the way into or out of it, raised `error`; None if there is nothing to report."""
        if isinstance(error, CompletesAsync):
            return attempt.task.token
        if isinstance(error, (asyncio.CancelledError, CancelledError)):
            return self._to_cancel_report(attempt, error)
        _log_failure(attempt, error)
        return self._to_failed(attempt, error)

    def to_shutdown_report(self, attempt: Attempt) -> ActivityReport:
        """The worker ends while the attempt is still running, deaf to its cancellation."""
        return self._to_failed(attempt, _shutdown_error(attempt))

    def to_refused_report(self, attempt: Attempt, reason: str) -> ActivityReport:
        """The engine refused the result itself, so that repeating it is useless."""
        error = ApplicationError(
            f"The outcome of {attempt} was refused: {reason}", type="OutcomeRefused", non_retryable=True
        )
        return self._to_failed(attempt, error)

    def to_codec_report(self, attempt: Attempt, error: Exception) -> ActivityReport:
        """The payload codec could not encode the outcome, so nothing of it may leave this process in the clear."""
        _log_failure(attempt, error)
        what = f"The payload codec failed on the outcome of {attempt}: {type(error).__name__}"
        return FailActivityRequest(
            token=attempt.task.token,
            failure=Failure(message=what, source="clew", info=ApplicationInfo(type="CodecError")),
            identity=self._identity,
        )

    def encode_token(self, token: TaskToken) -> bytes:
        """The token for `activity.info().task_token`."""
        return encode_task_token(token)

    def _to_cancel_report(self, attempt: Attempt, error: BaseException) -> ActivityReport | None:
        why = attempt.cancellation
        if attempt.is_gone:
            return None
        if why.cancel_requested:
            details = error.details if isinstance(error, CancelledError) else ()
            payloads = to_stored_payloads(self._payload_converter, details) if details else _NO_RESULT
            return CancelActivityRequest(token=attempt.task.token, details=payloads, identity=self._identity)
        if why.worker_shutdown:
            return self._to_failed(attempt, _shutdown_error(attempt))
        if why.paused or why.reset:
            kind = "Pause" if why.paused else "Reset"
            return self._to_failed(attempt, ApplicationError(f"{attempt}: {kind}", type=f"Activity{kind}"))
        if why.timed_out:
            message = f"{attempt} ran past its deadline by the worker's clock"
            return self._to_failed(attempt, ApplicationError(message, type="TimedOut"))
        uncalled = ApplicationError(
            f"{attempt} raised a cancellation although nobody asked for one. Raise another error to fail it.",
            type="CancelledError",
        )
        uncalled.__cause__ = error
        _log_failure(attempt, uncalled)
        return self._to_failed(attempt, uncalled)

    def _to_failed(self, attempt: Attempt, error: BaseException) -> FailActivityRequest:
        return FailActivityRequest(
            token=attempt.task.token,
            failure=self._to_failure(attempt, error),
            identity=self._identity,
            last_heartbeat_details=attempt.beat_details,
        )

    def _to_failure(self, attempt: Attempt, error: BaseException) -> Failure:
        try:
            return self._failure_converter.to_failure(error, self._payload_converter)
        except Exception as conversion_error:  # noqa: BLE001 - a failure that cannot be told must still be reported
            _log.error("activity.failure_unconvertible %s", attempt, exc_info=conversion_error)
            plain = ApplicationError(
                f"{type(error).__name__}: {error} (and it could not be converted: {conversion_error})"
            )
            return self._failure_converter.to_failure(plain, self._payload_converter)


def _shutdown_error(attempt: Attempt) -> ApplicationError:
    return ApplicationError(f"The worker that ran {attempt} was shut down", type=SHUTDOWN_TYPE)


def _log_failure(attempt: Attempt, error: BaseException) -> None:
    is_benign = isinstance(error, ApplicationError) and error.category is ApplicationErrorCategory.BENIGN
    _log.log(
        logging.DEBUG if is_benign else logging.WARNING,
        "activity.failed %s: %s",
        attempt,
        error,
        exc_info=error,
    )
