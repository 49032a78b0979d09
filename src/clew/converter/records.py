"""Decoding of classes with fields: dataclasses, typed dicts, named tuples, models of pydantic and msgspec.

Owns: how each is made from a JSON object or list. Never: finds a class by a name in the data.
"""

# Values and hints are of any type here, by nature; what is found inside them has no static type.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownLambdaType=false

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Final, get_origin

import msgspec

from clew.converter.annotations import (
    dataclass_fields,
    field_types,
    has_init_vars,
    typed_dict_required,
)
from clew.converter.misfit import Misfit, item_step, shown, type_name

Decode = Callable[[Any], Any]
Compile = Callable[[Any], Decode]

_encoder: Final = msgspec.json.Encoder()


def compile_dataclass(hint: Any, compile_hint: Compile) -> Decode:
    """Give the decoder of a dataclass, or of a generic alias of one."""
    cls = get_origin(hint) or hint
    if has_init_vars(cls):
        raise Misfit(f"the dataclass {type_name(cls)} takes InitVar arguments, which no payload has")
    types_by_name = field_types(hint)
    fields = dataclass_fields(hint)
    decodes = {
        field.name: _field_decoder(compile_hint, types_by_name.get(field.name, Any), field.name) for field in fields
    }
    required = [
        field.name
        for field in fields
        if field.init and field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]
    later = frozenset(field.name for field in fields if not field.init)

    def make(value: Any) -> Any:
        found = _decode_fields(value, decodes, required, cls)
        made = _construct(cls, {name: item for name, item in found.items() if name not in later})
        for name in later & found.keys():
            object.__setattr__(made, name, found[name])
        return made

    return make


def compile_typed_dict(hint: Any, compile_hint: Compile) -> Decode:
    """Give the decoder of a typed dict. Keys it does not name are kept as they are."""
    cls = get_origin(hint) or hint
    types_by_name = field_types(hint)
    decodes = {name: _field_decoder(compile_hint, inner, name) for name, inner in types_by_name.items()}
    required = sorted(typed_dict_required(hint, types_by_name))

    def make(value: Any) -> Any:
        found = _decode_fields(value, decodes, required, cls)
        return {name: found.get(name, item) for name, item in value.items()}

    return make


def compile_named_tuple(hint: Any, compile_hint: Compile) -> Decode:
    """Give the decoder of a named tuple, which is a list in JSON; missing items at the end take their defaults."""
    cls = get_origin(hint) or hint
    types_by_name = field_types(hint)
    names: tuple[str, ...] = cls._fields
    decodes = [compile_hint(types_by_name.get(name, Any)) for name in names]
    required_count = len(names) - len(cls._field_defaults)

    def make(value: Any) -> Any:
        if type(value) is not list or not required_count <= len(value) <= len(names):
            raise Misfit(f"expected a list of the {len(names)} items of {type_name(cls)}, got {shown(value)}")
        items: list[Any] = []
        for index, item in enumerate(value):
            try:
                items.append(decodes[index](item))
            except Misfit as misfit:
                raise misfit.inside(item_step(index))  # noqa: B904 (the same exception goes on)
        return cls(*items)

    return make


def compile_pydantic(hint: Any) -> Decode:
    """Give the decoder of a model or dataclass of pydantic: its own validation of JSON."""
    cls = get_origin(hint) or hint

    def make(value: Any) -> Any:
        try:
            return cls.__pydantic_validator__.validate_json(_encoder.encode(value))
        except ValueError as error:
            raise Misfit(f"pydantic refuses it: {error}") from error

    return make


def compile_struct(hint: Any) -> Decode:
    """Give the decoder of a msgspec struct."""
    try:
        decoder = msgspec.json.Decoder(hint)
    except (TypeError, NameError) as error:
        raise Misfit(f"msgspec cannot decode {type_name(hint)}: {error}") from error

    def make(value: Any) -> Any:
        try:
            return decoder.decode(_encoder.encode(value))
        except msgspec.MsgspecError as error:
            raise Misfit(f"msgspec refuses it: {error}") from error

    return make


def _field_decoder(compile_hint: Compile, hint: Any, name: str) -> Decode:
    try:
        return compile_hint(hint)
    except Misfit as misfit:
        raise misfit.inside(f".{name}")  # noqa: B904 (the same exception goes on)


def _decode_fields(value: Any, decodes: Mapping[str, Decode], required: list[str], cls: Any) -> dict[str, Any]:
    if type(value) is not dict:
        raise Misfit(f"expected an object with the fields of {type_name(cls)}, got {shown(value)}")
    for name in required:
        if name not in value:
            raise Misfit(
                f"the field {name!r} of {type_name(cls)} is missing",
                "Send it, or give the field a default so that older data still fits.",
            )
    found: dict[str, Any] = {}
    for name, decode in decodes.items():
        if name not in value:
            continue
        try:
            found[name] = decode(value[name])
        except Misfit as misfit:
            raise misfit.inside(f".{name}")  # noqa: B904 (the same exception goes on)
    return found


def _construct(cls: Any, arguments: dict[str, Any]) -> Any:
    try:
        return cls(**arguments)
    except Exception as error:
        raise Misfit(f"making a {type_name(cls)} raised {type(error).__name__}: {error}") from error
