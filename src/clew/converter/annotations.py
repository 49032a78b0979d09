"""Reading annotations: what a type hint means once names, aliases and type variables are resolved.

Owns: unwrapping of hints, and the fields of classes with their types, also for generic classes.
Never: converts a value.
"""

# Values and hints are of any type here, by nature; what is found inside them has no static type.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownLambdaType=false

from __future__ import annotations

import dataclasses
import enum
import inspect
import types
import typing
from collections.abc import Mapping
from typing import Annotated, Any, Final, NewType, TypeVar, Union, get_args, get_origin

from clew.converter.misfit import Misfit, type_name

NoneType: Final = type(None)

_WRAPPER_NAMES: Final = frozenset({"Required", "NotRequired", "ReadOnly", "Final", "ClassVar"})


def unwrap(hint: Any) -> Any:
    """Take away what does not change the values: `Annotated`, `NewType`, `type` aliases, `Required`, type variables."""
    while True:
        if hint is None:
            return NoneType
        if isinstance(hint, NewType):
            hint = hint.__supertype__
        elif isinstance(hint, TypeVar):
            hint = _meaning_of(hint)
        elif get_origin(hint) is Annotated or _wrapper_name(hint):
            hint = get_args(hint)[0]
        elif type(hint).__name__ == "TypeAliasType":
            hint = hint.__value__
        elif type(get_origin(hint)).__name__ == "TypeAliasType":
            alias = get_origin(hint)
            hint = substitute(alias.__value__, dict(zip(alias.__type_params__, get_args(hint), strict=False)))
        else:
            return hint


def is_union(hint: Any) -> bool:
    """Whether the hint is a union, in either spelling."""
    return get_origin(hint) in (Union, types.UnionType)


def union_branches(hint: Any) -> list[Any]:
    """Give the unwrapped branches of a union, those of nested unions included."""
    branches: list[Any] = []
    for branch in map(unwrap, get_args(hint)):
        branches.extend(union_branches(branch) if is_union(branch) else [branch])
    return branches


def is_typed_dict(hint: Any) -> bool:
    """Whether the hint is a `TypedDict`, from either module that has one."""
    return isinstance(hint, type) and issubclass(hint, dict) and hasattr(hint, "__total__")


def is_named_tuple(hint: Any) -> bool:
    """Whether the hint is a class of named tuples."""
    return isinstance(hint, type) and issubclass(hint, tuple) and hasattr(hint, "_fields")


def is_pydantic(hint: Any) -> bool:
    """Whether the hint is a model or dataclass of pydantic, told without importing it."""
    return isinstance(hint, type) and hasattr(hint, "__pydantic_validator__")


def is_enum(hint: Any) -> bool:
    """Whether the hint is an enumeration."""
    return isinstance(hint, type) and issubclass(hint, enum.Enum)


def has_init_vars(cls: type[Any]) -> bool:
    """Whether a dataclass takes arguments that it does not keep as fields."""
    return any(
        getattr(getattr(f, "_field_type", None), "name", "") == "_FIELD_INITVAR"
        for f in getattr(cls, "__dataclass_fields__", {}).values()
    )


def substitute(hint: Any, mapping: Mapping[Any, Any]) -> Any:
    """Put types in the place of type variables."""
    if not mapping:
        return hint
    if isinstance(hint, TypeVar):
        return mapping.get(hint, hint)
    parameters = getattr(hint, "__parameters__", ())
    if not parameters or (isinstance(hint, type) and get_origin(hint) is None):
        return hint
    alias: Any = hint
    return alias[tuple(mapping.get(p, p) for p in parameters)]


def field_types(cls: Any) -> dict[str, Any]:
    """Give the types of the annotated fields of a class or a generic alias of one, base classes first."""
    origin = get_origin(cls) or cls
    return _collect(origin, _mapping_of(origin, get_args(cls)))


def typed_dict_required(cls: Any, types_by_name: Mapping[str, Any]) -> frozenset[str]:
    """Give the keys that must be there. String annotations hide the wrappers from the class itself, so look again."""
    origin = get_origin(cls) or cls
    required: frozenset[str] = getattr(origin, "__required_keys__", frozenset())
    wrappers = {name: _wrapper_name(hint) for name, hint in types_by_name.items()}
    return frozenset(
        name
        for name, wrapper in wrappers.items()
        if wrapper == "Required" or (name in required and wrapper != "NotRequired")
    )


def _wrapper_name(hint: Any) -> str:
    name: str = getattr(get_origin(hint), "_name", None) or ""
    return name if name in _WRAPPER_NAMES else ""


def _meaning_of(variable: TypeVar) -> Any:
    if variable.__bound__ is not None:
        return variable.__bound__
    if variable.__constraints__:
        return Union[variable.__constraints__]  # noqa: UP007 (built from values)
    return Any


def _mapping_of(origin: Any, args: tuple[Any, ...]) -> dict[Any, Any]:
    return dict(zip(getattr(origin, "__parameters__", ()), args, strict=False))


def _collect(cls: Any, mapping: Mapping[Any, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for base in reversed(getattr(cls, "__orig_bases__", None) or cls.__bases__):
        origin = get_origin(base) or base
        if origin in (object, typing.Generic, typing.Protocol, dict, tuple) or not isinstance(origin, type):
            continue
        args = tuple(substitute(arg, mapping) for arg in get_args(base))
        found.update(_collect(origin, _mapping_of(origin, args)))
    hints = _hints_of(cls)
    own = inspect.get_annotations(cls)
    found.update({name: substitute(hints[name], mapping) for name in own if name in hints})
    # Classes made by functions (namedtuple bases, make_dataclass) may have hints that no class body wrote.
    found.update({name: substitute(hint, mapping) for name, hint in hints.items() if name not in found})
    return found


def _hints_of(cls: Any) -> dict[str, Any]:
    try:
        return typing.get_type_hints(cls, localns={cls.__name__: cls}, include_extras=True)
    except NameError as error:
        raise Misfit(
            f"cannot resolve the annotations of {type_name(cls)}: {error}",
            "Define the class, and the types of its fields, at module level and outside of `if TYPE_CHECKING`.",
        ) from error


def dataclass_fields(cls: Any) -> list[dataclasses.Field[Any]]:
    """Give the fields of a dataclass or a generic alias of one."""
    return list(dataclasses.fields(get_origin(cls) or cls))
