"""JSON to values of the expected types.

Owns: what each type hint accepts and gives (docs/reference/data-conversion.md has the table).
Never: imports, looks up or calls anything that is named in the data; only the hint, which is code, says what is made.

How it works: a hint is compiled once into a `Decode`, a function from plain JSON values to the value, and kept. Where
msgspec gives exactly the same (``fastpath.is_exact``) the bytes go through its decoder first, and only what that
refuses is looked at again here, for the right message. Rules: types are strict (no text for a number, no 1.0 for an
int); unknown fields are ignored and missing ones take their default, so that old data meets newer classes; a union
takes the branch that gives the very same JSON back, and refuses what fits several alike (``unions``).
"""

# Values and hints are of any type here, by nature; what is found inside them has no static type.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownLambdaType=false

from __future__ import annotations

import collections
import collections.abc
import dataclasses
import typing
from collections.abc import Callable
from typing import Any, Final, TypeAlias, final, get_args, get_origin

import msgspec

from clew.converter import fastpath, records, scalars, unions
from clew.converter.annotations import (
    NoneType,
    is_enum,
    is_named_tuple,
    is_pydantic,
    is_typed_dict,
    is_union,
    unwrap,
)
from clew.converter.encoding import ValueEncoder
from clew.converter.misfit import Misfit, item_step, key_step, shown, type_name
from clew.exceptions import DecodeError

Decode: TypeAlias = Callable[[Any], Any]
CustomDecode: TypeAlias = Callable[[Any], Decode | None]
"""Gives a decoder of its own for a hint, or None to leave it to the built-in rules."""

_ANYTHING: Final[tuple[Any, ...]] = (Any, object)
_LISTS: Final[tuple[Any, ...]] = (
    list,
    collections.abc.Sequence,
    collections.abc.MutableSequence,
    collections.abc.Collection,
    collections.abc.Iterable,
)
_SETS: Final[tuple[Any, ...]] = (set, collections.abc.Set, collections.abc.MutableSet)
_DICTS: Final[tuple[Any, ...]] = (dict, collections.abc.Mapping, collections.abc.MutableMapping)

_plain_decoder: Final = msgspec.json.Decoder()
_plain_encoder: Final = msgspec.json.Encoder()


