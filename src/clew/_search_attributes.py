"""Typed search attributes; users meet these as ``clew.common``.

Owns: keys, pairs, updates and the typed collection. Never: their form as payloads (``converter`` has it) or how they
are indexed (``storage``).
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar, Final, Generic, NamedTuple, TypeAlias, TypeVar, overload

SearchAttributeValue: TypeAlias = str | int | float | bool | datetime | Sequence[str]
"""What one search attribute may hold."""

SearchAttributeValues: TypeAlias = Sequence[str] | Sequence[int] | Sequence[float] | Sequence[bool] | Sequence[datetime]
"""Values in the older, untyped form, where every attribute is a sequence."""

SearchAttributes: TypeAlias = Mapping[str, SearchAttributeValues]
"""The older, untyped form of search attributes."""

ValueT = TypeVar("ValueT")
DefaultT = TypeVar("DefaultT")


class SearchAttributeIndexedValueType(enum.IntEnum):
    """How a search attribute is indexed, with the numbers of the published model."""

    TEXT = 1
    KEYWORD = 2
    INT = 3
    DOUBLE = 4
    BOOL = 5
    DATETIME = 6
    KEYWORD_LIST = 7

    @property
    def metadata_name(self) -> str:
        """The name of the type in the payload's metadata, such as ``KeywordList``."""
        return self.name.title().replace("_", "")


_VALUE_TYPES: Final[dict[SearchAttributeIndexedValueType, type[Any]]] = {
    SearchAttributeIndexedValueType.TEXT: str,
    SearchAttributeIndexedValueType.KEYWORD: str,
    SearchAttributeIndexedValueType.INT: int,
    SearchAttributeIndexedValueType.DOUBLE: float,
    SearchAttributeIndexedValueType.BOOL: bool,
    SearchAttributeIndexedValueType.DATETIME: datetime,
    SearchAttributeIndexedValueType.KEYWORD_LIST: list,
}


@dataclass(frozen=True)
class SearchAttributeKey(Generic[ValueT]):
    """Name and type of a search attribute; made by the ``for_…`` methods.

    Args:
        name: The name it is registered and queried by.
        indexed_value_type: How it is indexed.
    """

    name: str
    indexed_value_type: SearchAttributeIndexedValueType

    @property
    def value_type(self) -> type[Any]:
        """The Python type of its values; `list` for a keyword list."""
        return _VALUE_TYPES[self.indexed_value_type]

    def value_set(self, value: ValueT) -> SearchAttributeUpdate[ValueT]:
        """Give the update that sets it."""
        return SearchAttributeUpdate(self, value)

    def value_unset(self) -> SearchAttributeUpdate[ValueT]:
        """Give the update that removes it."""
        return SearchAttributeUpdate(self, None)

    @staticmethod
    def for_text(name: str) -> SearchAttributeKey[str]:
        """Text that is searched by word."""
        return SearchAttributeKey(name, SearchAttributeIndexedValueType.TEXT)

    @staticmethod
    def for_keyword(name: str) -> SearchAttributeKey[str]:
        """Text that is compared as a whole."""
        return SearchAttributeKey(name, SearchAttributeIndexedValueType.KEYWORD)

    @staticmethod
    def for_int(name: str) -> SearchAttributeKey[int]:
        """A whole number."""
        return SearchAttributeKey(name, SearchAttributeIndexedValueType.INT)

    @staticmethod
    def for_float(name: str) -> SearchAttributeKey[float]:
        """A number."""
        return SearchAttributeKey(name, SearchAttributeIndexedValueType.DOUBLE)

    @staticmethod
    def for_bool(name: str) -> SearchAttributeKey[bool]:
        """Yes or no."""
        return SearchAttributeKey(name, SearchAttributeIndexedValueType.BOOL)

    @staticmethod
    def for_datetime(name: str) -> SearchAttributeKey[datetime]:
        """An instant; the value must be time-zone aware."""
        return SearchAttributeKey(name, SearchAttributeIndexedValueType.DATETIME)

    @staticmethod
    def for_keyword_list(name: str) -> SearchAttributeKey[Sequence[str]]:
        """Several texts, each compared as a whole."""
        return SearchAttributeKey(name, SearchAttributeIndexedValueType.KEYWORD_LIST)


class SearchAttributePair(NamedTuple, Generic[ValueT]):
    """A key with its value."""

    key: SearchAttributeKey[ValueT]
    value: ValueT


@dataclass(frozen=True)
class SearchAttributeUpdate(Generic[ValueT]):
    """A change of one search attribute; ``value=None`` removes it."""

    key: SearchAttributeKey[ValueT]
    value: ValueT | None


@dataclass(frozen=True)
class TypedSearchAttributes(Collection[SearchAttributePair[Any]]):
    """The search attributes of a run, at most one value a key.

    Args:
        search_attributes: The pairs, kept in order of name.

    Raises:
        ValueError: Two pairs have the same name.
    """

    search_attributes: Sequence[SearchAttributePair[Any]]
    _by_key: dict[SearchAttributeKey[Any], Any] = field(init=False, repr=False, compare=False)

    empty: ClassVar[TypedSearchAttributes]
    """No attributes."""

    def __post_init__(self) -> None:
        pairs = tuple(sorted(self.search_attributes, key=lambda pair: pair.key.name))
        names = [pair.key.name for pair in pairs]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"Search attribute {twice[0]!r} is given twice; each name may have one value.")
        object.__setattr__(self, "search_attributes", pairs)
        object.__setattr__(self, "_by_key", {pair.key: pair.value for pair in pairs})

    def __len__(self) -> int:
        return len(self.search_attributes)

    def __iter__(self) -> Iterator[SearchAttributePair[Any]]:
        return iter(self.search_attributes)

    def __contains__(self, key: object) -> bool:
        """Whether there is a value for this key; name and type must match."""
        return key in self._by_key

    def __getitem__(self, key: SearchAttributeKey[ValueT]) -> ValueT:
        value: ValueT = self._by_key[key]
        return value

    @overload
    def get(self, key: SearchAttributeKey[ValueT]) -> ValueT | None: ...
    @overload
    def get(self, key: SearchAttributeKey[ValueT], default: DefaultT) -> ValueT | DefaultT: ...
    def get(self, key: SearchAttributeKey[Any], default: Any = None) -> Any:
        """Give the value for `key`, or else `default`."""
        return self._by_key.get(key, default)

    def updated(self, *search_attributes: SearchAttributePair[Any]) -> TypedSearchAttributes:
        """Give a copy in which these pairs replace those of the same name."""
        replaced = {pair.key.name for pair in search_attributes}
        kept = [pair for pair in self.search_attributes if pair.key.name not in replaced]
        return TypedSearchAttributes([*kept, *search_attributes])


TypedSearchAttributes.empty = TypedSearchAttributes(())
