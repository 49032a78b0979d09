"""How each call of the contract travels: its name, and the codecs of its request and response.

Owns: the table of methods, read from the contract itself, and the codecs of bodies. Never: makes or serves a call.

How it works: a body is JSON, the form in which facts are stored: payloads in it are slices that are copied and never
decoded. The types come from the annotations of ``service.contract.Service``, so a new call of the contract travels
without a word here; codecs are made when first needed.
"""

from __future__ import annotations

import functools
import inspect
import typing
from typing import Any, Final, final

import msgspec

from clew.model.inputs import TaskToken
from clew.model.rejection import Rejection, RejectionCode
from clew.service import requests as r
from clew.service.contract import Service
from clew.service.errors import RPCError

_encoder: Final = msgspec.json.Encoder()

UNREPEATABLE: Final = frozenset(
    (
        "terminate_workflow", "delete_workflow", "set_current_version", "set_ramping_version",
        "delete_deployment_version", "create_namespace", "create_api_key", "rotate_api_key", "revoke_api_key",
    )
)  # fmt: skip
"""Calls whose repeat would be answered otherwise than the first time, and that carry no request id to know it by."""

ABANDONABLE: Final = frozenset(("get_history", "poll_update", "query_workflow"))
"""Calls that change nothing: when their caller has gone, they are taken back."""

REPORTS: Final = frozenset(
    (
        "complete_workflow_task", "fail_workflow_task", "record_markers", "answer_query", "complete_activity",
        "fail_activity", "cancel_activity", "release_activity", "detach_activity", "heartbeat_activity",
    )
)  # fmt: skip
"""What workers say about tasks that they were given: never held up behind calls that wait."""


TASK_ANSWERS: Final = frozenset(("complete_workflow_task", "fail_workflow_task", "record_markers"))
"""Reports about a workflow task; they may rest on one that was given out early (``link.early``)."""


ENDS_OF_ATTEMPTS: Final = frozenset(
    ("complete_activity", "fail_activity", "cancel_activity", "release_activity", "detach_activity")
)
"""Reports after which a worker has an attempt at an activity no longer."""


@final
class Method:
    """One call of the contract.

    Attributes:
        name: As in the contract, and on the wire.
        is_repeatable: Whether a call may be made again when nobody knows if it arrived.
        is_abandonable: See `ABANDONABLE`.
        is_report: See `REPORTS`.
        is_task_answer: See `TASK_ANSWERS`.
        is_end_of_attempt: See `ENDS_OF_ATTEMPTS`.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_repeatable = name not in UNREPEATABLE
        self.is_abandonable = name in ABANDONABLE
        self.is_report = name in REPORTS
        self.is_task_answer = name in TASK_ANSWERS
        self.is_end_of_attempt = name in ENDS_OF_ATTEMPTS

    @functools.cached_property
    def _types(self) -> tuple[Any, Any]:
        hints = typing.get_type_hints(getattr(Service, self.name))
        response = typing.get_args(hints.pop("return"))[0]
        (request,) = hints.values()
        return request, response

    @functools.cached_property
    def _request_decoder(self) -> msgspec.json.Decoder[Any]:
        return msgspec.json.Decoder(self._types[0])

    @functools.cached_property
    def _response_decoder(self) -> msgspec.json.Decoder[Any]:
        return msgspec.json.Decoder(self._types[1])

    def decode_request(self, body: bytes) -> Any:
        """The request.

        Raises:
            RPCError: The body is not one.
        """
        try:
            return self._request_decoder.decode(body)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise RPCError(_unreadable(f"The request of {self.name}", body, error)) from error

    def decode_response(self, body: bytes) -> Any:
        """The response.

        Raises:
            RPCError: The body is not one.
        """
        try:
            return self._response_decoder.decode(body)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise RPCError(_unreadable(f"The answer to {self.name}", body, error)) from error


def _is_call(name: str) -> bool:
    return not name.startswith("_") and inspect.isfunction(getattr(Service, name)) and name != "attach_worker"


METHODS: Final[dict[str, Method]] = {name: Method(name) for name in vars(Service) if _is_call(name)}
"""Every call but ``attach_worker``, which has a message of its own."""


def encode_body(value: Any) -> bytes:
    """A request, a response, or None."""
    return _encoder.encode(value)


_hello_decoder: Final = msgspec.json.Decoder(r.WorkerHello)
_workflow_task_decoder: Final = msgspec.json.Decoder(r.WorkflowTask)
_activity_task_decoder: Final = msgspec.json.Decoder(r.ActivityTask)
_token_decoder: Final = msgspec.json.Decoder(TaskToken)
_rejection_decoder: Final = msgspec.json.Decoder(Rejection)

decode_workflow_task: Final = _workflow_task_decoder.decode
decode_activity_task: Final = _activity_task_decoder.decode
decode_token: Final = _token_decoder.decode
"""What a worker or a node says of a token, where that is all it says."""


def decode_worker_hello(body: bytes) -> r.WorkerHello:
    """What a worker says when it attaches.

    Raises:
        RPCError: The body is not that.
    """
    try:
        return _hello_decoder.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise RPCError(_unreadable("The request of attach_worker", body, error)) from error


def decode_rejection(body: bytes) -> Rejection:
    """A refusal; one with a code that this build does not know becomes INTERNAL, and says so."""
    try:
        return _rejection_decoder.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        return _unreadable("A refusal", body, error, RejectionCode.INTERNAL)


def _unreadable(
    what: str, body: bytes, error: Exception, code: RejectionCode = RejectionCode.INVALID_ARGUMENT
) -> Rejection:
    return Rejection(
        code=code,
        message=(
            f"{what} cannot be read ({len(body)} bytes: {error}). Expected: JSON as this version of the contract has "
            "it; use the same version of Clew at both ends."
        ),
    )