@final
class ValueDecoder:
    """Decodes values by type hint, with a memory of how each hint is done.

    Args:
        encoder: Of the same converter; unions and enums compare by what it makes.
        custom: A user's own rules, asked first for every hint.
    """

    def __init__(self, encoder: ValueEncoder, custom: CustomDecode | None = None) -> None:
        self._encoder = encoder
        self._custom = custom
        self._compiled: dict[Any, Decode] = {}
        self._by_hint: dict[Any, Callable[[bytes], Any]] = {}
        self._unhashable: dict[int, Any] = {}

    def decode(self, data: bytes, hint: Any = Any) -> Any:
        """Decode one JSON document to the type that `hint` names.

        Raises:
            DecodeError: It does not fit; the message has the path, the reason and the remedy.
        """
        try:
            return self._find(hint)(data)
        except Misfit as misfit:
            raise _refusal(hint, misfit.path, misfit.problem, misfit.remedy) from misfit.__cause__
        except RecursionError as error:
            raise _refusal(hint, "$", "the data is nested too deeply", "") from error
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise _refusal(hint, "$", f"the data is not valid JSON ({error})", "") from error

    def _find(self, hint: Any) -> Callable[[bytes], Any]:
        try:
            return self._by_hint[hint]
        except (KeyError, TypeError):
            key = self._key(hint)
        decode = self._by_hint.get(key)
        if decode is None:
            decode = self._by_hint[key] = self._decoder_for(hint)
        return decode

    def _decoder_for(self, hint: Any) -> Callable[[bytes], Any]:
        decode = self.compile(hint)
        if decode is _identity:
            return _plain_decoder.decode

        def slow(data: bytes) -> Any:
            return decode(_plain_decoder.decode(data))

        if self._custom is not None or not fastpath.is_exact(hint):
            return slow
        return fastpath.with_fallback(hint, slow)

    def compile(self, hint: Any) -> Decode:
        """Give the function from plain JSON values to values of `hint`.

        Raises:
            Misfit: Nothing that comes out of JSON can be of that type.
        """
        key = self._key(hint)
        known = self._compiled.get(key)
        if known is not None:
            return known
        # A class may hold itself: until it is done, its inner uses find it late.
        self._compiled[key] = lambda value: self._compiled[key](value)
        try:
            self._compiled[key] = compiled = self._compile(hint)
        except BaseException:
            del self._compiled[key]
            raise
        return compiled

    def _key(self, hint: Any) -> Any:
        """What a hint is remembered by: itself, or its identity where its metadata cannot be hashed."""
        try:
            hash(hint)
        except TypeError:
            self._unhashable[id(hint)] = hint  # kept alive, so that the identity stays its own
            return ("unhashable", id(hint))
        return hint

    def _compile(self, hint: Any) -> Decode:
        custom = self._custom(hint) if self._custom is not None else None
        return custom if custom is not None else self.compile_builtin(hint)

    def compile_builtin(self, hint: Any) -> Decode:
        """Give what the built-in rules make of `hint` itself; inner hints may still be custom.

        Raises:
            Misfit: Nothing that comes out of JSON can be of that type.
        """
        inner = unwrap(hint)
        if inner is not hint:
            return self.compile(inner)
        if inner in _ANYTHING:
            return _identity
        if is_union(inner):
            return unions.compile_union(inner, self.compile, self._encoder)
        origin = get_origin(inner)
        if origin is typing.Literal:
            return scalars.compile_literal(inner, self._encoder)
        return self._compile_container(inner, origin or inner) or self._compile_class(inner, origin or inner)

    def _compile_container(self, hint: Any, origin: Any) -> Decode | None:
        args = get_args(hint)
        if origin is tuple:
            return self._tuple(args)
        if origin in _LISTS:
            return self._items(args, list)
        if origin in _SETS:
            return self._items(args, set)
        if origin in (frozenset, collections.deque):
            return self._items(args, origin)
        if origin in _DICTS:
            return self._mapping(args, dict)
        if origin is collections.OrderedDict:
            return self._mapping(args, collections.OrderedDict)
        if origin is collections.defaultdict:
            return self._mapping(args, lambda found: collections.defaultdict(None, found))
        if origin is collections.Counter:
            return self._mapping((*args, int), collections.Counter)
        return None

    def _compile_class(self, hint: Any, origin: Any) -> Decode:
        if not isinstance(origin, type):
            raise Misfit(f"{type_name(hint)} is no type that a payload can become")
        if is_pydantic(origin):
            return records.compile_pydantic(hint)
        if is_enum(origin):
            return scalars.compile_enum(origin, self._encoder)
        if issubclass(origin, msgspec.Struct):
            return records.compile_struct(hint)
        if is_typed_dict(origin):
            return records.compile_typed_dict(hint, self.compile)
        if is_named_tuple(origin):
            return records.compile_named_tuple(hint, self.compile)
        if dataclasses.is_dataclass(origin):
            return records.compile_dataclass(hint, self.compile)
        return self._compile_subclass(origin) or scalars.compile_scalar(origin)

    def _compile_subclass(self, cls: type[Any]) -> Decode | None:
        """Subclasses of the containers, such as ``class Tags(list[str])``."""
        for base, compile_base in ((list, self._items), (set, self._items), (frozenset, self._items)):
            if issubclass(cls, base):
                return compile_base(_args_of_base(cls, base), cls)
        if issubclass(cls, dict):
            return self._mapping(_args_of_base(cls, dict), cls)
        return None

    def _items(self, args: tuple[Any, ...], make: Callable[[list[Any]], Any]) -> Decode:
        decode = self.compile(args[0]) if args else _identity

        def items(value: Any) -> Any:
            if type(value) is not list:
                raise Misfit(f"expected a list, got {shown(value)}")
            return make(value if decode is _identity else _each(value, decode))

        return items

    def _tuple(self, args: tuple[Any, ...]) -> Decode:
        if not args or (len(args) == 2 and args[1] is Ellipsis):
            return self._items(args[:1], tuple)
        if args == ((),):
            args = ()
        decodes = [self.compile(arg) for arg in args]

        def fixed(value: Any) -> Any:
            if type(value) is not list or len(value) != len(decodes):
                raise Misfit(f"expected a list of {len(decodes)}, got {shown(value)}")
            return tuple(_decode_item(decode, value, index) for index, decode in enumerate(decodes))

        return fixed

    def _mapping(self, args: tuple[Any, ...], make: Callable[[dict[Any, Any]], Any]) -> Decode:
        decode_key = scalars.compile_key(args[0], self.compile, self._encoder) if args else None
        decode = self.compile(args[1]) if len(args) > 1 else _identity

        def mapping(value: Any) -> Any:
            if type(value) is not dict:
                raise Misfit(f"expected an object, got {shown(value)}")
            if decode_key is None and decode is _identity:
                return value if make is dict else make(value)
            found: dict[Any, Any] = {}
            for text, item in value.items():
                try:
                    found[text if decode_key is None else decode_key(text)] = decode(item)
                except Misfit as misfit:
                    raise misfit.inside(key_step(text))  # noqa: B904 (the same exception goes on)
            return found if make is dict else make(found)

        return mapping


def _identity(value: Any) -> Any:
    return value


def _each(value: list[Any], decode: Decode) -> list[Any]:
    found: list[Any] = []
    for item in value:
        try:
            found.append(decode(item))
        except Misfit as misfit:
            raise misfit.inside(item_step(len(found)))  # noqa: B904 (the same exception goes on)
    return found


def _decode_item(decode: Decode, value: list[Any], index: int) -> Any:
    try:
        return decode(value[index])
    except Misfit as misfit:
        raise misfit.inside(item_step(index))  # noqa: B904 (the same exception goes on)


def _args_of_base(cls: type[Any], base: type[Any]) -> tuple[Any, ...]:
    for found in getattr(cls, "__orig_bases__", ()):
        if get_origin(found) is base:
            return get_args(found)
    return ()


def _refusal(hint: Any, path: str, problem: str, remedy: str) -> DecodeError:
    expected = "a plain value" if hint in _ANYTHING else type_name(NoneType if hint is None else hint)
    message = f"Cannot convert a payload to {expected}: at {path}, {problem}. "
    usual = "Send a value of that type, or change the annotation of the receiving function to what is sent."
    return DecodeError(message + (remedy or usual), path=path)
