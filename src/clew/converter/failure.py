"""Exceptions to failures and back.

Owns: which exception becomes which kind of failure, and the bounds on what one failure may carry.
Never: what a failure does to a run (``core`` and ``replay`` decide that).

How it works: an exception that came out of history gives its failure back unchanged; any other becomes one by its
class. Causes follow ``__cause__``. A chain is cut after `CHAIN_MAX` causes or where it comes back to itself, texts and
details at the sizes below, each with a mark that says so; so an error always arrives, at once, however odd it is. An
exception group becomes an application failure whose message and details list every leaf, and whose cause is the leaf
that decides.
"""

# Values and hints are of any type here, by nature; what is found inside them has no static type.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownLambdaType=false

from __future__ import annotations

import asyncio
import traceback
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Final, assert_never, final

import msgspec

from clew import exceptions as x
from clew.common import RawValue
from clew.converter.payload_converter import PayloadConverter
from clew.model.failure import (
    MESSAGE_CHARS_MAX,
    ActivityInfo,
    ApplicationInfo,
    CanceledInfo,
    ChildWorkflowExecutionInfo,
    Failure,
    FailureInfo,
    ResetWorkflowInfo,
    ServerInfo,
    TerminatedInfo,
    TimeoutInfo,
)
from clew.model.payload import Payloads, StoredPayload, from_stored, payloads_size
from clew.stack_text import stack_text

CHAIN_MAX: Final = 20
"""Causes kept below an exception; real chains are a few long, wrapping by mistake grows without end."""
STACK_CHARS_MAX: Final = 8_000
"""Longer stack traces lose their middle."""
FRAMES_MAX: Final = 60
"""Innermost frames of a stack trace that are looked at."""
DETAILS_BYTES_MAX: Final = 1024 * 1024
"""Details of a whole chain together; half of what one payload may have."""
LEAVES_MAX: Final = 50
"""Leaves of an exception group that are listed."""

SOURCE: Final = "clew"
GROUP_TYPE: Final = "ExceptionGroup"
CUT_TYPE: Final = "CauseChainCut"
_ENCODED_MESSAGE: Final = "Encoded failure"
NOTES_MAX: Final = 10
NOTE_CHARS_MAX: Final = 1_000

_CUT_TEXT: Final = " … [cut] … "
_PLACE: Final = "Where it was raised:"


class FailureConverter(ABC):
    """Turns exceptions into failures and back."""

    default: ClassVar[FailureConverter]
    """The converter that is used when none is given."""

    @abstractmethod
    def to_failure(self, exception: BaseException, payload_converter: PayloadConverter) -> Failure:
        """Turn an exception into a failure. Must not raise, whatever the exception is."""

    @abstractmethod
    def from_failure(self, failure: Failure, payload_converter: PayloadConverter) -> BaseException:
        """Turn a failure into an exception, with its causes. Must not raise, whatever the failure has."""


class DefaultFailureConverter(FailureConverter):
    """Keeps type, message, stack trace, details and causes.

    Args:
        encode_common_attributes: Put messages and stack traces into payloads, so that a codec can hide them from the
            engine.
    """

    def __init__(self, *, encode_common_attributes: bool = False) -> None:
        self._encode_common_attributes = encode_common_attributes

    def to_failure(self, exception: BaseException, payload_converter: PayloadConverter) -> Failure:
        """See base class."""
        writer = _Writer(payload_converter, self._encode_common_attributes)
        return writer.write(exception)

    def from_failure(self, failure: Failure, payload_converter: PayloadConverter) -> BaseException:
        """See base class."""
        return _read(failure, payload_converter)


class DefaultFailureConverterWithEncodedAttributes(DefaultFailureConverter):
    """The default, with messages and stack traces in payloads."""

    def __init__(self) -> None:
        super().__init__(encode_common_attributes=True)


FailureConverter.default = DefaultFailureConverter()


# --- exception to failure --------------------------------------------------------------------------------------------


