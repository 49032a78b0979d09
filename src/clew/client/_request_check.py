"""Requests whose fields have other types than declared are refused before anything is done.

Owns: the check of requests that only a person's program makes now and then. Never: those of every run, whose options
are checked where they are given (``model.option_types``): this costs some microseconds.

How it works: over a link and over HTTP a request is text, and read again by the types of its fields. An engine in the
same process is handed the object itself, so here it is seen whether it could have been read. A value of another type
would else be found deep in the engine, or in the store, when it is too late.
"""

from __future__ import annotations

import functools
from typing import Any, Final, TypeVar

import msgspec
import msgspec.structs

from clew.service import requests as r

R = TypeVar("R", bound=msgspec.Struct)

_CHECKED_AS_OPTIONS: Final = frozenset(
    (
        r.StartWorkflowRequest, r.SignalWithStartRequest, r.SignalWorkflowRequest, r.UpdateWorkflowRequest,
        r.UpdateWithStartRequest, r.PollUpdateRequest, r.QueryWorkflowRequest, r.GetHistoryRequest,
    )
)  # fmt: skip

_REMEDY: Final = "Give each option a value of the type that it is declared with."


def _of_subclass(value: Any) -> Any:
    """The plain text or number that a value of a subclass is, such as a framework's safe text."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    raise TypeError(f"Objects of type {type(value).__name__} are not supported")


_encode: Final = msgspec.json.Encoder(enc_hook=_of_subclass).encode


def checked(call: str, request: R) -> R:
    """Refuse a request that no engine elsewhere could read; give it, its texts and numbers of subclasses made plain.

    Args:
        call: Its name, for the message.
        request: All of it.

    Raises:
        TypeError: A field has a value of another type; names it, by the path in the request.
        ValueError: A text cannot be written in UTF-8.
    """
    kind = type(request)
    if kind in _CHECKED_AS_OPTIONS:
        return request
    try:
        read = _decoder(kind).decode(_encode(request))
    except UnicodeEncodeError as error:
        text = f"{error.object!r:.80}"
        raise ValueError(f"{call}: {text} holds half of a surrogate pair. Give text that is valid UTF-8.") from error
    except msgspec.ValidationError as error:
        raise TypeError(f"{call}: {error}. {_REMEDY}") from error
    except TypeError as error:
        raise TypeError(f"{call}: {error}{_place_of_unreadable(request)}. {_REMEDY}") from error
    plain: dict[str, Any] = {}
    for name in kind.__struct_fields__:
        value, value_read = getattr(request, name), getattr(read, name)
        if type(value) is type(value_read):
            continue
        # Bytes travel as text, so they would pass for it.
        if type(value) is bytes and type(value_read) is str:
            raise TypeError(f"{call}: Expected `str`, got `bytes` - at `$.{name}`. {_REMEDY}")
        if type(value_read) in (str, int) and isinstance(value, type(value_read)):
            plain[name] = value_read
    return msgspec.structs.replace(request, **plain) if plain else request


def _place_of_unreadable(request: msgspec.Struct) -> str:
    for name in request.__struct_fields__:
        try:
            _encode(getattr(request, name))
        except TypeError:
            return f" - at `$.{name}`"
    return ""


@functools.cache
def _decoder(kind: type[msgspec.Struct]) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)
