"""Checks of what callers and workers send, as words for people.

Owns: the checks that commands and requests share. Never: knows which rejection or failure cause a finding becomes.

How it works: each answers with the finding in words, empty when there is none: what it is, what was expected.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from clew.model.events import ZERO, UserMetadata
from clew.model.limits import DURATION_MAX, Limits
from clew.model.payload import StoredPayload, payloads_size
from clew.model.rejection import Rejection, RejectionCode


def check_id(what: str, value: str, limits: Limits) -> str:
    """A name or id: not empty, at most `limits.id_bytes_max` bytes."""
    if not value:
        return f"{what} is empty; give it a name of 1 to {limits.id_bytes_max} bytes"
    if not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
        return f"{what} {value[:40]!r} holds half of a surrogate pair; give text that is valid UTF-8"
    if len(value) > limits.id_bytes_max // 4 and len(value.encode()) > limits.id_bytes_max:
        return f"{what} {value[:40]!r}… has {len(value.encode())} bytes; at most {limits.id_bytes_max} are allowed"
    return ""


def check_duration(what: str, value: timedelta) -> str:
    """A duration: not negative."""
    return f"{what} is {value}; it must not be negative" if value < ZERO else ""


def cap(value: timedelta) -> timedelta:
    """Durations end at 100 years."""
    return min(value, DURATION_MAX)


def check_payloads(what: str, payloads: Iterable[StoredPayload], limits: Limits) -> str:
    """User data: at most `limits.payload_bytes_max` bytes in all."""
    size = payloads_size(payloads)
    if size > limits.payload_bytes_max:
        return (
            f"{what} takes {size} bytes, at most {limits.payload_bytes_max} are allowed; "
            "pass a reference to data kept elsewhere"
        )
    return ""


def check_memo(memo: dict[str, StoredPayload] | None, limits: Limits) -> str:
    """A memo: at most `limits.memo_bytes_max` bytes in all."""
    if memo and (size := payloads_size(memo.values())) > limits.memo_bytes_max:
        return (
            f"the memo takes {size} bytes, at most {limits.memo_bytes_max} are allowed; keep only what people look up"
        )
    return ""


def check_metadata(metadata: UserMetadata | None, limits: Limits) -> str:
    """Texts for people: bounded."""
    if metadata is None:
        return ""
    for what, payload, bytes_max in (
        ("summary", metadata.summary, limits.summary_bytes_max),
        ("details text", metadata.details, limits.details_bytes_max),
    ):
        if payload is not None and (size := len(memoryview(payload))) > bytes_max:
            return f"the {what} takes {size} bytes, at most {bytes_max} are allowed; shorten it"
    return ""


def refuse(code: RejectionCode, message: str, **details: str) -> Rejection:
    """A rejection."""
    return Rejection(code=code, message=message, details=details)


def sentence(finding: str) -> str:
    """A finding as a sentence of its own; the name of a parameter keeps its case."""
    is_name = "_" in finding.partition(" ")[0]
    return f"{finding if is_name else finding[0].upper() + finding[1:]}."