@final
class _Writer:
    """Writes one chain, with what is left of its budget of details."""

    def __init__(self, payload_converter: PayloadConverter, encodes_attributes: bool) -> None:
        self._payload_converter = payload_converter
        self._encodes_attributes = encodes_attributes
        self._details_left = DETAILS_BYTES_MAX

    def write(self, exception: BaseException) -> Failure:
        chain, rest = _chain_of(exception)
        failure = None if rest is None else rest
        for link in reversed(chain):
            failure = self._one(link, failure)
        assert failure is not None, "a chain has at least one exception"
        return failure

    def _one(self, exception: BaseException, cause: Failure | None) -> Failure:
        added = notes_of(exception)
        if isinstance(exception, x.FailureError) and exception.failure is not None:
            return self._with_notes(exception.failure, added)
        notes: list[str] = []
        info = self._info(exception, notes)
        message = _cut(_message_of(exception), MESSAGE_CHARS_MAX - 200)
        if notes:
            message = f"{message} [{'; '.join(notes)}]"[:MESSAGE_CHARS_MAX]
        stack_trace = _stack_trace_of(exception)
        if not self._encodes_attributes:
            return Failure(message=message, source=SOURCE, stack_trace=stack_trace, cause=cause, info=info, notes=added)
        attributes = {"message": message, "stack_trace": stack_trace} | ({"notes": added} if added else {})
        hidden = self._payload_converter.to_stored(attributes)
        return Failure(message=_ENCODED_MESSAGE, source=SOURCE, encoded_attributes=hidden, cause=cause, info=info)

    def _with_notes(self, failure: Failure, notes: tuple[str, ...]) -> Failure:
        """A failure that came out of history, with what was added to its error since."""
        shown = _with_attributes(failure, self._payload_converter)
        if notes == shown.notes:
            return failure
        if not self._encodes_attributes:
            return msgspec.structs.replace(failure, notes=notes)
        if failure.encoded_attributes is not None and shown is failure:
            return failure  # Hidden in a way that cannot be read here, and what is there must not be lost.
        attributes = {"message": shown.message, "stack_trace": shown.stack_trace, "notes": notes}
        return msgspec.structs.replace(failure, encoded_attributes=self._payload_converter.to_stored(attributes))

    def _info(self, exception: BaseException, notes: list[str]) -> FailureInfo | None:
        match exception:
            case x.ApplicationError():
                return ApplicationInfo(
                    type=exception.type or "",
                    non_retryable=exception.non_retryable,
                    details=self._details(exception.details, notes),
                    next_retry_delay=exception.next_retry_delay,
                    category="Benign" if exception.category is x.ApplicationErrorCategory.BENIGN else "",
                )
            case x.CancelledError():
                return CanceledInfo(details=self._details(exception.details, notes))
            case x.TerminatedError():
                return TerminatedInfo()
            case x.TimeoutError() if exception.type is not None:
                details = self._details(exception.last_heartbeat_details, notes)
                return TimeoutInfo(timeout_type=exception.type, last_heartbeat_details=details)
            case x.ServerError():
                return ServerInfo(non_retryable=exception.non_retryable)
            case x.ActivityError():
                return _activity_info(exception)
            case x.ChildWorkflowError():
                return _child_info(exception)
            case asyncio.CancelledError():
                return CanceledInfo()
            case BaseExceptionGroup():
                leaves = leaves_of(exception)
                details = self._details([[_leaf_facts(leaf) for leaf in leaves[:LEAVES_MAX]]], notes)
                non_retryable = any(isinstance(leaf, x.ApplicationError) and leaf.non_retryable for leaf in leaves)
                return ApplicationInfo(type=GROUP_TYPE, non_retryable=non_retryable, details=details)
            case _:
                # A value that does not fit will not fit next time either.
                is_final = isinstance(exception, x.DataConversionError)
                return ApplicationInfo(type=type(exception).__name__, non_retryable=is_final)

    def _details(self, details: Sequence[Any], notes: list[str]) -> Payloads:
        try:
            payloads = tuple(self._payload_converter.to_stored(value) for value in details)
        except Exception as problem:  # noqa: BLE001 (the error itself must arrive; the note tells what is missing)
            notes.append(f"its details could not be converted: {_cut(str(problem), 500)}")
            return ()
        size = payloads_size(payloads)
        if size > self._details_left:
            notes.append(f"its details of {size} bytes were left out, the limit is {DETAILS_BYTES_MAX}")
            return ()
        self._details_left -= size
        return payloads


def leaves_of(exception: BaseException) -> list[BaseException]:
    """Give what an exception group holds, groups inside it opened, the leaf that decides its outcome first.

    The first failure decides, in the order of the group; cancellations only when there is nothing else.
    """
    leaves: list[BaseException] = []
    waiting: list[BaseException] = [exception]
    while waiting:
        found = waiting.pop()
        if isinstance(found, BaseExceptionGroup):
            waiting.extend(reversed(found.exceptions))
        else:
            leaves.append(found)
    return sorted(leaves, key=x.is_cancelled_exception)


