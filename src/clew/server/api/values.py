"""Values on their way through HTTP: request structs out of JSON and parameters, payloads checked on the way in.

Owns: which part of a contract request a body carries, and that no payload gets in that a worker could not read.
Never: routes, or what a request means.

How it works: the body of an operation is a struct that is made from the contract's request by leaving out what the path
or the server says, so that contract, parser and OpenAPI document cannot differ. Payloads stay slices of JSON; each is
brought into its stored form (``model.payload``).
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

import msgspec

from clew.model.payload import ENCODING_KEY, JSON_PLAIN, Payload, from_stored, to_stored
from clew.server.problems import HTTPProblem, bad_request

_TYPE_KEY: Final = "type"
_PAYLOAD_MARK: Final = b'{"$payload"'


def body_of(request: type[msgspec.Struct], name: str, *, without: Iterable[str], optional: Iterable[str] = ()) -> Any:
    """A struct type with the fields of `request`, but for those in `without`.

    Args:
        request: A request of the contract.
        name: Of the new type; the OpenAPI document shows it.
        without: Fields that come from elsewhere.
        optional: Fields that may be left out of the body although the request needs them (an empty text then).
    """
    left_out, may_lack = set(without), set(optional)
    fields: list[Any] = []
    for field in msgspec.structs.fields(request):
        if field.name in left_out:
            continue
        if field.name in may_lack:
            fields.append((field.name, field.type, ""))
        elif field.default is not msgspec.NODEFAULT:
            fields.append((field.name, field.type, field.default))
        elif field.default_factory is not msgspec.NODEFAULT:
            fields.append((field.name, field.type, msgspec.field(default_factory=field.default_factory)))
        else:
            fields.append((field.name, field.type))
    return made_struct(name, fields, inspect.getdoc(request) or "")


def made_struct(name: str, fields: list[Any], doc: str) -> Any:
    """A struct type of these fields that refuses unknown ones."""
    required = [field for field in fields if len(field) == 2]
    optional = [field for field in fields if len(field) == 3]
    return msgspec.defstruct(
        name,
        required + optional,
        namespace={"__doc__": doc},
        module=__name__,
        frozen=True,
        kw_only=True,
        forbid_unknown_fields=True,
        omit_defaults=True,
    )


def read_body(data: bytes, kind: Any) -> Any:
    """The struct that a JSON body stands for, with its payloads checked.

    Raises:
        HTTPProblem: It is not JSON, or does not fit; the message says where.
    """
    try:
        data.decode()
        value = msgspec.json.decode(data or b"{}", type=kind)
    except msgspec.ValidationError as error:
        raise bad_request(f"The body does not fit: {error}.") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise bad_request(f"The body is not JSON in UTF-8: {error}.") from error
    return with_stored_payloads(value)


def read_parameters(parameters: Mapping[str, str], kind: Any) -> Any:
    """The struct that the parameters of a query stand for.

    Raises:
        HTTPProblem: There is an unknown one, or one does not fit.
    """
    known = {field.encode_name for field in msgspec.structs.fields(kind)}
    unknown = sorted(set(parameters) - known)
    if unknown:
        there_are = f"there are: {', '.join(sorted(known))}" if known else "there are none here"
        raise bad_request(f"There is no parameter {unknown[0]!r}; {there_are}.")
    try:
        return msgspec.convert(dict(parameters), kind, strict=False)
    except (msgspec.ValidationError, ValueError, OverflowError) as error:
        raise bad_request(f"A parameter does not fit: {error}.") from error


def with_stored_payloads(value: Any) -> Any:
    """The same value with each payload in its stored form.

    Raises:
        HTTPProblem: A payload is written as an envelope, but is none.
    """
    try:
        return _stored(value)
    except RecursionError as error:
        raise bad_request("The body is nested too deeply.") from error


def _stored(value: Any) -> Any:
    if isinstance(value, msgspec.Raw):
        return _stored_payload(value)
    if isinstance(value, msgspec.Struct):
        changed: dict[str, Any] = {}
        for name in value.__struct_fields__:
            old = getattr(value, name)
            new = _stored_attributes(old) if name == "search_attributes" and old else _stored(old)
            if new is not old:
                changed[name] = new
        return msgspec.structs.replace(value, **changed) if changed else value
    if isinstance(value, tuple) and value:
        return tuple(_stored(item) for item in cast(tuple[Any, ...], value))
    if isinstance(value, list) and value:
        return [_stored(item) for item in cast(list[Any], value)]
    if isinstance(value, dict) and value:
        return {key: _stored(item) for key, item in cast(dict[Any, Any], value).items()}
    return cast(Any, value)


def _stored_payload(raw: msgspec.Raw) -> msgspec.Raw:
    data = bytes(raw)
    try:
        if data.replace(b" ", b"")[: len(_PAYLOAD_MARK)] == _PAYLOAD_MARK:
            return to_stored(from_stored(msgspec.Raw(msgspec.json.format(data, indent=-1))))
        msgspec.json.decode(data, type=msgspec.Raw)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise bad_request(
            f"A payload is not what it says: {error}. Give plain JSON, or an envelope "
            '{"$payload": {"metadata": {NAME: BASE64}, "data": BASE64}}.'
        ) from error
    return to_stored(Payload({ENCODING_KEY: JSON_PLAIN}, data))


_KIND_OF_VALUE: Final[tuple[tuple[type, str], ...]] = (
    (bool, "Bool"),
    (int, "Int"),
    (float, "Double"),
    (str, "Keyword"),
    (list, "KeywordList"),
)


def _stored_attributes(attributes: Mapping[str, msgspec.Raw]) -> dict[str, msgspec.Raw]:
    """Search attributes as they are stored: with the type that each is searched by.

    ``{"type": "Datetime", "value": …}`` says the type; a plain value has that of its JSON.
    """
    stored: dict[str, msgspec.Raw] = {}
    for name, raw in attributes.items():
        value = msgspec.json.decode(raw)
        if isinstance(value, dict) and "$payload" in value:
            stored[name] = _stored_payload(raw)
            continue
        kind = next((kind for python, kind in _KIND_OF_VALUE if isinstance(value, python)), None)
        if isinstance(value, dict):
            said = cast(dict[str, Any], value)
            if set(said) == {"type", "value"} and isinstance(said["type"], str):
                kind, value = said["type"], said["value"]
        if kind is None or value is None:
            raise bad_request(
                f"Search attribute {name!r} is {bytes(raw)[:80].decode('utf-8', 'replace')}; give a text, number, "
                'boolean or list of texts, or {"type": "Datetime", "value": …} to say how it is searched.'
            )
        metadata = {ENCODING_KEY: JSON_PLAIN, _TYPE_KEY: kind.encode()}
        stored[name] = to_stored(Payload(metadata, msgspec.json.encode(value)))
    return stored


def too_large(limit: int) -> HTTPProblem:
    """The refusal of a body that is larger than the server takes."""
    return HTTPProblem(413, "body_too_large", f"The body has more than {limit} bytes; send less at a time.")
