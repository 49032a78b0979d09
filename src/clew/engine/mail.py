"""Mail between nodes: what must arrive, as long as the receiver lives.

Owns: the kinds of mail and their bytes. Never: how it travels (``ports.store``), or what is done about it.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

from clew.core.transition import UpdateSettled
from clew.model.rejection import Rejection
from clew.service.requests import ActivityCancelReason, QueryWorkflowRequest, QueryWorkflowResponse, TaskToken


class _Mail(msgspec.Struct, frozen=True, kw_only=True, tag=True, gc=False):
    """Base of the kinds of mail."""


class Ask(_Mail, frozen=True, kw_only=True):
    """A question for workflow code whose worker is attached to the receiver."""

    sender: str
    question_id: str
    request: QueryWorkflowRequest


class Answer(_Mail, frozen=True, kw_only=True):
    """The answer to a question: a response, or a rejection."""

    question_id: str
    response: QueryWorkflowResponse | None = None
    rejection: Rejection | None = None


class CancelAttempt(_Mail, frozen=True, kw_only=True):
    """An attempt that a session of the receiver has should stop."""

    session_id: str
    token: TaskToken
    reason: ActivityCancelReason


class UpdateRejected(_Mail, frozen=True, kw_only=True):
    """An update that somebody waits for at the receiver ended without a trace in history."""

    run_key: int
    settled: UpdateSettled


Mail: TypeAlias = Ask | Answer | CancelAttempt | UpdateRejected

_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(Mail)


def encode_mail(mail: Mail) -> bytes:
    """The bytes of a piece of mail."""
    return _encoder.encode(mail)


def decode_mail(body: bytes) -> Mail:
    """The mail of these bytes.

    Raises:
        msgspec.DecodeError: A node of another release wrote it.
    """
    return _decoder.decode(body)