def _chain_of(exception: BaseException) -> tuple[list[BaseException], Failure | None]:
    """The exceptions from the outermost to the innermost that is kept, and the mark below it if some are cut."""
    chain: list[BaseException] = []
    seen: set[int] = set()
    current: BaseException | None = exception
    while current is not None:
        if id(current) in seen:
            return chain, _cut_mark("the chain of causes comes back to an exception above")
        if len(chain) > CHAIN_MAX:
            return chain, _cut_mark(f"further causes were cut, the limit is {CHAIN_MAX}")
        seen.add(id(current))
        chain.append(current)
        if isinstance(current, x.FailureError) and current.failure is not None:
            return _with_known_failure(chain, current.failure)
        current = _cause_of(current)
    return chain, None


def _with_known_failure(chain: list[BaseException], failure: Failure) -> tuple[list[BaseException], Failure | None]:
    """A failure out of history goes on as it is, unless new exceptions around it make the chain too long."""
    depth = len(chain) - 1
    if depth == 0:
        return chain, None
    kept = _limited(failure, CHAIN_MAX - depth)
    return chain[:-1], kept


def _limited(failure: Failure, causes_max: int) -> Failure:
    links: list[Failure] = []
    current: Failure | None = failure
    while current is not None and len(links) <= causes_max:
        links.append(current)
        current = current.cause
    if current is None:
        return failure
    limited = _cut_mark(f"further causes were cut, the limit is {CHAIN_MAX}")
    for link in reversed(links):
        limited = msgspec.structs.replace(link, cause=limited)
    return limited


def _cause_of(exception: BaseException) -> BaseException | None:
    if exception.__cause__ is None and isinstance(exception, BaseExceptionGroup):
        return leaves_of(exception)[0]
    return exception.__cause__


def _cut_mark(reason: str) -> Failure:
    return Failure(message=f"[{reason}]", source=SOURCE, info=ApplicationInfo(type=CUT_TYPE))


def _leaf_facts(leaf: BaseException) -> dict[str, str]:
    return {"type": _type_of(leaf), "message": _cut(_message_of(leaf), 1_000)}


def _type_of(exception: BaseException) -> str:
    if isinstance(exception, x.ApplicationError) and exception.type:
        return exception.type
    return type(exception).__name__


def _message_of(exception: BaseException) -> str:
    if isinstance(exception, BaseExceptionGroup):
        leaves = leaves_of(exception)
        lines = [f"{_type_of(leaf)}: {_cut(_innermost_message(leaf), 300)}" for leaf in leaves[:LEAVES_MAX]]
        return "\n- ".join([f"{exception.message} ({len(leaves)} in all)", *lines])
    try:
        return exception.message if isinstance(exception, x.FailureError) else str(exception)
    except Exception as problem:  # noqa: BLE001 (a foreign __str__ may raise anything)
        return f"<the text of this {type(exception).__name__} could not be made: {type(problem).__name__}>"


def _innermost_message(leaf: BaseException) -> str:
    """The message of a leaf; for the wrappers that activities and children put around it, with the reason."""
    wrappers = (x.ActivityError, x.ChildWorkflowError)
    if isinstance(leaf, wrappers) and leaf.cause is not None:
        return f"{_message_of(leaf)} ({_type_of(leaf.cause)}: {_message_of(leaf.cause)})"
    return _message_of(leaf)


def notes_of(exception: BaseException) -> tuple[str, ...]:
    """What was added to an error by `add_note`, but for the place where it was raised before it came out of history."""
    notes = [note for note in getattr(exception, "__notes__", ()) if isinstance(note, str)]
    told = [_cut(note, NOTE_CHARS_MAX) for note in notes if not note.startswith(_PLACE)]
    return tuple(told[:NOTES_MAX])


def _stack_trace_of(exception: BaseException) -> str:
    if exception.__traceback__ is None:
        return ""
    frames = traceback.extract_tb(exception.__traceback__, limit=-FRAMES_MAX)
    return _cut(stack_text(frames), STACK_CHARS_MAX)


def _cut(text: str, chars_max: int) -> str:
    """Cut the middle out of a long text, and make sure that what is left is valid Unicode."""
    if len(text) > chars_max:
        half = (chars_max - len(_CUT_TEXT)) // 2
        text = text[:half] + _CUT_TEXT + text[-half:]
    return text.encode("utf-8", "replace").decode("utf-8") if not text.isascii() else text


def _activity_info(error: x.ActivityError) -> ActivityInfo:
    return ActivityInfo(
        scheduled_event_id=error.scheduled_event_id,
        started_event_id=error.started_event_id,
        identity=error.identity,
        activity_type=error.activity_type,
        activity_id=error.activity_id,
        retry_state=error.retry_state,
    )


def _child_info(error: x.ChildWorkflowError) -> ChildWorkflowExecutionInfo:
    return ChildWorkflowExecutionInfo(
        namespace=error.namespace,
        workflow_id=error.workflow_id,
        run_id=error.run_id,
        workflow_type=error.workflow_type,
        initiated_event_id=error.initiated_event_id,
        started_event_id=error.started_event_id,
        retry_state=error.retry_state,
    )


