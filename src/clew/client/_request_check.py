"""Requests whose fields have other types than declared are refused before anything is done.

Owns: the check of requests that only a person's program makes now and then. Never: those of every run, whose options
are checked where they are given (``model.option_types``): this costs some microseconds.

How it works: over a link and over HTTP a request is text, and read again by the types of its fields. An engine in the
same process is handed the object itself, so here it is seen whether it could have been read. A value of another type
would else be found deep in the engine, or in the store, when it is too late.
"""

from __future__ import annotations

import functools
from typing import Any, Final

import msgspec

from clew.service import requests as r

_CHECKED_AS_OPTIONS: Final = frozenset(
    (
        r.StartWorkflowRequest, r.SignalWithStartRequest, r.SignalWorkflowRequest, r.UpdateWorkflowRequest,
        r.UpdateWithStartRequest, r.PollUpdateRequest, r.QueryWorkflowRequest, r.GetHistoryRequest,
    )
)  # fmt: skip

_REMEDY: Final = "Give each option a value of the type that it is declared with."

_encode: Final = msgspec.json.Encoder().encode


def check_request(call: str, request: msgspec.Struct) -> None:
    """Refuse a request that no engine elsewhere could read.

    Args:
        call: Its name, for the message.
        request: All of it.

    Raises:
        TypeError: A field has a value of another type; names it, by the path in the request.
        ValueError: A text cannot be written in UTF-8.
    """
    kind = type(request)
    if kind in _CHECKED_AS_OPTIONS:
        return
    try:
        read = _decoder(kind).decode(_encode(request))
    except UnicodeEncodeError as error:
        text = f"{error.object!r:.80}"
        raise ValueError(f"{call}: {text} holds half of a surrogate pair. Give text that is valid UTF-8.") from error
    except (msgspec.ValidationError, TypeError) as error:
        raise TypeError(f"{call}: {error}. {_REMEDY}") from error
    for name in kind.__struct_fields__:
        # Bytes travel as text, so they would pass for it.
        if type(getattr(request, name)) is bytes and type(getattr(read, name)) is str:
            raise TypeError(f"{call}: Expected `str`, got `bytes` - at `$.{name}`. {_REMEDY}")


@functools.cache
def _decoder(kind: type[msgspec.Struct]) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)
