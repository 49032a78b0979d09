"""The filter language in which people search runs (semantics 1.10), from text to a `VisibilityFilter`.

Owns: the grammar, the system attributes with their types, and the messages about what is wrong with a filter. Never:
SQL, or which runs match (``storage`` does).

How it works: one pass of a scanner, then recursive descent with bounds on length, depth and the number of comparisons::

    filter      = alternative { OR alternative }
    alternative = term { AND term }
    term        = "(" filter ")" | comparison
    comparison  = name operator value | name [NOT] IN "(" value { "," value } ")"
                | name BETWEEN value AND value | name [NOT] STARTS_WITH value | name IS [NOT] NULL

Each attribute has a type, and a value is read as that type: texts in quotes, instants as RFC 3339,
``ExecutionDuration`` as a duration (``'1h30m'``, ``'250ms'``, ``'01:30:00'``, or whole nanoseconds), which the
condition carries in microseconds. Whatever is wrong, the answer is a `FilterError` that names the position, the
attribute and what is allowed.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Final, NamedTuple, NoReturn, TypeAlias

import msgspec

from clew.engine.summary import PREDEFINED_ATTRIBUTES
from clew.model.policies import WorkflowExecutionStatus
from clew.model.rejection import Rejection, RejectionCode
from clew.ports.store import VisibilityCondition, VisibilityFilter
from clew.service.errors import RPCError

Value: TypeAlias = str | int | float | bool | datetime

LENGTH_MAX: Final = 16_384
"""Characters of a filter."""

DEPTH_MAX: Final = 20
"""Parentheses within parentheses."""

COMPARISONS_MAX: Final = 200
VALUES_MAX: Final = 2_000
"""Values of a filter in all."""

SYSTEM_ATTRIBUTES: Final[dict[str, str]] = {
    "WorkflowId": "Keyword",
    "RunId": "Keyword",
    "WorkflowType": "Keyword",
    "TaskQueue": "Keyword",
    "ExecutionStatus": "Status",
    "StartTime": "Datetime",
    "ExecutionTime": "Datetime",
    "CloseTime": "Datetime",
    "HistoryLength": "Int",
    "HistorySizeBytes": "Int",
    "StateTransitionCount": "Int",
    "ExecutionDuration": "Duration",
    "ParentWorkflowId": "Keyword",
    "ParentRunId": "Keyword",
    "RootWorkflowId": "Keyword",
    "RootRunId": "Keyword",
}
"""What every run can be searched by, with the type of each."""

ANY_TYPE: Final = "any type"
"""Of an attribute that runs give values of several types."""

_ORDER: Final = ("=", "!=", ">", ">=", "<", "<=", "IN", "NOT IN", "BETWEEN")
_PREFIX: Final = ("STARTS_WITH", "NOT STARTS_WITH")
_SET: Final = ("=", "!=", "IN", "NOT IN")
_OPERATORS: Final[dict[str, tuple[str, ...]]] = {
    "Keyword": (*_ORDER, *_PREFIX),
    "KeywordList": (*_SET, *_PREFIX),
    "Text": _SET,
    "Status": _SET,
    "Int": _ORDER,
    "Double": _ORDER,
    "Datetime": _ORDER,
    "Duration": _ORDER,
    "Bool": ("=", "!="),
    ANY_TYPE: (*_ORDER, *_PREFIX),
}
_NULLS: Final = ("IS NULL", "IS NOT NULL")
_STATUSES: Final = {status.value.lower(): status.value for status in WorkflowExecutionStatus}
_BUILT_IN: Final[dict[str, str]] = {
    **SYSTEM_ATTRIBUTES,
    **PREDEFINED_ATTRIBUTES,
    "TemporalChangeVersion": "KeywordList",
}
"""The attributes that need no run to be known: also the one by which runs with a patch are found."""

_ALIASES: Final[dict[str, str]] = {
    "Status": "ExecutionStatus",
    "Type": "WorkflowType",
    "Id": "WorkflowId",
    "Run": "RunId",
    "Queue": "TaskQueue",
    "Started": "StartTime",
    "Closed": "CloseTime",
    "Duration": "ExecutionDuration",
}
"""What people call system attributes, as in the headings of lists; never accepted, only told the right name."""

_CLOSENESS: Final = 0.8
"""How like a known name an unknown one must be to be taken for a slip of the pen."""

_INT_MAX: Final = 2**63 - 1
_DATETIME_EXAMPLE: Final = "an RFC 3339 instant with its offset, such as '2026-03-01T08:00:00Z'"
_DURATION_EXAMPLE: Final = "a duration such as '1h30m', '250ms' or '01:30:00'"

_KEYWORDS: Final = frozenset({"AND", "OR", "NOT", "IN", "BETWEEN", "STARTS_WITH", "IS", "NULL", "TRUE", "FALSE"})
_REFUSED: Final = {
    "ORDER": "the order of a list is fixed (newest start first); leave ORDER BY out",
    "GROUP": "a filter only selects; counts are always grouped by ExecutionStatus, so leave GROUP BY out",
    "LIKE": "there is no LIKE; use STARTS_WITH",
    "LIMIT": "a filter only selects; give the page size apart from it",
    "SELECT": "a filter is only the condition, without SELECT … WHERE",
    "WHERE": "a filter is only the condition, without SELECT … WHERE",
}

_SCANNER: Final = re.compile(
    r"""(?P<space>\s+)
    |(?P<text>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")
    |(?P<number>[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?(?![\w.]))
    |(?P<quoted>`[^`]+`)
    |(?P<word>[^\W\d][\w.-]*)
    |(?P<operator><=|>=|!=|<>|==|=|<|>)
    |(?P<mark>[(),])""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE: Final = re.compile(r"\\(.)|''|\"\"", re.DOTALL)
_DURATION: Final = re.compile(r"(-?)((?:[0-9]+(?:\.[0-9]+)?(?:ns|us|µs|ms|h|m|s|d))+)")
_DURATION_PART: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ns|us|µs|ms|h|m|s|d)")
_CLOCK: Final = re.compile(r"([0-9]{1,6}):([0-5]?[0-9]):([0-5]?[0-9](?:\.[0-9]+)?)")
_UNIT_MICROS: Final = {
    "ns": 1e-3,
    "us": 1.0,
    "µs": 1.0,
    "ms": 1e3,
    "s": 1e6,
    "m": 6e7,
    "h": 3.6e9,
    "d": 8.64e10,
}


class FilterError(RPCError):
    """A filter is not in the language, or compares what cannot be compared."""


class _Token(NamedTuple):
    kind: str
    text: str
    at: int

    def __str__(self) -> str:
        return "the end of the filter" if self.kind == "end" else repr(self.text)


def parse_filter(text: str, attributes: Mapping[str, str] | None = None) -> VisibilityFilter:
    """Read a filter.

    Args:
        text: The filter; empty means no condition. attributes: The search attributes that exist beside the system's,
        with their types (``Keyword``, ``KeywordList``, ``Text``, ``Int``, ``Double``, ``Bool``, ``Datetime``, or
        `ANY_TYPE`); any other name is refused.
        ``None`` means unknown: any name is then taken, unless it looks like a system attribute misspelt.

    Raises:
        FilterError: The text is not a filter; the message says where and what was expected.
    """
    if len(text) > LENGTH_MAX:
        _refuse(f"the filter has {len(text)} characters; at most {LENGTH_MAX} are allowed. Use a shorter one")
    parser = _Parser(_scan(text), attributes)
    return parser.parse()


def _refuse(message: str, **details: str) -> NoReturn:
    raise FilterError(Rejection(code=RejectionCode.INVALID_ARGUMENT, message=message, details=details))


def _refuse_at(token: _Token, message: str, **details: str) -> NoReturn:
    _refuse(f"the filter is wrong at character {token.at + 1}: {message}", position=str(token.at + 1), **details)


def _refuse_word(token: _Token, expected: str) -> NoReturn:
    refused = _REFUSED.get(token.text.upper()) if token.kind == "word" else None
    _refuse_at(token, refused or f"there is {token}; expected {expected}")


def _scan(text: str) -> list[_Token]:
    tokens: list[_Token] = []
    at = 0
    while at < len(text):
        match = _SCANNER.match(text, at)
        if match is None:
            _refuse_at(_Token("", text[at], at), _about_unscannable(text, at))
        kind = match.lastgroup or ""
        if kind != "space":
            tokens.append(_Token(kind, match.group(), at))
        at = match.end()
    tokens.append(_Token("end", "", len(text)))
    return tokens


def _about_unscannable(text: str, at: int) -> str:
    if text[at] in "'\"`":
        return f"the quote {text[at]} is never closed. Close it, or double it inside a text"
    if text[at].isdigit() or text[at] in "+-.":
        return "this is no number. Put texts and instants in quotes"
    return f"{text[at]!r} is not part of the language. Put texts in quotes, and names of attributes in `backticks`"


class _Parser:
    """Recursive descent over the tokens of one filter."""

    def __init__(self, tokens: list[_Token], attributes: Mapping[str, str] | None) -> None:
        self._tokens = tokens
        self._attributes = attributes
        self._position = 0
        self._depth = 0
        self._comparison_count = 0
        self._value_count = 0

    def parse(self) -> VisibilityFilter:
        if self._peek().kind == "end":
            return VisibilityFilter()
        found = self._any_of()
        token = self._peek()
        if token.kind != "end":
            _refuse_word(token, "AND, OR or the end of the filter")
        return found if isinstance(found, VisibilityFilter) else VisibilityFilter(conditions=(found,))

    def _any_of(self) -> VisibilityCondition | VisibilityFilter:
        return self._joined("OR", self._all_of)

    def _all_of(self) -> VisibilityCondition | VisibilityFilter:
        return self._joined("AND", self._term)

    def _joined(
        self, word: str, part: Callable[[], VisibilityCondition | VisibilityFilter]
    ) -> VisibilityCondition | VisibilityFilter:
        found = [part()]
        while self._take_word(word):
            found.append(part())
        return found[0] if len(found) == 1 else VisibilityFilter(any_of=word == "OR", conditions=tuple(found))

    def _term(self) -> VisibilityCondition | VisibilityFilter:
        token = self._peek()
        if token.text != "(" or token.kind != "mark":
            return self._comparison()
        self._next()
        self._depth += 1
        if self._depth > DEPTH_MAX:
            _refuse_at(token, f"more than {DEPTH_MAX} parentheses are open. Write the filter flatter")
        found = self._any_of()
        self._expect_mark(")")
        self._depth -= 1
        return found

    def _comparison(self) -> VisibilityCondition:
        self._comparison_count += 1
        token = self._peek()
        if self._comparison_count > COMPARISONS_MAX:
            _refuse_at(token, f"a filter has at most {COMPARISONS_MAX} comparisons. Use IN, or several filters")
        name, kind = self._attribute()
        operator_at = self._peek()
        operator = self._operator(name)
        allowed = (*_OPERATORS[kind], *_NULLS)
        if operator not in allowed:
            _refuse_at(
                operator_at,
                f"{name} is of type {kind} and cannot be compared with {operator}. Use one of {', '.join(allowed)}",
                attribute=name,
            )
        return VisibilityCondition(attribute=name, operator=operator, values=self._values(name, kind, operator))

    def _attribute(self) -> tuple[str, str]:
        token = self._next()
        if token.kind == "quoted":
            name = token.text[1:-1]
        elif token.kind == "word" and token.text.upper() not in _KEYWORDS:
            name = token.text
        else:
            if token.text.upper() == "NOT":
                _refuse_at(token, "NOT (…) is not supported. Use !=, NOT IN, NOT STARTS_WITH or IS NOT NULL")
            _refuse_word(token, "the name of an attribute, such as WorkflowType")
        kind = _BUILT_IN.get(name)
        if kind is None and self._attributes is not None:
            kind = self._attributes.get(name)
            if kind is not None and kind not in _OPERATORS:
                kind = ANY_TYPE
        if kind is None:
            kind = self._unknown_attribute(token, name)
        return name, kind

    def _unknown_attribute(self, token: _Token, name: str) -> str:
        if name.upper() in _REFUSED:
            _refuse_at(token, _REFUSED[name.upper()])
        known = [*_BUILT_IN, *(self._attributes or ())]
        close = _close_matches(name, known) if self._attributes is None else _meant(name, known)
        if self._attributes is None and not close:
            return ANY_TYPE
        hint = f"Did you mean {' or '.join(close)}? " if close else ""
        others = ", ".join(sorted(set(self._attributes or ()).difference(_BUILT_IN))) or "none so far"
        _refuse_at(
            token,
            f"there is no attribute {name!r}. {hint}There are {', '.join(_BUILT_IN)}; "
            f"and search attributes in use: {others}. A search attribute can be used in filters from the first run of "
            "the namespace on that has it",
            attribute=name,
        )

    def _operator(self, name: str) -> str:
        token = self._next()
        if token.kind == "operator":
            return {"<>": "!=", "==": "="}.get(token.text, token.text)
        word = token.text.upper() if token.kind == "word" else ""
        if word == "IS":
            negated = self._take_word("NOT")
            if not self._take_word("NULL"):
                _refuse_word(self._peek(), "NULL")
            return "IS NOT NULL" if negated else "IS NULL"
        if word == "NOT":
            for following in ("IN", "STARTS_WITH"):
                if self._take_word(following):
                    return f"NOT {following}"
            _refuse_word(self._peek(), "IN or STARTS_WITH after NOT")
        if word in ("IN", "BETWEEN", "STARTS_WITH"):
            return word
        known = "=, !=, >, >=, <, <=, IN, BETWEEN, STARTS_WITH, NOT IN, NOT STARTS_WITH, IS NULL or IS NOT NULL"
        _refuse_word(token, f"an operator after {name}: {known}")

    def _values(self, name: str, kind: str, operator: str) -> tuple[Value, ...]:
        if operator in _NULLS:
            return ()
        if operator in ("IN", "NOT IN"):
            return self._value_list(name, kind)
        first_at = self._peek()
        first = self._value(name, kind)
        if operator == "BETWEEN":
            if not self._take_word("AND"):
                _refuse_word(self._peek(), "AND between the two bounds of BETWEEN")
            return first, self._value(name, kind)
        if operator.endswith("STARTS_WITH") and not isinstance(first, str):
            _refuse_at(first_at, f"{operator} needs a text in quotes", attribute=name)
        return (first,)

    def _value_list(self, name: str, kind: str) -> tuple[Value, ...]:
        self._expect_mark("(")
        values = [self._value(name, kind)]
        while self._peek().kind == "mark" and self._peek().text == ",":
            self._next()
            values.append(self._value(name, kind))
        self._expect_mark(")")
        if len({_family(value) for value in values}) > 1:
            _refuse_at(
                self._peek(), f"the values for {name} are of different types. Use one type in a list", attribute=name
            )
        return tuple(values)

    def _value(self, name: str, kind: str) -> Value:
        self._value_count += 1
        token = self._next()
        if self._value_count > VALUES_MAX:
            _refuse_at(token, f"a filter has at most {VALUES_MAX} values. Use several filters")
        if token.kind == "text":
            return _from_text(token, name, kind, _unquote(token))
        if token.kind == "number":
            return _from_number(token, name, kind)
        if token.kind == "word" and token.text.upper() in ("TRUE", "FALSE"):
            return _from_bool(token, name, kind, token.text.upper() == "TRUE")
        if token.kind == "word" and token.text.upper() not in _KEYWORDS:
            _refuse_at(token, f"the value {token.text} for {name} needs quotes: '{token.text}'", attribute=name)
        _refuse_word(token, f"a value for {name}")

    def _peek(self) -> _Token:
        return self._tokens[self._position]

    def _next(self) -> _Token:
        token = self._tokens[self._position]
        if token.kind != "end":
            self._position += 1
        return token

    def _take_word(self, word: str) -> bool:
        token = self._peek()
        if token.kind != "word" or token.text.upper() != word:
            return False
        self._position += 1
        return True

    def _expect_mark(self, mark: str) -> None:
        token = self._next()
        if token.kind != "mark" or token.text != mark:
            _refuse_word(token, f"'{mark}'")


def _close_matches(name: str, known: Sequence[str]) -> list[str]:
    by_key = {candidate.lower(): candidate for candidate in known}
    key = name.lower().replace("_", "")
    return [by_key[found] for found in difflib.get_close_matches(key, list(by_key), n=2, cutoff=_CLOSENESS)]


def _meant(name: str, known: Sequence[str]) -> list[str]:
    """The attributes that an unknown name may stand for: by what people call them, else by how it is spelt."""
    aliases = {alias.lower(): attribute for alias, attribute in _ALIASES.items()}
    alias = aliases.get(name.lower().replace("_", ""))
    if alias is not None:
        return [alias]
    found = _close_matches(name, [*_ALIASES, *known])
    return list(dict.fromkeys(_ALIASES.get(match, match) if match not in known else match for match in found))


def _family(value: Value) -> str:
    if isinstance(value, bool):
        return "bool"
    return "number" if isinstance(value, int | float) else type(value).__name__


def _unquote(token: _Token) -> str:
    quote = token.text[0]

    def replace(match: re.Match[str]) -> str:
        if match.group(1) is not None:
            return match.group(1)
        return quote if match.group() == quote * 2 else match.group()

    text = _ESCAPE.sub(replace, token.text[1:-1])
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        _refuse_at(token, "the text has a lone surrogate, which is no character")
    return text


def _from_text(token: _Token, name: str, kind: str, text: str) -> Value:
    match kind:
        case "Status":
            return _to_status(token, text)
        case "Datetime":
            return _to_instant(token, name, text)
        case "Duration":
            return _to_duration(token, name, text)
        case "Int" | "Double" | "Bool":
            _refuse_at(token, f"{name} is of type {kind}, so its value has no quotes", attribute=name)
        case _:
            return text


def _to_status(token: _Token, text: str) -> str:
    status = _STATUSES.get(text.lower())
    if status is None:
        close = difflib.get_close_matches(text.lower(), list(_STATUSES), n=1)
        hint = f" Did you mean {_STATUSES[close[0]]}?" if close else ""
        _refuse_at(
            token,
            f"there is no ExecutionStatus {text!r}.{hint} There are {', '.join(_STATUSES.values())}",
            attribute="ExecutionStatus",
        )
    return status


def _to_instant(token: _Token, name: str, text: str) -> datetime:
    try:
        instant = msgspec.convert(text, datetime)
    except msgspec.ValidationError:
        instant = None
    if instant is None or instant.tzinfo is None:
        _refuse_at(token, f"{text!r} is no value for {name}; expected {_DATETIME_EXAMPLE}", attribute=name)
    return instant


def _to_duration(token: _Token, name: str, text: str) -> int:
    micros: float | None = None
    if match := _DURATION.fullmatch(text):
        micros = sum(float(count) * _UNIT_MICROS[unit] for count, unit in _DURATION_PART.findall(match.group(2)))
        micros = -micros if match.group(1) else micros
    elif match := _CLOCK.fullmatch(text):
        hours, minutes, seconds = match.groups()
        micros = int(hours) * 3.6e9 + int(minutes) * 6e7 + float(seconds) * 1e6
    elif re.fullmatch(r"-?[0-9]{1,18}", text):
        micros = int(text) / 1000
    if micros is None or not math.isfinite(micros) or abs(micros) > _INT_MAX // 1000:
        _refuse_at(token, f"{text!r} is no value for {name}; expected {_DURATION_EXAMPLE}", attribute=name)
    return round(micros)


def _from_number(token: _Token, name: str, kind: str) -> Value:
    if kind not in ("Int", "Double", "Duration", ANY_TYPE):
        wanted = {"Datetime": _DATETIME_EXAMPLE, "Bool": "true or false"}.get(kind, "a text in quotes")
        _refuse_at(
            token,
            f"{token.text} is no value for {name}, which is of type {kind}; expected {wanted}",
            attribute=name,
        )
    if kind == "Duration":
        return _to_duration(token, name, token.text)
    try:
        number: int | float = int(token.text)
    except ValueError:
        number = float(token.text)
    if (isinstance(number, int) and abs(number) > _INT_MAX) or not math.isfinite(number):
        _refuse_at(token, f"the number {token.text} is too large; numbers go up to {_INT_MAX}", attribute=name)
    return number


def _from_bool(token: _Token, name: str, kind: str, value: bool) -> bool:
    if kind not in ("Bool", ANY_TYPE):
        _refuse_at(token, f"{token.text} is no value for {name}, which is of type {kind}", attribute=name)
    return value