# --- failure to exception --------------------------------------------------------------------------------------------


def _read(failure: Failure, payload_converter: PayloadConverter) -> BaseException:
    links: list[Failure] = []
    current: Failure | None = failure
    while current is not None:
        links.append(current)
        current = current.cause
    error: BaseException | None = None
    for link in reversed(links):
        made = _exception_of(link, payload_converter)
        made.__cause__ = error
        error = made
    assert error is not None, "a failure gives at least one exception"
    return error


def _exception_of(failure: Failure, payload_converter: PayloadConverter) -> x.FailureError:
    shown = _with_attributes(failure, payload_converter)
    error = _bare_exception(shown, payload_converter)
    error._failure = failure
    if shown.stack_trace:
        error.add_note(f"{_PLACE}\n{shown.stack_trace.rstrip()}")
    for note in shown.notes:
        error.add_note(note)
    return error


def _with_attributes(failure: Failure, payload_converter: PayloadConverter) -> Failure:
    """Bring back message, stack trace and notes, if they were put into a payload that can be read here."""
    if failure.encoded_attributes is None:
        return failure
    attributes = _detail(failure.encoded_attributes, payload_converter)
    if not isinstance(attributes, dict):
        return failure
    message, stack_trace, notes = (attributes.get(name) for name in ("message", "stack_trace", "notes"))
    return msgspec.structs.replace(
        failure,
        message=message if isinstance(message, str) else failure.message,
        stack_trace=stack_trace if isinstance(stack_trace, str) else failure.stack_trace,
        notes=tuple(str(note) for note in notes) if isinstance(notes, list | tuple) else failure.notes,
    )


def _bare_exception(failure: Failure, payload_converter: PayloadConverter) -> x.FailureError:
    message = failure.message
    match failure.info:
        case None:
            return x.FailureError(message)
        case ApplicationInfo() as info:
            return x.ApplicationError(
                message,
                *_details_of(info.details, payload_converter),
                type=info.type or None,
                non_retryable=info.non_retryable,
                next_retry_delay=info.next_retry_delay,
                category=(
                    x.ApplicationErrorCategory.BENIGN
                    if info.category == "Benign"
                    else x.ApplicationErrorCategory.UNSPECIFIED
                ),
            )
        case TimeoutInfo() as info:
            details = _details_of(info.last_heartbeat_details, payload_converter)
            return x.TimeoutError(message, type=info.timeout_type, last_heartbeat_details=details)
        case CanceledInfo() as info:
            return x.CancelledError(message or "Cancelled", *_details_of(info.details, payload_converter))
        case TerminatedInfo():
            return x.TerminatedError(message)
        case ServerInfo() as info:
            return x.ServerError(message, non_retryable=info.non_retryable)
        case ResetWorkflowInfo() as info:
            details = _details_of(info.last_heartbeat_details, payload_converter)
            return x.ApplicationError(message, *details, type="ResetWorkflow")
        case ActivityInfo() as info:
            return _activity_error(message, info)
        case ChildWorkflowExecutionInfo() as info:
            return _child_error(message, info)
        case _:
            assert_never(failure.info)


def _activity_error(message: str, info: ActivityInfo) -> x.ActivityError:
    return x.ActivityError(
        message or "Activity task failed",
        scheduled_event_id=info.scheduled_event_id,
        started_event_id=info.started_event_id,
        identity=info.identity,
        activity_type=info.activity_type,
        activity_id=info.activity_id,
        retry_state=info.retry_state,
    )


def _child_error(message: str, info: ChildWorkflowExecutionInfo) -> x.ChildWorkflowError:
    return x.ChildWorkflowError(
        message or "Child workflow execution failed",
        namespace=info.namespace,
        workflow_id=info.workflow_id,
        run_id=info.run_id,
        workflow_type=info.workflow_type,
        initiated_event_id=info.initiated_event_id,
        started_event_id=info.started_event_id,
        retry_state=info.retry_state,
    )


def _details_of(details: Payloads, payload_converter: PayloadConverter) -> list[Any]:
    return [_detail(stored, payload_converter) for stored in details]


def _detail(stored: StoredPayload, payload_converter: PayloadConverter) -> Any:
    """One detail as a plain value; as it is when it cannot be read, because the error around it must arrive."""
    try:
        return payload_converter.from_stored(stored)
    except Exception:  # noqa: BLE001 (a user's converter may raise anything; the value is handed on unread)
        return RawValue(from_stored(stored))
